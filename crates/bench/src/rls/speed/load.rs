//! A client of the rate limit service that does as little as it can for each question, so that one core of it keeps a
//! service busy. It writes frames of HTTP/2 itself. The first question of a connection puts its headers into the table
//! of HPACK, and the others refer to them, as the clients of gRPC do. It reads no headers of answers: an answer without
//! a message has no code, and counts as a failure.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, BufMut as _, BytesMut};
use futures::future::try_join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep_until, timeout},
};

use super::super::messages::Code;
use crate::clock;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The window of a connection before the first update.
const FIRST_WINDOW: u32 = 65_535;
const WINDOW: u32 = (1 << 31) - 1;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;
const FRAME_HEAD: usize = 9;
/// The flag and the length in front of a message of gRPC.
const MESSAGE_HEAD: usize = 5;
/// The time for the answers to the last questions.
const PATIENCE: Duration = Duration::from_secs(10);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Also the flag of an acknowledgement.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// When to send the next question.
#[derive(Clone, Copy)]
pub(super) enum Pace {
    /// This number of questions is in flight on each connection.
    InFlight(usize),
    /// This number of questions a second, of all connections together, whether answers arrive or not.
    Rate(u32),
}

/// How a service is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Envoy's rate limit service v3.
    Envoy,
    /// Gubernator's own service, with one limit in each question.
    Gubernator,
}

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Self::Envoy => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Self::Gubernator => "/pb.gubernator.V1/GetRateLimits",
        }
    }

    /// The code of a response; none for one that this cannot read.
    fn code(self, response: &[u8]) -> Option<Code> {
        match (self, response) {
            // Its first field is the code.
            (Self::Envoy, [0x08, code, ..]) => Code::try_from(i32::from(*code)).ok(),
            // The first field of its first limit is the status, unless that is 0, and the second one the limit, which an
            // error does not have.
            (Self::Gubernator, [0x0a, _, 0x08, 1, ..]) => Some(Code::OverLimit),
            (Self::Gubernator, [0x0a, _, 0x10, ..]) => Some(Code::Ok),
            _ => None,
        }
    }
}

/// A load on a service.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    /// Of its replicas, which get the same number of connections.
    pub(super) addresses: &'a [SocketAddr],
    pub(super) protocol: Protocol,
    /// The questions as messages of gRPC, which take turns.
    pub(super) questions: &'a [Vec<u8>],
    /// The code that every answer must have. None if both codes are right.
    pub(super) expected: Option<Code>,
    pub(super) pace: Pace,
    pub(super) connections: usize,
    pub(super) length: Duration,
}

/// What came back.
#[derive(Default)]
pub(super) struct Answers {
    /// From the moment at which a question is written until its answer is complete, in ascending order.
    pub(super) latencies: Vec<Duration>,
    /// The questions that were answered with [`Code::Ok`].
    pub(super) admitted: usize,
    /// From the first question to the last answer.
    pub(super) took: Duration,
}

/// The message of a question, with the head that gRPC puts in front of it.
pub(super) fn message(request: &impl prost::Message) -> Vec<u8> {
    let body = request.encode_to_vec();
    let mut message = vec![0];
    message.put_u32(u32::try_from(body.len()).expect("a small question"));
    message.extend(body);
    message
}

impl Load<'_> {
    /// Asks, and fails unless every answer has the expected code.
    pub(super) async fn run(self) -> anyhow::Result<Answers> {
        let ready = (0..self.connections).map(|number| Connection::open(self, number));
        let ready = try_join_all(ready).await?;
        let begun = clock::now();
        let answered = ready.into_iter().map(|connection| connection.drive(begun));
        let answered = timeout(self.length + PATIENCE, try_join_all(answered)).await.context("no answer")??;
        let took = clock::since(begun);
        let admitted = answered.iter().map(|(_, admitted)| admitted).sum();
        let mut latencies: Vec<_> = answered.into_iter().flat_map(|(latencies, _)| latencies).collect();
        latencies.sort();
        Ok(Answers { latencies, admitted, took })
    }
}

struct Call {
    sent: std::time::Instant,
    code: Option<Code>,
}

struct Connection<'a> {
    load: Load<'a>,
    number: usize,
    stream: TcpStream,
    calls: Vec<Call>,
    /// The calls without an answer.
    in_flight: usize,
    latencies: Vec<Duration>,
    admitted: usize,
    received: BytesMut,
    to_send: Vec<u8>,
    /// The bytes that the service accepts on this connection.
    window: i64,
}

