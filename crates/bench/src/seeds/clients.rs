//! Open-loop clients over HTTP.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, runtime::Runtime};

use crate::{
    open_loop::{self, Ended},
    stats::float,
};

/// How long requests of one contender took, sorted.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) served: Vec<Duration>,
    /// Refused by the limiter.
    pub(super) refused: Vec<Duration>,
    /// Given up by the app.
    pub(super) timed_out: Vec<Duration>,
    /// Not answered, or with another status.
    pub(super) broken: usize,
    /// From the first request to the last answer of the app.
    pub(super) lasting: Duration,
}

impl Answers {
    fn of(requests: Vec<Ended<anyhow::Result<StatusCode>>>) -> Self {
        let mut answers = Self::default();
        let first = requests.iter().map(|ended| ended.started).min();
        for Ended { result, started, took } in requests {
            let times = match result {
                Ok(StatusCode::OK) => &mut answers.served,
                Ok(StatusCode::GATEWAY_TIMEOUT) => &mut answers.timed_out,
                Ok(StatusCode::TOO_MANY_REQUESTS) => {
                    answers.refused.push(took);
                    continue;
                }
                Ok(_) | Err(_) => {
                    answers.broken += 1;
                    continue;
                }
            };
            times.push(took);
            let ended = first.map_or(Duration::ZERO, |first| started + took - first);
            answers.lasting = answers.lasting.max(ended);
        }
        for times in [&mut answers.served, &mut answers.refused, &mut answers.timed_out] {
            times.sort();
        }
        answers
    }

    pub(super) fn failed(&self) -> Vec<Duration> {
        sorted(&[&self.refused, &self.timed_out])
    }

    pub(super) fn all(&self) -> Vec<Duration> {
        sorted(&[&self.served, &self.refused, &self.timed_out])
    }

    /// The share that was served, in percent.
    pub(super) fn success(&self) -> f64 {
        let all = self.served.len() + self.refused.len() + self.timed_out.len() + self.broken;
        100.0 * float(self.served.len()) / float(all).max(1.0)
    }
}

fn sorted(parts: &[&[Duration]]) -> Vec<Duration> {
    let mut all = parts.concat();
    all.sort();
    all
}

/// Sends requests over connections that it keeps, each in turn. It opens one more if all are busy.
#[derive(Clone)]
pub(crate) struct OpenLoopClient {
    address: SocketAddr,
    path: &'static str,
    /// The header with the key of a request, and its values, which the requests have in turn.
    header: HeaderName,
    keys: Arc<[HeaderValue]>,
    sent: Arc<AtomicUsize>,
    idle: Arc<Mutex<VecDeque<SendRequest<Empty<Bytes>>>>>,
}

impl OpenLoopClient {
    /// Every request has the key 0 in the header `x-key`, until [`use_keys`](Self::use_keys) gives other keys.
    pub(crate) fn new(address: SocketAddr, path: &'static str) -> Self {
        let (header, keys) = (HeaderName::from_static("x-key"), [HeaderValue::from_static("0")].into());
        Self { address, path, header, keys, sent: Arc::default(), idle: Arc::default() }
    }

    /// Gives further requests these keys in turn, in this header.
    pub(super) fn use_keys(&mut self, header: &str, keys: impl Iterator<Item = String>) -> anyhow::Result<()> {
        self.header = header.parse().with_context(|| format!("{header} is no name of a header"))?;
        let value = |key: String| HeaderValue::from_str(&key).with_context(|| format!("{key} is no value of a header"));
        self.keys = keys.map(value).collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    /// Opens this many connections.
    pub(super) async fn open(&self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            let connection = self.connect().await.with_context(|| format!("connect to {}", self.address))?;
            self.put_back(connection);
        }
        Ok(())
    }

    /// Sends a request. Returns the status of the response.
    pub(crate) async fn get(&self) -> anyhow::Result<StatusCode> {
        // Closed ones are dropped.
        let idle = std::iter::from_fn(|| self.pop()).find(|connection| !connection.is_closed());
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.ready().await?;
        let key = &self.keys[self.sent.fetch_add(1, Relaxed) % self.keys.len()];
        let request =
            Request::get(self.path).header(http::header::HOST, "app").header(&self.header, key).body(Empty::new())?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        self.put_back(connection);
        Ok(status)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// The connection that has been idle for the longest time.
    fn pop(&self) -> Option<SendRequest<Empty<Bytes>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn put_back(&self, connection: SendRequest<Empty<Bytes>>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push_back(connection);
    }
}

/// Sends the same arrivals to all clients.
pub(super) fn run_step(runtime: &Runtime, clients: &[OpenLoopClient], rate: u32, length: Duration) -> Vec<Answers> {
    let calls = clients.iter().map(|client| {
        move || {
            let client = client.clone();
            async move { client.get().await }
        }
    });
    let results = open_loop::run_step(runtime, &calls.collect::<Vec<_>>(), rate, length);
    results.into_iter().map(Answers::of).collect()
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::{
        super::levels::app::{self, AT_ONCE},
        *,
    };

    #[test]
    fn every_request_is_counted_once() {
        let [address] = app::start().expect("a free port");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let clients = [OpenLoopClient::new(address, "/"), OpenLoopClient::new(address, AT_ONCE)];
        let answers = run_step(&runtime, &clients, 200, Duration::from_millis(100));
        assert_eq!(answers.iter().map(|answers| answers.served.len()).collect::<Vec<_>>(), [20, 20]);
        assert!(answers[0].served[0] >= Duration::from_millis(24), "a slot is busy for 25 ms");
        assert!((answers[0].success() - 100.0).abs() < 1e-9);
        assert_eq!(answers[1].broken, 0);
    }

    #[test]
    fn an_app_that_is_gone_breaks_requests() {
        let address = crate::proxy::free_address().expect("a free port");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let answers = run_step(&runtime, &[OpenLoopClient::new(address, "/")], 100, Duration::from_millis(50));
        assert_eq!((answers[0].broken, answers[0].served.len()), (5, 0));
    }
}
