//! Against the server of the h2 crate, over transports that cut everything to pieces; and against peers that misbehave.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{Method, StatusCode};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::timeout;

use super::*;
use crate::Reason;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(90);

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { timeout(LONG, work).await.expect("it comes to an end") })
}

fn request<'a>(method: Method, body: Bytes, fields: &'a [(http::HeaderName, &'a [u8])]) -> Request<'a> {
    Request { method, authority: "agent.test", path: "/v1/config", fields, body }
}

fn get() -> Request<'static> {
    request(Method::GET, Bytes::new(), &[])
}

/// Reads and writes at most so many bytes at a time, in turn.
struct Choppy {
    inner: DuplexStream,
    pieces: Vec<usize>,
    turn: usize,
}

impl Choppy {
    fn next(&mut self) -> usize {
        self.turn += 1;
        self.pieces[self.turn % self.pieces.len()]
    }
}

impl AsyncRead for Choppy {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = self.next().min(buf.remaining());
        let mut part = vec![0; most];
        let mut part = ReadBuf::new(&mut part);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut part))?;
        buf.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Choppy {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let most = self.next().min(buf.len());
        Pin::new(&mut self.inner).poll_write(cx, &buf[..most])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// How a server is set up, and how long what it says is.
#[derive(Clone, Debug)]
struct Server {
    window: u32,
    connection_window: u32,
    frame: u32,
    answer: usize,
    trailers: bool,
}

/// Answers what it was sent, and its length, until the client goes away; what it was asked.
async fn serve(server: Server, transport: DuplexStream) -> Vec<(Method, Bytes)> {
    let mut http = h2::server::Builder::new();
    http.initial_window_size(server.window).initial_connection_window_size(server.connection_window);
    http.max_frame_size(server.frame).max_concurrent_streams(1);
    let mut connection = http.handshake::<_, Bytes>(transport).await.unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut answers = futures::stream::FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, mut answer))) = accepted else { break };
                let (server, asked) = (server.clone(), asked.clone());
                answers.push(async move {
                    let (head, mut body) = request.into_parts();
                    let mut read = Vec::new();
                    while let Some(part) = body.data().await {
                        let part = part.unwrap();
                        body.flow_control().release_capacity(part.len()).unwrap();
                        read.extend_from_slice(&part);
                    }
                    let known = head.headers.get(IF_NONE_MATCH).is_some();
                    asked.lock().unwrap().push((head.method, read.into()));
                    let code = if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
                    let response = Response::builder().status(code).header(ETAG, "W/\"a\"").body(()).unwrap();
                    let is_empty = known || server.answer == 0;
                    let mut stream = answer.send_response(response, is_empty).unwrap();
                    if !is_empty {
                        stream.send_data(vec![b'b'; server.answer].into(), !server.trailers).unwrap();
                        if server.trailers {
                            stream.send_trailers([(ETAG, "late".parse().unwrap())].into_iter().collect()).unwrap();
                        }
                    }
                });
            }
            Some(()) = futures::StreamExt::next(&mut answers) => {}
        }
    }
    Arc::into_inner(asked).unwrap().into_inner().unwrap()
}

/// Two questions with a body and one without, over one connection.
async fn converse(server: Server, body: usize, pieces: Vec<usize>, capacity: usize) {
    let (ours, theirs) = duplex(capacity);
    let answered = server.clone();
    let questions = async move {
        let mut connection = Connection::new(Choppy { inner: ours, pieces, turn: 0 });
        for _ in 0..2 {
            let answer = connection.send(request(Method::PUT, vec![b'a'; body].into(), &[])).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(answer.headers()[ETAG], "W/\"a\"");
            assert!(answer.body().len() == answered.answer && answer.body().iter().all(|byte| *byte == b'b'));
        }
        // The same as it comes, and left in the middle.
        let known = [(IF_NONE_MATCH, b"W/\"a\"".as_slice())];
        let whole = request(Method::PUT, vec![b'a'; body].into(), &[]);
        assert_eq!(connection.begin(whole.clone()).await.unwrap().headers()[ETAG], "W/\"a\"");
        let mut read = Vec::new();
        while connection.more(&mut read).await.unwrap() {}
        assert!(read.len() == answered.answer && read.iter().all(|byte| *byte == b'b'));
        assert!(!connection.more(&mut read).await.unwrap(), "it stays at its end");
        assert_eq!(connection.begin(whole).await.unwrap().status(), StatusCode::OK);
        let _ = connection.more(&mut read).await.unwrap();
        let answer = connection.send(request(Method::GET, Bytes::new(), &known)).await.unwrap();
        assert_eq!((answer.status(), answer.body().len()), (StatusCode::NOT_MODIFIED, 0));
        assert!(connection.closed().now_or_never().is_none(), "it is open");
    };
    let (asked, ()) = tokio::join!(serve(server, theirs), questions);
    assert_eq!(asked.len(), 5);
    for (method, read) in &asked[..4] {
        assert!(*method == Method::PUT && read.len() == body && read.iter().all(|byte| *byte == b'a'));
    }
    assert_eq!(asked[4], (Method::GET, Bytes::new()));
}

#[test]
fn a_server_of_another_make_is_understood_byte_by_byte() {
    let server = Server { window: 65_535, connection_window: 65_535, frame: 16_384, answer: 300, trailers: true };
    run(converse(server, 300, vec![1], 1));
}