impl<'a> Connection<'a> {
    async fn open(load: Load<'a>, number: usize) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(load.addresses[number % load.addresses.len()]).await.context("connect")?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let mut to_send = PREFACE.to_vec();
        frame(&mut to_send, SETTINGS, 0, 0, |payload| {
            payload.put_u16(SETTINGS_INITIAL_WINDOW_SIZE);
            payload.put_u32(WINDOW);
        });
        frame(&mut to_send, WINDOW_UPDATE, 0, 0, |payload| payload.put_u32(WINDOW - FIRST_WINDOW));
        let received = BytesMut::with_capacity(1 << 16);
        Ok(Self {
            load,
            number,
            stream,
            calls: Vec::new(),
            in_flight: 0,
            latencies: Vec::new(),
            admitted: 0,
            received,
            to_send,
            window: FIRST_WINDOW.into(),
        })
    }

    /// Asks until the load has ended and all answers are there. Returns the latencies, and how many were admitted.
    async fn drive(mut self, begun: std::time::Instant) -> anyhow::Result<(Vec<Duration>, usize)> {
        let end = begun + self.load.length;
        let connections = u32::try_from(self.load.connections).context("many connections")?;
        let (mut next, mut interval) = (begun, Duration::ZERO);
        if let Pace::Rate(rate) = self.load.pace {
            // The connections take turns, so that the questions do not arrive in bursts.
            interval = Duration::from_secs(1) * connections / rate;
            next += Duration::from_secs(1) * u32::try_from(self.number).context("a connection")? / rate;
        }
        loop {
            let now = clock::now();
            let waits_until = match self.load.pace {
                Pace::InFlight(count) => {
                    while now < end && self.in_flight < count {
                        self.call()?;
                    }
                    (now < end).then_some(end)
                }
                Pace::Rate(_) => {
                    while next <= now && next < end {
                        self.call()?;
                        next += interval;
                    }
                    (next < end).then_some(next)
                }
            };
            if !self.to_send.is_empty() {
                self.stream.write_all(&self.to_send).await.context("send questions")?;
                self.to_send.clear();
            }
            let Some(at) = waits_until else {
                if self.in_flight == 0 {
                    return Ok((self.latencies, self.admitted));
                }
                self.receive().await?;
                continue;
            };
            tokio::select! {
                received = self.stream.read_buf(&mut self.received) => {
                    ensure!(received.context("receive answers")? > 0, "the service closed a connection");
                    self.read_frames()?;
                }
                () = sleep_until(at.into()) => {}
            }
        }
    }

    async fn receive(&mut self) -> anyhow::Result<()> {
        let received = self.stream.read_buf(&mut self.received).await.context("receive answers")?;
        ensure!(received > 0, "the service closed a connection");
        self.read_frames()
    }

    fn call(&mut self) -> anyhow::Result<()> {
        let id = u32::try_from(self.calls.len() * 2 + 1).context("a stream")?;
        let is_first = self.calls.is_empty();
        let host = self.load.addresses[0].to_string();
        frame(&mut self.to_send, HEADERS, END_HEADERS, id, |block| {
            // `:method: POST` and `:scheme: http` are in the static table.
            block.extend([0x83, 0x86]);
            if is_first {
                // The names of the first three are in the static table, too.
                for (name, value) in [(4, self.load.protocol.path()), (1, &*host), (31, "application/grpc")] {
                    block.push(0x40 | name);
                    text(block, value);
                }
                block.push(0x40);
                text(block, "te");
                text(block, "trailers");
            } else {
                // The four entries of the dynamic table, the oldest first.
                block.extend([65, 64, 63, 62].map(|entry: u8| 0x80 | entry));
            }
        });
        // The stride is a prime number, so the connections ask all questions, and not in step.
        let questions = self.load.questions;
        let question = &questions[(self.calls.len() * 7_919 + self.number * 104_729) % questions.len()];
        frame(&mut self.to_send, DATA, END_STREAM, id, |payload| payload.extend(question));
        self.window -= i64::try_from(question.len()).context("a long question")?;
        ensure!(self.window >= 0, "the service does not read the questions");
        self.calls.push(Call { sent: clock::now(), code: None });
        self.in_flight += 1;
        Ok(())
    }

