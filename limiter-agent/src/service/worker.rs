//! One worker of the rate limit service: a thread with its own runtime and listener.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::{Router, body::Body};
use http_body_util::BodyExt;
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::SetOnce,
    time::{MissedTickBehavior, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;
use weir_client::agent::{ConnectionSlot, Rank, Requests, close_listener};

use super::{
    RateLimitService,
    call::{Call, HeldBody, SEND_BUFFER, TIMEOUT, WINDOW},
    is_grpc,
    joined::Joined,
    late, quota, router,
};
use crate::{open_files::Shortage, resets::max_pending_resets};

/// The interval at which the service tests whether the process has descriptors for more connections again.
const GROWTH: Duration = Duration::from_secs(1);

/// The time limit for the head of a request of HTTP/1.1, and for an answer to a ping of HTTP/2.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);

/// The time limit for the first question on a connection after the beginning of the drain.
const FIRST_QUESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which the service pings a silent HTTP/2 client.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// The maximum size of the headers of a question.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Serves connections of one listener, in this thread, until the drain has ended.
///
/// # Errors
///
/// Returns an error if the runtime or the listener cannot be created.
pub(crate) fn serve_questions(listener: TcpListener, service: &Arc<RateLimitService>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let router = router(Arc::clone(service));
        let tasks = TaskTracker::new();
        let start = |stream, peer: SocketAddr| {
            // If there is no free slot, an idle connection is evicted. `None` if all candidates have got questions at
            // the same moment. Then this connection is closed, and the client tries again.
            let slot = service.slots.try_take(peer.ip().to_canonical(), Rank::Idle, service.clock.now());
            let Some(slot) = slot else { return };
            tasks.spawn(connection(stream, Arc::clone(service), router.clone(), slot));
        };
        let shortage = Shortage::default();
        let mut growth = tokio::time::interval(GROWTH);
        growth.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        shortage.accepted(&stream, &service.slots, service.clock.now());
                        start(stream, peer);
                    }
                    Err(error) => {
                        let pause = shortage.failed(&error, &service.slots, service.clock.now());
                        tokio::time::sleep(pause).await;
                    }
                },
                _ = growth.tick() => service.slots.grow(),
                () = service.drain.cancelled() => break,
            }
        }
        // The kernel has completed the handshakes of the connections in the queue, so they are served, too.
        for (stream, peer) in close_listener(listener) {
            start(stream, peer);
        }
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = service.abort.cancelled() => {}
        }
        Ok(())
    })
}

/// Serves one connection until the client closes it, or the drain has ended.
async fn connection(stream: TcpStream, service: Arc<RateLimitService>, router: Router, slot: ConnectionSlot) {
    service.accepted.fetch_add(1, Relaxed);
    service.connections.fetch_add(1, Relaxed);
    // If this call fails, only the delay of Nagle's algorithm remains.
    let _ = stream.set_nodelay(true);
    let requests = Requests::new(slot, service.clock);
    let serve = async {
        match &service.tls {
            None => http(stream, &service, router, &requests).await,
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => http(stream, &service, router, &requests).await,
                Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
            },
        }
    };
    tokio::select! {
        () = serve => {}
        () = requests.evicted() => tracing::debug!("the connection was evicted for a new one"),
    }
    service.connections.fetch_sub(1, Relaxed);
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: &RateLimitService,
    router: Router,
    requests: &Arc<Requests>,
) {
    let requests = Arc::clone(requests);
    let is_asked = Arc::new(SetOnce::new());
    let asked = Arc::clone(&is_asked);
    let answering = tower::service_fn(move |request: Request<Incoming>| {
        if !asked.initialized() {
            // Only an earlier question on this connection can have set it.
            let _ = asked.set(());
        }
        let (call, is_grpc) = (Call::new(&requests), is_grpc(&request));
        let request = if request.uri().path() == quota::PATH {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Arc::clone(&call));
            request
        } else {
            request.map(|body| Body::new(HeldBody::new(body, Arc::clone(&call))))
        };
        let answer = timeout(TIMEOUT, router.clone().oneshot(request));
        async move {
            // A quota stream is open until its response ends.
            let held = move |frame| {
                let _ = &call;
                frame
            };
            let Ok(answer) = answer.await.unwrap_or_else(|_elapsed| Ok(late(is_grpc)));
            Ok::<_, Infallible>(answer.map(|body| body.map_frame(held)))
        }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEADER_BYTES as usize);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(service.max_streams)
        .max_pending_accept_reset_streams(max_pending_resets(service.max_streams))
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(HEAD_TIMEOUT);
    let connection = server.serve_connection(TokioIo::new(Joined(stream)), TowerToHyperService::new(answering));
    finish(connection, &service.drain, &is_asked).await;
}

