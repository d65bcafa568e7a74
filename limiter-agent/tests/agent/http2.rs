//! Tests HTTP/2 with prior knowledge: from clients, to the app, and translated to HTTP/1.1.

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Body as _, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use crate::{
    hostile::frames::frame,
    support::{Agent, App, Body, Client, ClosedPort, accept, body, daily, empty, policy, request, rule, snapshot},
};

fn get(path: &str) -> Request<Body> {
    Request::get(format!("http://shop.example.com{path}")).body(empty()).expect("valid")
}

fn trailers(name: &'static str, value: &'static str) -> HeaderMap {
    [(name.parse().expect("valid"), value.parse().expect("valid"))].into_iter().collect()
}

/// A body that the test writes frame by frame.
fn channel() -> (mpsc::Sender<Frame<Bytes>>, Body) {
    let (send, mut frames) = mpsc::channel(1);
    let stream = futures::stream::poll_fn(move |cx| frames.poll_recv(cx));
    (send, BodyExt::boxed(StreamBody::new(futures::StreamExt::map(stream, Ok))))
}

/// Responds with the version, the host and the body length of the request.
async fn describe(request: Request<Incoming>) -> Response<Body> {
    let host = request
        .uri()
        .authority()
        .map(ToString::to_string)
        .or_else(|| request.headers().get("host").map(|host| host.to_str().expect("text").to_owned()));
    let head = format!("{:?} {} {}", request.version(), host.unwrap_or_default(), request.uri().path());
    let cookies: Vec<_> = request.headers().get_all("cookie").iter().cloned().collect();
    let sent = request.into_body().collect().await.expect("a body").to_bytes();
    Response::new(body(format!("{head} {} {cookies:?}", sent.len())))
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.expect("a complete body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Clients treat a body as a malformed response (RFC 9113 section 8.1.1).
#[tokio::test]
async fn a_response_to_head_has_no_body() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[rule("all", &[daily("d", "FixedWindow", 1)])])])).await;
    let closed = ClosedPort::new();
    let without_app = Agent::start(closed.address(), &[]);
    for (agent, path, status) in
        [(&agent, "/", 200), (&agent, "/", 429), (&agent, "/a/../b", 400), (&without_app, "/", 502)]
    {
        let request = Request::head(agent.url(path)).body(empty()).expect("valid");
        let response = agent.http2().await.send_request(request).await.expect("a response");
        assert_eq!(response.status(), status);
        assert!(response.body().is_end_stream(), "{status}");
        assert_ne!(response.headers()["content-length"], "0", "{status}");
    }
}

#[tokio::test]
async fn an_app_of_http1_is_asked_over_http1() {
    let app = App::serve(describe).await;
    let agent = Agent::start(app.address, &[]);
    let mut sender = agent.http2().await;
    let mut request = get("/a?b");
    for cookie in ["a=1", "b=2"] {
        request.headers_mut().append("cookie", cookie.parse().expect("valid"));
    }
    let response = sender.send_request(request).await.expect("a response");
    assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
    assert_eq!(text(response).await, "HTTP/1.1 shop.example.com /a 0 [\"a=1; b=2\"]");

    // A body without a length is forwarded for any method.
    for method in ["POST", "GET"] {
        let (send, upload) = channel();
        let request = Request::builder().method(method).uri("http://shop.example.com/").body(upload).expect("valid");
        let answer = tokio::spawn(sender.send_request(request));
        for _ in 0..100 {
            send.send(Frame::data(vec![0; 10_000].into())).await.expect("open");
        }
        drop(send);
        let answer = answer.await.expect("no panic").expect("a response");
        assert_eq!(text(answer).await, "HTTP/1.1 shop.example.com / 1000000 []", "{method}");
    }
}