    /// Reads the frames that are complete.
    fn read_frames(&mut self) -> anyhow::Result<()> {
        while let Some(head) = self.received.first_chunk::<FRAME_HEAD>() {
            let [a, b, c, kind, flags, stream @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if self.received.len() < FRAME_HEAD + length {
                break;
            }
            self.received.advance(FRAME_HEAD);
            let payload = self.received.split_to(length);
            self.read_frame(kind, flags, u32::from_be_bytes(stream), &payload)?;
        }
        Ok(())
    }

    fn read_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> anyhow::Result<()> {
        match kind {
            DATA | HEADERS => {
                let call = self.calls.get_mut(stream as usize / 2).context("an answer to no question")?;
                if kind == DATA && !payload.is_empty() {
                    ensure!(flags & PADDED == 0 && payload.len() > MESSAGE_HEAD, "a frame that this cannot read");
                    call.code = self.load.protocol.code(&payload[MESSAGE_HEAD..]);
                }
                if flags & END_STREAM != 0 {
                    let code = call.code.context("an answer without a code")?;
                    let expected = self.load.expected.unwrap_or(code);
                    ensure!(code == expected, "the code {code:?} instead of {expected:?}");
                    self.admitted += usize::from(code == Code::Ok);
                    self.latencies.push(clock::since(call.sent));
                    self.in_flight -= 1;
                }
            }
            SETTINGS if flags & ACK == 0 => frame(&mut self.to_send, SETTINGS, ACK, 0, |_| {}),
            PING if flags & ACK == 0 => frame(&mut self.to_send, PING, ACK, 0, |pong| pong.extend(payload)),
            WINDOW_UPDATE if stream == 0 => {
                let more = payload.first_chunk().context("a short update")?;
                self.window += i64::from(u32::from_be_bytes(*more));
            }
            RST_STREAM | GOAWAY => bail!("the service ended a stream or a connection: {payload:?}"),
            _ => {}
        }
        Ok(())
    }
}

/// Appends a frame.
fn frame(buffer: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend([0, 0, 0, kind, flags]);
    buffer.put_u32(stream);
    payload(buffer);
    let length = u32::try_from(buffer.len() - start - FRAME_HEAD).expect("a small frame");
    buffer[start..start + 3].copy_from_slice(&length.to_be_bytes()[1..]);
}

/// Appends a text of HPACK without Huffman's code.
fn text(block: &mut Vec<u8>, value: &str) {
    block.push(u8::try_from(value.len()).ok().filter(|length| *length < 127).expect("a short text"));
    block.extend(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};
    use hyper::{body::Incoming, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use prost::Message as _;
    use tokio::net::TcpListener;

    use super::{
        super::super::messages::{Descriptor, Entry, Request, Response},
        *,
    };

    fn question(value: &str) -> Request {
        let entry = Entry { key: "client".to_owned(), value: value.to_owned() };
        let descriptor = Descriptor { entries: vec![entry], hits_addend: None };
        Request { domain: "bench".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
    }

    /// Hyper reads our frames, and refuses the second value.
    async fn serve(seen: Arc<AtomicUsize>) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let answer = move |request: http::Request<Incoming>| {
            let seen = Arc::clone(&seen);
            async move {
                assert_eq!((request.method().as_str(), request.uri().path()), ("POST", Protocol::Envoy.path()));
                assert_eq!(request.headers()["content-type"], "application/grpc");
                let body = request.into_body().collect().await?.to_bytes();
                let asked = Request::decode(&body[MESSAGE_HEAD..]).expect("a question");
                let code = if asked == question("two") { Code::OverLimit } else { Code::Ok };
                seen.fetch_add(1, Relaxed);
                let answer = Response { overall_code: code.into(), statuses: Vec::new() };
                let answer = [&[0; MESSAGE_HEAD][..], &answer.encode_to_vec()].concat();
                Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::from(answer))))
            }
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(answer.clone())));
            }
        });
        Ok(address)
    }

    #[tokio::test]
    async fn every_question_is_answered_and_another_code_is_an_error() -> anyhow::Result<()> {
        let seen = Arc::new(AtomicUsize::default());
        let address = serve(Arc::clone(&seen)).await?;
        let [one, two] = ["one", "two"].map(|value| message(&question(value)));
        let load = |questions, expected, pace| Load {
            addresses: std::slice::from_ref(&address),
            protocol: Protocol::Envoy,
            questions,
            expected: Some(expected),
            pace,
            connections: 2,
            length: Duration::from_millis(100),
        };
        let both = [one.clone(), two.clone()];
        let answers = load(&both[..1], Code::Ok, Pace::InFlight(3)).run().await?;
        assert!(answers.latencies.len() >= 6 && answers.latencies.is_sorted(), "{}", answers.latencies.len());
        assert_eq!(answers.latencies.len(), seen.swap(0, Relaxed));
        // 100 questions a second for a tenth of a second, half of them on each connection.
        let answers = load(&both[1..], Code::OverLimit, Pace::Rate(100)).run().await?;
        assert_eq!((answers.latencies.len(), seen.load(Relaxed)), (10, 10));
        assert!(load(&both, Code::Ok, Pace::InFlight(1)).run().await.is_err());
        let any = Load { expected: None, ..load(&both, Code::Ok, Pace::Rate(100)) }.run().await?;
        assert_eq!((any.latencies.len(), any.admitted), (10, 5));
        Ok(())
    }
}