/// Drives a connection. After the beginning of the drain, it answers the questions in flight and ends.
///
/// A client can have connected just before the drain, with its first question on the way. The server would drop a
/// connection whose protocol it does not know yet without an answer, so it waits for the first question.
async fn finish<C>(connection: C, drain: &CancellationToken, is_asked: &SetOnce<()>)
where
    C: hyper_util::server::graceful::GracefulConnection,
    C::Error: std::fmt::Display,
{
    let mut connection = std::pin::pin!(connection);
    let may_end = async {
        drain.cancelled().await;
        let _ = timeout(FIRST_QUESTION_TIMEOUT, is_asked.wait()).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = may_end => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        pin::Pin,
        sync::atomic::{AtomicBool, AtomicUsize},
        task,
    };

    use axum::{
        body::Bytes,
        http::{Response, header::CONTENT_TYPE},
    };
    use hyper::{
        client::conn::http2::{Builder, handshake},
        service::service_fn,
    };
    use prost::Message as _;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
        time::sleep,
    };
    use weir_enforce::{AmbiguousPaths, GateOptions, LiveRules};
    use weir_tower::MonotonicClock;

    use super::*;
    use crate::{
        clock,
        service::{
            PATH,
            messages::{Entry, RateLimitDescriptor, RateLimitRequest},
        },
    };

    /// Serves one connection without rules, and returns the client's side.
    fn connect() -> DuplexStream {
        serve().0
    }

    /// As [`connect`], with the service.
    fn serve() -> (DuplexStream, Arc<RateLimitService>) {
        serve_counted(&Arc::default())
    }

    /// As [`serve`], with the number of writes.
    fn serve_counted(writes: &Arc<AtomicUsize>) -> (DuplexStream, Arc<RateLimitService>) {
        let clock = MonotonicClock::start();
        let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Keep, log_keys: false });
        let service = Arc::new(RateLimitService::new(rules, clock, None, (4, 16)));
        let slot = service.slots.try_take(Ipv4Addr::LOCALHOST.into(), Rank::Idle, clock.now());
        let requests = Requests::new(slot.expect("a free slot"), clock);
        let (client, stream) = duplex(64 * 1024);
        let (served, stream) =
            (Arc::clone(&service), TestStream { stream, is_stopped: Arc::default(), writes: Arc::clone(writes) });
        tokio::spawn(async move { http(stream, &served, router(Arc::clone(&served)), &requests).await });
        (client, service)
    }

    /// A stream that can stop to read, counts its writes, and can write several buffers in one, as a socket can.
    struct TestStream {
        stream: DuplexStream,
        is_stopped: Arc<AtomicBool>,
        writes: Arc<AtomicUsize>,
    }

    impl AsyncRead for TestStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut task::Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> task::Poll<io::Result<()>> {
            if self.is_stopped.load(Relaxed) {
                task::Poll::Pending
            } else {
                Pin::new(&mut self.stream).poll_read(cx, buffer)
            }
        }
    }

    impl AsyncWrite for TestStream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut task::Context<'_>,
            bytes: &[u8],
        ) -> task::Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Relaxed);
            Pin::new(&mut self.stream).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut task::Context<'_>,
            buffers: &[io::IoSlice<'_>],
        ) -> task::Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Relaxed);
            Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(cx)
        }
    }

    /// A report of buckets whose names have 4,000 bytes, after its prefix in gRPC.
    fn report(buckets: std::ops::Range<usize>) -> Bytes {
        let field = |tag: u8, value: &[u8]| {
            let mut bytes = vec![tag << 3 | 2];
            prost::encode_length_delimiter(value.len(), &mut bytes).unwrap();
            [&bytes, value].concat()
        };
        let usage = |number: usize| {
            let entry = [field(1, b"user"), field(2, format!("{number:04000}").as_bytes())].concat();
            field(2, &field(1, &field(1, &entry)))
        };
        let message = [field(1, b"shop"), buckets.flat_map(usage).collect()].concat();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0], &length[..], &message].concat().into()
    }

    /// The windows of the client are open, but it reads nothing after the head of the response.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_not_read_gets_few_assignments() {
        let ((client, service), is_stopped) = (serve(), Arc::new(AtomicBool::new(false)));
        let stream =
            TokioIo::new(TestStream { stream: client, is_stopped: Arc::clone(&is_stopped), writes: Arc::default() });
        let (mut sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 24)
            .initial_connection_window_size(1 << 24)
            .handshake(stream)
            .await
            .unwrap();
        tokio::spawn(connection);
        let (reports, sent) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
        let sent =
            futures::stream::unfold(sent, async |mut sent| Some((Ok::<_, Infallible>(sent.recv().await?), sent)));
        let path = format!("http://x{}", quota::PATH);
        let request = Request::post(path).header(CONTENT_TYPE, "application/grpc").body(Body::from_stream(sent));
        let _response = sender.send_request(request.unwrap()).await.unwrap();
        is_stopped.store(true, Relaxed);
        // The window has room for this report.
        reports.send(report(0..60)).unwrap();
        // The service reads it, and then all tasks wait.
        sleep(Duration::from_secs(1)).await;
        let (_, buckets) = service.quotas.size();
        let assignments: u64 = service.quotas.assignments().iter().sum();
        // Of 4,000 bytes each: 64 KiB in the duplex, and two messages.
        assert!(buckets == 60 && (1..50).contains(&assignments), "{buckets} {assignments}");
        drop(reports);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_whose_body_does_not_arrive_ends() {
        let begun = clock::now();
        let mut client = connect();
        let head = b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";
        client.write_all(head).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!((&answer[..], begun.elapsed().as_secs()), (&b"HTTP/1.1 408"[..], TIMEOUT.as_secs()));

        let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(connect())).await.unwrap();
        tokio::spawn(connection);
        let body = Body::from_stream(futures::stream::pending::<Result<Bytes, Infallible>>());
        let question = Request::post(format!("http://x{PATH}")).header(CONTENT_TYPE, "application/grpc").body(body);
        let answer = sender.send_request(question.unwrap()).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4");
        assert_eq!(begun.elapsed().as_secs(), 2 * TIMEOUT.as_secs());
    }

    #[tokio::test]
    async fn answers_of_some_hundred_bytes_share_a_write() {
        let writes = Arc::default();
        let (client, _service) = serve_counted(&writes);
        let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
        tokio::spawn(connection);
        // A descriptor without a rule takes four bytes of the answer.
        let descriptor = RateLimitDescriptor {
            entries: vec![Entry { key: "client".into(), value: "one".into() }],
            ..Default::default()
        };
        let question = RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor; 100], hits_addend: 1 };
        let question = question.encode_to_vec();
        let length = u32::try_from(question.len()).unwrap().to_be_bytes();
        let question = Bytes::from([&[0], &length[..], &question].concat());
        let answers = (0..32).map(|_| {
            let body = Body::from(question.clone());
            let request = Request::post(format!("http://x{PATH}")).header(CONTENT_TYPE, "application/grpc").body(body);
            sender.send_request(request.unwrap())
        });
        for answer in futures::future::join_all(answers.collect::<Vec<_>>()).await {
            let answer = answer.unwrap().into_body().collect().await.unwrap();
            assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
            assert!((300..1000).contains(&answer.to_bytes().len()));
        }
        let writes = writes.load(Relaxed);
        assert!(writes < 16, "{writes} writes");
    }

    #[tokio::test]
    async fn a_client_that_has_connected_before_the_drain_gets_its_first_answer() {
        let (mut client, server) = duplex(1024);
        let (drain, is_asked) = (CancellationToken::new(), SetOnce::new());
        drain.cancel();
        let server_of = auto::Builder::new(TokioExecutor::new());
        let answer = service_fn(|_| {
            let _ = is_asked.set(());
            async { Ok::<_, Infallible>(Response::new(Body::from("answered"))) }
        });
        let serve = finish(server_of.serve_connection(TokioIo::new(server), answer), &drain, &is_asked);
        let ask = async {
            // The server has begun to end the connection.
            tokio::task::yield_now().await;
            let mut answer = String::new();
            let sent = client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            client.read_to_string(&mut answer).await.map(|_| (sent.is_ok(), answer))
        };
        let ((), answer) = tokio::join!(serve, ask);
        let (is_sent, answer) = answer.unwrap();
        assert!(is_sent && answer.ends_with("answered"), "{answer:?}");
    }
}