#[tokio::test]
async fn the_protocol_to_the_app_follows_the_setting() {
    for (http2_app, http2_client, when, expected) in [
        (true, true, "auto", "HTTP/2.0"),
        (true, true, "always", "HTTP/2.0"),
        (true, false, "always", "HTTP/2.0"),
        (false, true, "auto", "HTTP/1.1"),
        (false, true, "never", "HTTP/1.1"),
        (false, false, "auto", "HTTP/1.1"),
    ] {
        let app = if http2_app { App::serve_http2(describe).await } else { App::serve(describe).await };
        let agent = Agent::start(app.address, &["--upstream-http2", when]);
        let answer = if http2_client {
            text(agent.http2().await.send_request(get("/")).await.expect("a response")).await
        } else {
            String::from_utf8(agent.get("/", &[]).await.body().to_vec()).expect("text")
        };
        assert!(answer.starts_with(expected), "{when}, app {http2_app}, client {http2_client}: {answer}");
    }
}

/// A 204 has no length (RFC 9110 section 8.6). For a target without a path, axum would add one.
#[tokio::test]
async fn an_answer_without_content_has_no_length() {
    let app = App::serve(async |_| {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    let mut sender = agent.http2().await;
    for target in ["/", "*"] {
        let uri = Uri::builder().scheme("http").authority("shop.example.com").path_and_query(target).build();
        let request = Request::options(uri.expect("valid")).body(empty()).expect("valid");
        let response = sender.send_request(request).await.expect("a response");
        assert_eq!((response.status().as_u16(), response.headers().get("content-length")), (204, None), "{target}");
    }
}

/// As in a gRPC stream, both bodies are open at the same time, and the status is in trailers.
#[tokio::test]
async fn streams_and_trailers_go_both_ways() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let app = App::serve_http2(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            assert_eq!(request.headers()["te"], "trailers");
            let (send, download) = channel();
            let mut upload = request.into_body();
            tokio::spawn(async move {
                while let Some(frame) = upload.frame().await {
                    match frame.expect("no error").into_data() {
                        Ok(data) => send.send(Frame::data(data)).await.expect("open"),
                        Err(frame) => tell.send(frame.into_trailers().expect("trailers")).expect("the test waits"),
                    }
                }
                send.send(Frame::trailers(trailers("grpc-status", "0"))).await.expect("open");
            });
            Response::new(download)
        }
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    let mut sender = agent.http2().await;
    let (send, upload) = channel();
    let request = Request::post("http://shop/s.S/M").header("te", "trailers").body(upload).expect("valid");
    let mut response = sender.send_request(request).await.expect("an answer before the request has ended");
    for number in 0..100u8 {
        send.send(Frame::data(vec![number; 10_000].into())).await.expect("open");
        let mut back = 0;
        while back < 10_000 {
            let data = response.frame().await.expect("more").expect("no error").into_data().expect("data");
            assert!(data.iter().all(|byte| *byte == number));
            back += data.len();
        }
    }
    send.send(Frame::trailers(trailers("x-sum", "1"))).await.expect("open");
    drop(send);
    assert_eq!(told.recv().await.expect("the app received the trailers"), trailers("x-sum", "1"));
    let last = response.frame().await.expect("more").expect("no error").into_trailers().expect("trailers");
    assert_eq!(last, trailers("grpc-status", "0"));
    assert!(response.frame().await.is_none());
}

#[tokio::test]
async fn http1_trailers_reach_an_http2_client_and_back() {
    let app = App::serve(async |request: Request<Incoming>| {
        let sent = request.into_body().collect().await.expect("a body").trailers().cloned();
        assert_eq!(sent, Some(trailers("x-sum", "1")));
        let (send, download) = channel();
        tokio::spawn(async move {
            send.send(Frame::data("data".into())).await.expect("open");
            send.send(Frame::trailers(trailers("x-sum", "2"))).await.expect("open");
        });
        Response::builder().header("trailer", "x-sum").body(download).expect("valid")
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    let (send, upload) = channel();
    let request = Request::post("http://shop/").header("te", "trailers").header("trailer", "x-sum");
    let answer = tokio::spawn(agent.http2().await.send_request(request.body(upload).expect("valid")));
    send.send(Frame::trailers(trailers("x-sum", "1"))).await.expect("open");
    drop(send);
    let response = answer.await.expect("no panic").expect("a response").into_body().collect().await.expect("a body");
    assert_eq!(response.trailers(), Some(&trailers("x-sum", "2")));
    assert_eq!(response.to_bytes(), "data");
}

#[tokio::test]
async fn streams_are_limited_like_requests() {
    let app = App::serve_http2(describe).await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 2)])])])).await;
    let mut sender = agent.http2().await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let upload = Request::post("http://shop/").body(body("x".repeat(100_000))).expect("valid");
        let response = sender.send_request(upload).await.expect("a response");
        statuses.push(response.status().as_u16());
        if response.status() == 429 {
            assert_eq!(response.headers()["ratelimit"], "\"d\";r=0;t=43200");
        }
        response.into_body().collect().await.expect("a complete body");
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

