//! Misbehaving clients. They must not affect other clients, and the agent must close their connections in time.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::{Client, Target};
use crate::soak::app::{HUGE, LARGE};

/// The smallest receive buffer that the kernel allows.
const SMALL_WINDOW: u32 = 4096;
const SIP: usize = 16 * 1024;
const BETWEEN_SIPS: Duration = Duration::from_millis(25);

/// A client that reads the whole response slowly.
pub(super) struct SlowReader;

impl Client for SlowReader {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let mut stream = ask_with_small_window(target, "/large").await?;
        let (mut sip, mut read, mut head) = (vec![0; SIP], 0, Vec::new());
        loop {
            let count = stream.read(&mut sip).await.context("read")?;
            if count == 0 {
                break;
            }
            if head.len() < SIP {
                head.extend_from_slice(&sip[..count]);
            }
            read += count;
            tokio::time::sleep(BETWEEN_SIPS).await;
        }
        ensure!(head.starts_with(b"HTTP/1.1 200"), "the response is not 200");
        let body_at = head.windows(4).position(|at| at == b"\r\n\r\n").context("no end of the head")? + 4;
        ensure!(read - body_at == LARGE, "only {} of {LARGE} bytes arrived", read - body_at);
        Ok(())
    }
}

async fn ask_with_small_window(target: &Target, path: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4().context("make a socket")?;
    socket.set_recv_buffer_size(SMALL_WINDOW).context("set a small receive buffer")?;
    let mut stream = socket.connect(target.proxy).await.context("connect")?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("send a request")?;
    Ok(stream)
}

/// A client that reads nothing, so the agent must close the connection.
pub(super) struct NeverReads;

/// The time without reading, which is longer than the agent's timeout.
const NOT_READING: Duration = Duration::from_secs(8);

impl Client for NeverReads {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let mut stream = ask_with_small_window(target, "/huge").await?;
        tokio::time::sleep(NOT_READING).await;
        // Now the client can only read the bytes that the kernel has buffered, and then any kind of end.
        let (mut read, mut buffer) = (0, vec![0; SIP]);
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            read += count;
        }
        ensure!(read < HUGE, "the agent has kept the whole body for a client that does not read");
        Ok(())
    }
}

/// A client that sends an incomplete head: byte by byte, or nothing after the first part.
pub(super) struct HalfHead {
    round: usize,
}

impl HalfHead {
    pub(super) fn new(lane: usize) -> Self {
        Self { round: lane }
    }
}

const BEGINS: [&[u8]; 4] = [
    b"G",
    b"GET /churn HTTP/1.1\r\nhost: app\r\nx-long: ",
    b"PRI * HTTP/2.0\r\n",
    b"POST /upload HTTP/1.1\r\nhost: app\r\ncontent-length: 5\r\n",
];
const BETWEEN_BYTES: Duration = Duration::from_millis(100);
/// The longest accepted time of an incomplete head, which is longer than the agent's timeout.
const HALF_HEAD_MOST: Duration = Duration::from_secs(12);

impl Client for HalfHead {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        self.round += 1;
        let mut stream = TcpStream::connect(target.proxy).await.context("connect")?;
        stream.write_all(BEGINS[self.round % BEGINS.len()]).await.context("send the first part of a head")?;
        let (mut reads, mut writes) = stream.split();
        let goes_on = self.round.is_multiple_of(2);
        let write = async {
            // This write fails when the agent has closed the connection. Then reading ends, too.
            while goes_on && writes.write_all(b"x").await.is_ok() {
                tokio::time::sleep(BETWEEN_BYTES).await;
            }
            std::future::pending::<()>().await;
        };
        let mut said = Vec::new();
        let end = async {
            // A reset also counts as an end.
            let _ = reads.read_to_end(&mut said).await;
        };
        tokio::select! {
            () = write => {}
            end = tokio::time::timeout(HALF_HEAD_MOST, end) => end.context("an incomplete head was accepted for too long")?,
        }
        ensure!(!said.starts_with(b"HTTP/1.1 2"), "a response to an incomplete head");
        Ok(())
    }
}

/// A client that disconnects in the middle of a request's body.
pub(super) struct CutUpload {
    round: usize,
}

impl CutUpload {
    pub(super) fn new(lane: usize) -> Self {
        Self { round: lane }
    }
}

const HALF: usize = 64 * 1024;

impl Client for CutUpload {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        self.round += 1;
        let mut stream = TcpStream::connect(target.proxy).await.context("connect")?;
        let (framing, before) = if self.round.is_multiple_of(2) {
            (format!("content-length: {}", 2 * HALF), String::new())
        } else {
            ("transfer-encoding: chunked".to_owned(), format!("{:x}\r\n", 2 * HALF))
        };
        let head = format!("POST /upload HTTP/1.1\r\nhost: app\r\n{framing}\r\n\r\n{before}");
        stream.write_all(head.as_bytes()).await.context("send the head of an upload")?;
        stream.write_all(&vec![b'x'; HALF]).await.context("send half of the body")?;
        match self.round % 3 {
            0 => stream.set_zero_linger().context("reset the connection")?,
            1 => {}
            _ => {
                stream.shutdown().await.context("half-close")?;
                let mut said = Vec::new();
                // Any answer except success is accepted for half a body.
                let _ = stream.read_to_end(&mut said).await;
                ensure!(!said.starts_with(b"HTTP/1.1 2"), "half an upload was accepted as a whole one");
            }
        }
        Ok(())
    }
}
