//! The simplest way to share a limit: each request runs a script in Redis, which increments a counter that expires. The
//! client decides by the value of the counter.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpStream, tcp::OwnedWriteHalf},
    sync::{Mutex, mpsc, oneshot},
};

use crate::shared::oracle::SharedLimit;

const SCRIPT: &str =
    "local n = redis.call('INCR', KEYS[1]) if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";

/// One connection to Redis. Its requests follow each other without waiting for answers.
pub(super) struct Trips {
    writer: Mutex<Writer>,
    script: String,
    limit: SharedLimit,
    counters: String,
}

struct Writer {
    stream: OwnedWriteHalf,
    /// Of the requests without an answer, in their order.
    answers: mpsc::UnboundedSender<oneshot::Sender<u64>>,
}

impl Trips {
    pub(super) async fn connect(store: SocketAddr, limit: SharedLimit, counters: &str) -> anyhow::Result<Arc<Self>> {
        let stream = TcpStream::connect(store).await.context("connect to Redis")?;
        stream.set_nodelay(true).context("send at once")?;
        let (reads, mut writes) = stream.into_split();
        let mut reads = BufReader::new(reads);
        writes.write_all(&command(&["SCRIPT", "LOAD", SCRIPT])).await.context("load the script")?;
        let mut line = String::new();
        reads.read_line(&mut line).await.context("load the script")?;
        ensure!(line.starts_with('$'), "Redis answered {line}");
        let mut script = String::new();
        reads.read_line(&mut script).await.context("load the script")?;
        let (answers, mut open) = mpsc::unbounded_channel::<oneshot::Sender<u64>>();
        tokio::spawn(async move {
            let mut line = String::new();
            while let Some(answer) = open.recv().await {
                line.clear();
                match reads.read_line(&mut line).await {
                    Ok(1..) => {}
                    _ => return,
                }
                // Another answer than a number drops the sender, so its request is not answered.
                if let Some(count) = line.strip_prefix(':').and_then(|count| count.trim().parse().ok()) {
                    let _ = answer.send(count);
                }
            }
        });
        let writer = Mutex::new(Writer { stream: writes, answers });
        Ok(Arc::new(Self { writer, script: script.trim().to_owned(), limit, counters: counters.to_owned() }))
    }

    /// Whether a request of this key is admitted; none without an answer.
    pub(super) async fn admits(&self, key: &str) -> Option<bool> {
        let key = format!("{}.{key}", self.counters);
        let bytes = command(&["EVALSHA", &self.script, "1", &key, &self.limit.millis.to_string()]);
        let (sender, answer) = oneshot::channel();
        {
            let mut writer = self.writer.lock().await;
            writer.answers.send(sender).ok()?;
            writer.stream.write_all(&bytes).await.ok()?;
        }
        Some(answer.await.ok()? <= self.limit.requests)
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let all: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{all}", words.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lists_of_words() {
        assert_eq!(command(&["SET", "key"]), b"*2\r\n$3\r\nSET\r\n$3\r\nkey\r\n");
    }
}
