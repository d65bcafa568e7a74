//! Tests an app whose response never ends. The worker serves other requests in the meantime, and the connection to the
//! app ends with the request.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use http::Request;
use tokio::{sync::mpsc, time::timeout};

use crate::support::{Agent, PATIENCE, empty};

/// The most bytes that the agent reads of the endless response during a few other requests. Without turns, it reads
/// gigabytes before it looks at another socket.
const MOST: u64 = 256 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Began,
    /// The agent has closed the connection.
    Ended,
}

/// An app with threads of its own, so that it sends as fast as the agent reads.
struct EndlessApp {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl EndlessApp {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (tell, events) = mpsc::unbounded_channel();
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (tell, count) = (tell.clone(), Arc::clone(&count));
                thread::spawn(move || answer(&stream.expect("accepted"), &tell, &count));
            }
        });
        Self { address, sent, events }
    }

    async fn until(&mut self, event: Event) {
        let next = timeout(PATIENCE, self.events.recv()).await;
        assert_eq!(next, Ok(Some(event)));
    }
}

/// Answers requests until one asks for an endless response.
fn answer(mut stream: &TcpStream, tell: &mpsc::UnboundedSender<Event>, count: &AtomicU64) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(first)) = lines.next() {
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let (head, piece) = match first.split(' ').nth(1) {
            Some("/interim") => ("", "HTTP/1.1 102 Processing\r\n\r\n"),
            Some("/size") => ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "0"),
            _ => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("sent");
                continue;
            }
        };
        stream.write_all(head.as_bytes()).expect("sent");
        tell.send(Event::Began).expect("the test waits");
        let pieces = piece.repeat(64 * 1024 / piece.len());
        while stream.write_all(pieces.as_bytes()).is_ok() {
            count.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        }
        // The test ends after the last event.
        let _ = tell.send(Event::Ended);
        return;
    }
}

#[tokio::test]
async fn a_response_without_an_end_does_not_stop_other_requests() {
    for path in ["/interim", "/size"] {
        let mut app = EndlessApp::start();
        let agent = Agent::start(app.address, &["--workers", "1", "--upstream-http2", "never"]);
        // HTTP/2 never takes the short path.
        let mut sender = agent.http2().await;
        let request = Request::get(format!("http://a{path}")).body(empty()).expect("valid");
        let endless = tokio::spawn(sender.send_request(request));
        app.until(Event::Began).await;
        let before = app.sent.load(Ordering::Relaxed);
        let statuses = timeout(PATIENCE, agent.statuses("/", &[], 5)).await;
        assert_eq!(statuses.expect("before the timeout"), [200; 5], "{path}");
        let sent = app.sent.load(Ordering::Relaxed) - before;
        assert!(sent < MOST, "{path}: the agent read {sent} bytes during five requests");
        endless.abort();
        drop((endless, sender));
        app.until(Event::Ended).await;
    }
}
