//! An axum server with a limit for each API key, a pace for all requests together, and a deadline.
//!
//! `cargo run -p weir-tower --example axum` sends requests to the server and exits. With `--serve`, the server listens
//! on port 3000, for `curl`.
#![expect(clippy::disallowed_methods, reason = "the example shows how long something takes")]

use std::{collections::BTreeMap, error::Error, net::SocketAddr, num::NonZeroUsize, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    routing::get,
};
use http::HeaderName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tower::ServiceBuilder;
use weir_core::{Limiter, Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{
    DeadlineLayer, HeaderKey, HttpAnswer, IpKey, KeyedAdmit, LatencyLayer, LimiterAdmit, MonotonicClock,
    ThroughputLayer, WithoutKey,
};

fn app() -> Result<Router, Box<dyn Error>> {
    let clock = MonotonicClock::start();
    let max_keys = NonZeroUsize::new(100_000).expect("not zero");
    let second = Duration::from_secs(1);

    // Each API key gets five requests per second. Requests without a key share one count.
    let quota = Quota::new(Strategy::TokenBucket, 5, second, None)?;
    let rule = RuleLimiter::keyed(clock.now(), Terms::new([("per-key", quota)])?, max_keys);
    let by_api_key = HeaderKey::new(HeaderName::from_static("x-api-key"));
    let per_key =
        LatencyLayer::new(KeyedAdmit::new(rule, clock, by_api_key, WithoutKey::Share), HttpAnswer::named(["per-key"])?);

    // All requests together have a pace of a hundred per second. A request that would wait longer than a tenth of a
    // second is refused immediately.
    let quota = Quota::new(Strategy::LeakyBucket, 100, second, None)?;
    let pace = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    let paced = ThroughputLayer::new(pace, Duration::from_millis(100), HttpAnswer);

    // Each address can sign up twice per hour.
    let quota = Quota::new(Strategy::SlidingWindowLog, 2, Duration::from_secs(3600), None)?;
    let rule = RuleLimiter::keyed(clock.now(), Terms::new([("sign-ups", quota)])?, max_keys);
    let by_address = IpKey::new(|request: &Request| {
        request.extensions().get::<ConnectInfo<SocketAddr>>().map(|connection| connection.0.ip())
    });
    let per_address = LatencyLayer::new(KeyedAdmit::new(rule, clock, by_address, WithoutKey::Share), HttpAnswer);

    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .route("/sign-up", get(async || "welcome\n").layer(per_address))
        .layer(
            // The layers are listed from the outermost to the innermost.
            ServiceBuilder::new()
                .layer(DeadlineLayer::new(Duration::from_millis(500), HttpAnswer))
                .layer(per_key)
                .layer(paced),
        ))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let serve = std::env::args().nth(1).as_deref() == Some("--serve");
    let listener = TcpListener::bind(if serve { "127.0.0.1:3000" } else { "127.0.0.1:0" }).await?;
    let server = listener.local_addr()?;
    println!("listening on http://{server}");
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move { axum::serve(listener, service).await });
    if serve { Ok(serving.await??) } else { show(server).await }
}

async fn show(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    println!("\nann sends seven requests; her limit is five per second:");
    for _ in 0..7 {
        let response = get_as(server, "/", "ann").await?;
        let (status, fields) = (&response["status"], ["ratelimit", "retry-after"].map(|name| response.get(name)));
        match fields {
            [Some(limit), None] => println!("  {status}  ratelimit: {limit}"),
            [Some(limit), Some(wait)] => println!("  {status}  ratelimit: {limit}  retry-after: {wait}"),
            _ => println!("  {status}"),
        }
    }
    println!("bob has a separate limit: {}", get_as(server, "/", "bob").await?["status"]);

    println!("\nthree sign-ups from one address, with different keys:");
    for key in ["carol", "dave", "eve"] {
        let response = get_as(server, "/sign-up", key).await?;
        println!("  {}  retry-after: {}", response["status"], response.get("retry-after").map_or("none", |wait| wait));
    }

    println!("\nthirty clients at the same time; the pace is 100 per second, and the maximum wait is 100 ms:");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = Instant::now();
    let clients = (0..30).map(|client| {
        tokio::spawn(async move {
            let status = get_as(server, "/", &format!("client-{client}")).await.map(|mut it| it.remove("status"));
            (status.ok().flatten(), start.elapsed())
        })
    });
    let mut answers: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for client in clients.collect::<Vec<_>>() {
        if let (Some(status), after) = client.await? {
            answers.entry(status).or_default().push(after);
        }
    }
    for (status, times) in answers {
        let last = times.iter().max().copied().unwrap_or_default();
        println!("  {:>2} clients got {status}, the last one after {} ms", times.len(), last.as_millis());
    }
    Ok(())
}

/// Sends one request over a new TCP connection. Returns the status and the headers, by name.
async fn get_as(server: SocketAddr, path: &str, api_key: &str) -> Result<BTreeMap<String, String>, std::io::Error> {
    let mut connection = TcpStream::connect(server).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {server}\r\nx-api-key: {api_key}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    let head = response.split("\r\n\r\n").next().unwrap_or_default();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or("no answer");
    let fields = lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into()));
    Ok(fields.chain([(String::from("status"), status.into())]).collect())
}