/// An app that sends GOAWAY after `after` requests on a connection. The app answers requests in flight and ignores
/// later requests.
async fn leaving_app(after: usize) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let app = accept(move |stream| {
        counted.fetch_add(1, Relaxed);
        async move {
            let (leave, mut leaving) = mpsc::unbounded_channel();
            let asked = AtomicUsize::new(0);
            let service = service_fn(move |request: Request<Incoming>| {
                if asked.fetch_add(1, Relaxed) + 1 == after {
                    let _ = leave.send(());
                }
                async move { Ok::<_, hyper::Error>(describe(request).await) }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => return,
                Some(()) = leaving.recv() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        }
    });
    (app.await, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goaway_from_the_app_fails_no_request() {
    let (address, connections) = leaving_app(10).await;
    let agent = Agent::start(address, &["--workers", "1"]);
    let sender = agent.http2().await;
    let each = (0..20).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                let response = sender.send_request(get("/")).await.expect("a response");
                let status = response.status();
                assert_eq!((status.as_u16(), text(response).await.as_str()), (200, "HTTP/2.0 shop.example.com / 0 []"));
            }
        })
    });
    for done in each.collect::<Vec<_>>() {
        done.await.expect("every request was answered");
    }
    assert!(connections.load(Relaxed) > 10, "the app sent too few GOAWAYs: {connections:?}");
}

#[tokio::test]
async fn a_stream_that_the_client_resets_is_cancelled() {
    struct Leaves(mpsc::UnboundedSender<()>);
    impl Drop for Leaves {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    for http2 in [true, false] {
        let (left, mut leaving) = mpsc::unbounded_channel();
        let (tell, mut asked) = mpsc::unbounded_channel();
        let handle = move |_: Request<Incoming>| {
            let guard = Leaves(left.clone());
            tell.send(()).expect("the test waits");
            async move {
                let _guard = guard;
                std::future::pending().await
            }
        };
        let app = if http2 { App::serve_http2(handle).await } else { App::serve(handle).await };
        let agent = Agent::start(app.address, &[]);
        let mut sender = agent.http2().await;
        let request = tokio::spawn(sender.send_request(get("/")));
        asked.recv().await.expect("the app was asked");
        request.abort();
        leaving.recv().await.expect("the app's response was dropped");
        assert!(sender.is_ready(), "the connection continues");
    }
}

/// An app that accepts the first request, and answers each further one with the frame that `answer` returns for its
/// stream. Returns the address and the number of requests.
async fn faulty_app(answer: fn(u32) -> Vec<u8>) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let app = accept(move |mut stream| {
        let asked = Arc::clone(&counted);
        async move {
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await?;
            stream.read_exact(&mut [0; 24]).await?;
            loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await?;
                let [_, high, low, kind, _, rest @ ..] = head;
                stream.read_exact(&mut vec![0; usize::from(high) << 8 | usize::from(low)]).await?;
                let id = u32::from_be_bytes(rest);
                match kind {
                    1 if asked.fetch_add(1, Relaxed) == 0 => stream.write_all(&frame(1, 5, id, b"\x88")).await?,
                    1 => stream.write_all(&answer(id)).await?,
                    _ => {}
                }
            }
            #[expect(unreachable_code, reason = "it gives the type of the error")]
            Ok::<_, std::io::Error>(())
        }
    });
    (app.await, asked)
}

