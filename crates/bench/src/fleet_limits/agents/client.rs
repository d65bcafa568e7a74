//! A client of one agent, with as many connections as it has open requests.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, bail, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::proxy::parse_head;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: app\r\n\r\n";

pub(super) struct Client {
    address: SocketAddr,
    idle: Mutex<Vec<TcpStream>>,
}

impl Client {
    pub(super) fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self { address, idle: Mutex::default() })
    }

    /// Sends a request, and returns whether the agent admitted it.
    pub(super) async fn is_admitted(&self) -> anyhow::Result<bool> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address).await.context("connect to an agent")?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        stream.write_all(REQUEST).await.context("send a request")?;
        let mut read = Vec::new();
        let status = loop {
            if let Some(head) = parse_head(&read)?
                && read.len() >= head.length + head.body
            {
                break head.status;
            }
            let count = stream.read_buf(&mut read).await.context("read a response")?;
            ensure!(count > 0, "the agent closed a connection before its response");
        };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        match status {
            200 => Ok(true),
            429 => Ok(false),
            other => bail!("the agent answered {other}"),
        }
    }
}
