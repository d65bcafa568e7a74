//! A gRPC server (tonic's health service) with a limit for each client address.
//!
//! `cargo run -p weir-tower --example tonic` calls the server and exits. With `--serve`, the server listens on port
//! 50051, for `grpcurl`.

use std::{error::Error, net::SocketAddr, num::NonZeroUsize, time::Duration};

use http::Request;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Code,
    body::Body,
    transport::{Endpoint, Server, server::TcpConnectInfo},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::ServiceBuilder;
use weir_core::{Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{DeadlineLayer, GrpcAnswer, IpKey, KeyedAdmit, LatencyLayer, MonotonicClock, WithoutKey};

async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock = MonotonicClock::start();

    // Each address has a burst of three calls, and ten calls per second on average.
    let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), Some(3))?;
    let max_keys = NonZeroUsize::new(100_000).expect("not zero");
    let rule = RuleLimiter::keyed(clock.now(), Terms::new([("per-address", quota)])?, max_keys);
    let by_address = IpKey::new(|request: &Request<Body>| {
        request.extensions().get::<TcpConnectInfo>()?.remote_addr().map(|address| address.ip())
    });
    let per_address = LatencyLayer::new(KeyedAdmit::new(rule, clock, by_address, WithoutKey::Share), GrpcAnswer);

    let (_reporter, health) = tonic_health::server::health_reporter();
    Server::builder()
        // The layers are listed from the outermost to the innermost.
        .layer(
            ServiceBuilder::new().layer(DeadlineLayer::new(Duration::from_millis(500), GrpcAnswer)).layer(per_address),
        )
        .add_service(health)
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let stay = std::env::args().nth(1).as_deref() == Some("--serve");
    let listener = TcpListener::bind(if stay { "127.0.0.1:50051" } else { "127.0.0.1:0" }).await?;
    let server = listener.local_addr()?;
    println!("listening on http://{server}");
    let serving = tokio::spawn(serve(listener));
    if stay { serving.await? } else { show(server).await }
}

async fn show(server: SocketAddr) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut client = HealthClient::new(Endpoint::from_shared(format!("http://{server}"))?.connect().await?);
    println!("\nfive calls at the same time; the burst of this address is three:");
    let mut pushback = None;
    for _ in 0..5 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(response) => println!("  OK, {:?}", response.into_inner().status()),
            Err(status) if status.code() == Code::ResourceExhausted => {
                let millis = status.metadata().get("grpc-retry-pushback-ms").ok_or("no pushback")?.to_str()?.parse()?;
                println!("  RESOURCE_EXHAUSTED, {}: retry in {millis} ms", status.message());
                pushback = Some(Duration::from_millis(millis));
            }
            Err(status) => return Err(status.into()),
        }
    }
    let wait = pushback.ok_or("no call was refused")?;
    tokio::time::sleep(wait).await;
    client.check(HealthCheckRequest::default()).await?;
    println!("{} ms later: OK", wait.as_millis());
    Ok(())
}