#[tokio::test]
async fn an_answer_that_is_invalid_or_reset_is_not_asked_for_again() {
    let invalid: fn(u32) -> Vec<u8> = |stream| frame(1, 5, stream, b"\x88\0\x0aconnection\x05close");
    let cancelled: fn(u32) -> Vec<u8> = |stream| frame(3, 0, stream, &8_u32.to_be_bytes());
    let refused: fn(u32) -> Vec<u8> = |stream| frame(3, 0, stream, &7_u32.to_be_bytes());
    for (answer, reason, text, times) in [
        (invalid, "protocol", "the app's answer is not HTTP/2", 1),
        (cancelled, "closed", "the app reset the stream before it answered", 1),
        (refused, "closed", "the app refused the request before it processed it", 4),
    ] {
        let (address, asked) = faulty_app(answer).await;
        let agent = Agent::start(address, &["--workers", "1", "--upstream-http2", "always"]);
        assert_eq!(agent.get("/", &[]).await.status(), 200);
        for (number, method) in (1..).zip(["GET", "DELETE", "POST"]) {
            let before = asked.load(Relaxed);
            let response = Client::new().send(request(method, &agent.url("/"), &[], "")).await;
            let told = String::from_utf8_lossy(response.body());
            assert!(response.status() == 502 && told.contains(text), "{method}: {told}");
            assert_eq!(asked.load(Relaxed) - before, times, "{method}: {text}");
            agent.until_metric(&format!("weir_upstream_errors_total{{reason=\"{reason}\"}}"), number.into()).await;
        }
    }
}

/// The agent cannot send a body again that it has read. The client can, and gRPC clients do.
#[tokio::test]
async fn an_http2_client_learns_that_the_app_refused_its_request() {
    let refused: fn(u32) -> Vec<u8> = |stream| frame(3, 0, stream, &7_u32.to_be_bytes());
    let (address, asked) = faulty_app(refused).await;
    let agent = Agent::start(address, &["--workers", "1"]);
    let mut sender = agent.http2().await;
    assert_eq!(sender.send_request(get("/")).await.expect("a response").status(), 200);
    for (sent, times) in [(empty(), 4), (body("abc"), 1)] {
        let before = asked.load(Relaxed);
        let request = Request::post("http://shop.example.com/").body(sent).expect("valid");
        let error = sender.send_request(request).await.expect_err("the stream is reset");
        let reset = error.source().and_then(|error| error.downcast_ref::<h2::Error>()).expect("an error of HTTP/2");
        assert_eq!((reset.is_reset(), reset.reason()), (true, Some(h2::Reason::REFUSED_STREAM)));
        assert_eq!(asked.load(Relaxed) - before, times);
    }
    assert!(sender.is_ready(), "the connection continues");
}

/// An app that allows few streams refuses those that the agent opens before it knows that. The first answers of this app
/// wait until the agent has sent a whole burst, if it does not wait for the app's SETTINGS.
#[tokio::test]
async fn a_burst_to_an_app_that_allows_few_streams_fails_no_request() {
    const BURST: usize = 60;
    let app = accept(async |stream| {
        // The preface and the agent's SETTINGS have arrived, and also its requests, if it does not wait.
        stream.readable().await.expect("bytes");
        let service = service_fn(|request| async move { Ok::<_, hyper::Error>(describe(request).await) });
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.max_concurrent_streams(5).serve_connection(TokioIo::new(stream), service).await
    });
    let agent = Agent::start(app.await, &["--workers", "1", "--upstream-http2", "always"]);
    let sender = agent.http2().await;
    let burst = (0..BURST).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let request = Request::post("http://shop.example.com/").body(body("abc")).expect("valid");
            sender.send_request(request).await.map(|response| response.status().as_u16())
        })
    });
    for answer in burst.collect::<Vec<_>>() {
        assert_eq!(answer.await.expect("no panic").expect("an answer"), 200);
    }
}
