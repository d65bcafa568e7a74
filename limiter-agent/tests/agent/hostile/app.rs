//! An app that records each request as the strict parser reads it, and answers `ok`.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    differential::http::{Kind, Message},
    support::accept,
};

/// A request as the app parsed it, or an error if it is invalid.
pub(crate) type Heard = Result<Message, String>;

/// The app of one agent.
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    record: Arc<Mutex<Record>>,
}

#[derive(Default)]
struct Record {
    /// Counts the calls of `take`, so that late bytes do not count as part of a later request.
    taken: u64,
    heard: Vec<Heard>,
}

impl App {
    pub(crate) async fn start() -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let shared = Arc::clone(&record);
        Self { address: accept(move |stream| serve(stream, Arc::clone(&shared))).await, record }
    }

    /// Takes all requests since the last call, in the order in which they began.
    pub(crate) fn take(&self) -> Vec<Heard> {
        let mut record = self.record.lock().expect("not poisoned");
        record.taken += 1;
        std::mem::take(&mut record.heard)
    }
}

async fn serve(mut stream: TcpStream, record: Arc<Mutex<Record>>) {
    let record = || record.lock().expect("not poisoned");
    let (mut bytes, mut begun) = (Vec::new(), None);
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        bytes.extend_from_slice(&buffer[..count]);
        while let Some(message) = Message::read(&bytes, false, |_| Kind::Request).transpose() {
            let (taken, place) = {
                let mut record = record();
                // More bytes of a body belong to the request that has begun, unless `take` has returned it already.
                let (taken, place) = begun.unwrap_or((record.taken, record.heard.len()));
                if taken == record.taken {
                    match record.heard.get_mut(place) {
                        Some(known) => *known = message.clone(),
                        None => record.heard.push(message.clone()),
                    }
                }
                (taken, place)
            };
            let Ok(message) = message else { return };
            if !message.whole {
                begun = Some((taken, place));
                break;
            }
            begun = None;
            bytes.drain(..message.used);
            let body = if message.head.method() == "HEAD" { "" } else { "ok" };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
    if !bytes.is_empty() && begun.is_none() {
        record().heard.push(Err(format!("an incomplete head: {:?}", String::from_utf8_lossy(&bytes))));
    }
}