#[test]
fn the_longest_question_and_the_longest_answer_pass() {
    let server =
        Server { window: 100_000, connection_window: 70_000, frame: 1 << 20, answer: 1 << 20, trailers: false };
    run(converse(server, 1 << 20, vec![usize::MAX], 1 << 16));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_server_of_another_make_is_understood(
        window in 1..80_000_u32,
        connection_window in 65_535..200_000_u32,
        answer in prop_oneof![Just(0_usize), 1..100_000_usize],
        body in prop_oneof![Just(0_usize), 1..2_000_usize, 1..60_000_usize],
        trailers: bool,
        pieces in proptest::collection::vec(1..5_000_usize, 1..8),
        capacity in 1..8_000_usize,
    ) {
        // A window of a byte or two makes a frame of each.
        let body = body.min(window as usize * 500);
        let server = Server { window, connection_window, frame: 16_384, answer, trailers };
        run(converse(server, body, pieces, capacity));
    }
}

/// A peer that says this, bit by bit, and then nothing more, or hangs up.
fn peer(said: &[&[u8]], hangs_up: bool) -> (Connection<DuplexStream>, Option<DuplexStream>) {
    let (ours, mut theirs) = duplex(1 << 16);
    for part in said {
        theirs.write_all(part).now_or_never().expect("there is room").unwrap();
    }
    (Connection::new(ours), (!hangs_up).then_some(theirs))
}

const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const PUSH: &[u8] = &[0, 0, 4, 5, 4, 0, 0, 0, 1, 0, 0, 0, 2];

#[test]
fn an_end_is_noticed_at_rest_and_while_asking() {
    type Expected = fn(&Error) -> bool;
    let closed: Expected = |error| matches!(error, Error::Closed);
    let gone: Expected = |error| matches!(error, Error::GoneAway(Reason::NO_ERROR));
    let not_taken: Expected = |error| matches!(error, Error::NotTaken(Reason::NO_ERROR));
    let broken: Expected = |error| matches!(error, Error::Protocol(_));
    for (what, said, hangs_up, at_rest, asking) in [
        ("a hang-up at once", &[][..], true, closed, None),
        ("a hang-up", &[SETTINGS], true, closed, None),
        ("a goodbye", &[SETTINGS, GOAWAY], false, gone, Some(not_taken)),
        ("nonsense", &[b"HTTP/1.1 400 Bad Request\r\n\r\n"], false, broken, Some(broken)),
        ("a push", &[SETTINGS, PUSH], false, broken, Some(broken)),
    ] {
        let (mut connection, _theirs) = peer(said, hangs_up);
        let error = run(connection.closed());
        // A peer that closed cannot be written to either.
        assert!(at_rest(&error) || (hangs_up && matches!(error, Error::Io(_))), "{what}: {error:?}");
        assert!(connection.send(get()).now_or_never().expect("it is over").is_err(), "{what}");
        let (mut connection, _theirs) = peer(said, hangs_up);
        let error = run(connection.send(get())).unwrap_err();
        assert!(asking.is_none_or(|asking| asking(&error)), "{what}: {error:?}");
    }
}

#[test]
fn a_peer_that_breaks_the_protocol_is_told() {
    let (mut connection, theirs) = peer(&[SETTINGS, PUSH], false);
    run(async {
        assert!(matches!(connection.send(get()).await, Err(Error::Protocol(_))));
        drop(connection);
        let mut heard = Vec::new();
        theirs.unwrap().read_to_end(&mut heard).await.unwrap();
        let goaway = [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &[0; 7], &[1]].concat();
        assert!(heard.ends_with(&goaway), "{heard:?}");
    });
}

#[test]
fn a_question_that_nobody_waits_for_is_given_up() {
    let (mut connection, theirs) = peer(&[SETTINGS], false);
    run(async {
        assert!(connection.send(get()).now_or_never().is_none());
        // It is answered when nobody asks any more.
        let answer: &[u8] = &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
        let mut theirs = theirs.unwrap();
        theirs.write_all(answer).await.unwrap();
        assert!(connection.closed().now_or_never().is_none(), "it is open");
        theirs.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, 3, 0x8b]).await.unwrap();
        assert!(connection.closed().now_or_never().is_some(), "an answer to a question that was not asked");

        let (mut connection, theirs) = peer(&[SETTINGS], false);
        assert!(connection.send(get()).now_or_never().is_none());
        let mut theirs = theirs.unwrap();
        let answers = async {
            theirs.write_all(answer).await.unwrap();
            theirs.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, 3, 0x8b]).await.unwrap();
        };
        let (status, ()) = tokio::join!(connection.send(get()).map(|answer| answer.unwrap().status()), answers);
        assert_eq!(status, StatusCode::NOT_MODIFIED, "the second one's");
    });
}

/// Fails to write, and has something to read, as after a TLS alert.
struct Alerting {
    to_read: VecDeque<io::Error>,
}

impl AsyncRead for Alerting {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.to_read.pop_front().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }
}

impl AsyncWrite for Alerting {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn why_somebody_hung_up_is_read_before_what_cannot_be_written() {
    for (to_read, expected) in [
        (vec![io::Error::new(io::ErrorKind::InvalidData, "an alert")], io::ErrorKind::InvalidData),
        (vec![], io::ErrorKind::BrokenPipe),
    ] {
        let mut connection = Connection::new(Alerting { to_read: to_read.into() });
        let error = connection.send(get()).now_or_never().expect("it is over").unwrap_err();
        assert!(matches!(&error, Error::Io(cause) if cause.kind() == expected), "{error:?}");
    }
}
