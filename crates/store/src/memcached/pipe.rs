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

use super::codec::{Garbled, Response, response, version};

/// The first version whose `ms` has the syntax of this crate.
const OLDEST: [u32; 3] = [1, 6, 10];

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
    /// Opens a connection, and checks the version of the server.
    pub(super) async fn open(endpoint: String) -> Result<Self, StoreError> {
        let opened = timeout(PATIENCE, TcpStream::connect(&endpoint)).await;
        let stream = opened.map_err(|_| StoreError::Late)?.map_err(|error| StoreError::Lost(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| StoreError::Lost(error.to_string()))?;
        let (reader, writer) = stream.into_split();
        let (calls, waiting) = mpsc::channel(MOST_WAITING);
        let (sent, callers) = mpsc::channel(MOST_WAITING);
        tokio::spawn(write(writer, waiting, sent));
        tokio::spawn(read(reader, callers));
        let pipe = Self { calls };
        match pipe.call(version()).await? {
            Response::Version(version) if is_too_old(&version) => {
                let [major, minor, patch] = OLDEST;
                let text = format!("Memcached {version} is too old: {major}.{minor}.{patch} or later is required");
                Err(StoreError::Refused(text))
            }
            Response::Version(_) => Ok(pipe),
            Response::Failed(text) => Err(StoreError::Refused(text)),
            _ => Err(StoreError::Garbled),
        }
    }

    /// Sends a command, and waits for its response.
    pub(super) async fn call(&self, command: Vec<u8>) -> Result<Response, StoreError> {
        let (caller, answer) = oneshot::channel();
        let lost = || StoreError::Lost("the connection was closed".to_owned());
        self.calls.send((command, caller)).await.map_err(|_| lost())?;
        answer.await.map_err(|_| lost())
    }
}

/// Returns true for a version before [`OLDEST`]. A version in another form may be that of a proxy.
fn is_too_old(version: &str) -> bool {
    let number = |part: &str| part.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok();
    let numbers: Option<Vec<u32>> = version.splitn(3, '.').map(number).collect();
    numbers.is_some_and(|numbers| numbers.len() == 3 && numbers[..] < OLDEST[..])
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
/// the connection, stalls, violates the protocol, or does not understand a command.
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
        let is_last = found.loses_order();
        let _ = caller.send(found);
        if is_last {
            return;
        }
        if !buffer.is_empty() && callers.is_empty() {
            // The server sent a response without a command, so responses no longer match commands.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncBufReadExt as _, BufReader},
        net::TcpListener,
        task::JoinSet,
    };

    use super::{
        super::codec::{WriteIf, get, set},
        *,
    };

    /// A server older than Memcached 1.6.10. It does not know the command `ms`, and reads the data after it as another
    /// command. The value of a key is its name.
    async fn server(version: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (reader, mut writer) = stream.into_split();
                    let mut lines = BufReader::new(reader).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
                            ("version", _) => format!("VERSION {version}\r\n"),
                            ("mg", rest) => {
                                let key = rest.split(' ').next().unwrap_or_default();
                                format!("VA {} c1\r\n{key}\r\n", key.len())
                            }
                            ("ms", _) => "CLIENT_ERROR bad data chunk\r\n".to_owned(),
                            _ => "ERROR\r\n".to_owned(),
                        };
                        if writer.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        endpoint
    }

    #[tokio::test]
    async fn an_old_server_is_refused() {
        for (version, is_refused) in
            [("1.5.16", true), ("1.6.9", true), ("1.6.9_2", true), ("1.6.10", false), ("1.10.0", false), ("2", false)]
        {
            let opened = Pipe::open(server(version).await).await.map(drop);
            let text = format!("Memcached {version} is too old: 1.6.10 or later is required");
            let expected = if is_refused { Err(StoreError::Refused(text)) } else { Ok(()) };
            assert_eq!(opened, expected, "{version}");
        }
    }

    #[tokio::test]
    async fn no_caller_gets_the_response_to_another_command() {
        let endpoint = server("1.6.18").await;
        for broken in 0..20 {
            let pipe = Pipe::open(endpoint.clone()).await.expect("a connection");
            let mut calls = JoinSet::new();
            for index in 0..40 {
                let pipe = pipe.clone();
                calls.spawn(async move {
                    let key = format!("key{index}");
                    if index == broken {
                        let failed = pipe.call(set(&key, b"data", WriteIf::Missing, 9)).await;
                        let text = "CLIENT_ERROR bad data chunk".to_owned();
                        assert_eq!(failed, Ok(Response::Failed(text)));
                        return;
                    }
                    match pipe.call(get(&key)).await {
                        Ok(Response::Value { data, .. }) => assert_eq!(data, key.as_bytes()),
                        other => assert!(matches!(other, Err(StoreError::Lost(_))), "{other:?}"),
                    }
                });
            }
            while let Some(done) = calls.join_next().await {
                done.expect("its own response, or none");
            }
        }
    }
}
