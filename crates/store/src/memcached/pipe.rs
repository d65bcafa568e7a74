//! One connection to Memcached that all questions share. Responses arrive in the order of the commands. The response to
//! a cancelled caller is dropped.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    time::timeout,
};
use weir_seats::StoreError;

use super::codec::{Garbled, Response, response};

/// The maximum number of commands that wait to be sent, and of sent commands that wait for a response.
const MOST_WAITING: usize = 1_024;

/// The longest wait for a connection, and for the next bytes of a response.
const PATIENCE: Duration = Duration::from_secs(2);

type Caller = oneshot::Sender<Response>;

/// A handle of a connection. The connection is closed when its last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    calls: mpsc::Sender<(Vec<u8>, Caller)>,
}

impl Pipe {
    pub(super) async fn open(endpoint: String) -> Result<Self, StoreError> {
        let opened = timeout(PATIENCE, TcpStream::connect(&endpoint)).await;
        let stream = opened.map_err(|_| StoreError::Late)?.map_err(|error| StoreError::Lost(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| StoreError::Lost(error.to_string()))?;
        let (reader, writer) = stream.into_split();
        let (calls, waiting) = mpsc::channel(MOST_WAITING);
        let (sent, callers) = mpsc::channel(MOST_WAITING);
        tokio::spawn(write(writer, waiting, sent));
        tokio::spawn(read(reader, callers));
        Ok(Self { calls })
    }

    /// Sends a command, and waits for its response.
    pub(super) async fn call(&self, command: Vec<u8>) -> Result<Response, StoreError> {
        let (caller, answer) = oneshot::channel();
        let lost = || StoreError::Lost("the connection was closed".to_owned());
        self.calls.send((command, caller)).await.map_err(|_| lost())?;
        answer.await.map_err(|_| lost())
    }
}

/// Sends all waiting commands together. Ends when the last handle of the connection is dropped, or when the reader
/// ends.
async fn write(mut writer: OwnedWriteHalf, mut calls: mpsc::Receiver<(Vec<u8>, Caller)>, sent: mpsc::Sender<Caller>) {
    let (mut batch, mut bytes) = (Vec::new(), Vec::new());
    loop {
        let count = tokio::select! {
            count = calls.recv_many(&mut batch, MOST_WAITING) => count,
            () = sent.closed() => return,
        };
        if count == 0 {
            return;
        }
        bytes.clear();
        for (command, caller) in batch.drain(..) {
            bytes.extend_from_slice(&command);
            // If too many commands have no response, the writer waits for the reader. First it sends the commands that
            // it has collected.
            if let Err(error) = sent.try_send(caller) {
                if writer.write_all(&std::mem::take(&mut bytes)).await.is_err() {
                    return;
                }
                if sent.send(error.into_inner()).await.is_err() {
                    return;
                }
            }
        }
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Gives each caller its response, in the order of the commands. Ends when the writer ends, or when the server closes
/// the connection, stalls, or violates the protocol.
async fn read(mut reader: OwnedReadHalf, mut callers: mpsc::Receiver<Caller>) {
    let mut buffer = Vec::with_capacity(4_096);
    while let Some(caller) = callers.recv().await {
        let (found, length) = loop {
            match response(&buffer) {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(Garbled) => return,
            }
            match timeout(PATIENCE, reader.read_buf(&mut buffer)).await {
                Ok(Ok(length)) if length > 0 => {}
                _ => return,
            }
        };
        buffer.drain(..length);
        let _ = caller.send(found);
        if !buffer.is_empty() && callers.is_empty() {
            // The server sent a response without a command, so responses no longer match commands.
            return;
        }
    }
}
