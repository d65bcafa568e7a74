//! An axum server, without an agent in front of it, whose limits change while it serves requests.
//!
//! `cargo run -p weir-enforce --example managed` runs this example. It fails if a response differs from the expected
//! one. A test also runs this example.

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
};

use axum::{Router, extract::ConnectInfo, routing::get};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weir_enforce::{AmbiguousPaths, GateOptions, LiveRules};
use weir_tower::MonotonicClock;
use weir_wire::Snapshot;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    show().await
}

async fn show() -> Result<(), Box<dyn Error>> {
    // axum does not resolve `..` before it routes a path, but rules do.
    let (clock, paths) = (MonotonicClock::start(), AmbiguousPaths::Refuse);
    let rules = LiveRules::new(GateOptions { clock, paths, log_keys: false });
    let app = Router::new().route("/", get(async || "hello\n")).layer(rules.layer(|extensions| {
        extensions.get::<ConnectInfo<SocketAddr>>().map(|connection| -> IpAddr { connection.0.ip() })
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    println!("listening on http://{server}");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move { axum::serve(listener, service).await });

    println!("without rules, all requests pass:");
    expect(server, &["200", "200", "200", "200"]).await?;

    println!("three requests per day for each address:");
    rules.apply(snapshot(3)?).map_err(|faults| format!("{faults:?}"))?;
    expect(server, &["200", "200", "200", "429"]).await?;

    println!("five requests per day, of which three were used:");
    rules.apply(snapshot(5)?).map_err(|faults| format!("{faults:?}"))?;
    expect(server, &["200", "200", "429"]).await?;

    println!("a limit of zero is refused, and changes nothing:");
    let faults = rules.apply(snapshot(0)?).err().ok_or("a limit of zero was accepted")?;
    for fault in faults {
        println!("  {}: {}", fault.path, fault.message);
    }
    expect(server, &["429"]).await?;

    println!("statistics: {:?}", rules.load().policies()[0].rules[0].statistics());
    serving.abort();
    Ok(())
}

/// A snapshot like those that the operator pushes, with one rule: a number of requests per day for each address.
fn snapshot(requests: u64) -> Result<Snapshot, serde_json::Error> {
    let limit =
        json!({"name": "daily", "strategy": "SlidingWindowLog", "requests": requests, "periodMillis": 86_400_000});
    let key = json!([{"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}]);
    let rule = json!({"name": "per-client", "action": "Limit", "key": key, "limits": [limit]});
    let policy = json!({
        "uid": "hello", "namespace": "default", "name": "hello", "revision": "a", "mode": "Enforce", "rules": [rule],
    });
    serde_json::from_value(json!({"wireVersion": 1, "sequence": 1, "revision": "a", "policies": [policy]}))
}

/// Sends one request for each expected status, in order.
async fn expect(server: SocketAddr, statuses: &[&str]) -> Result<(), Box<dyn Error>> {
    for expected in statuses {
        let mut connection = TcpStream::connect(server).await?;
        let request = format!("GET / HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        connection.read_to_string(&mut response).await?;
        let mut lines = response.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or("no answer");
        let limit = lines.find_map(|line| line.strip_prefix("ratelimit: ")).unwrap_or("none");
        println!("  {status}  ratelimit: {limit}");
        if status != *expected {
            return Err(format!("status {status}, but {expected} was expected").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
        super::show().await
    }
}
