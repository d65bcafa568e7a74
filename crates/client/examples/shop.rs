//! A shop whose limits come from a `RateLimitPolicy`, without a sidecar. `docs/guides/library-client.md` shows it with an
//! operator.
//!
//! `cargo run -p weir-client --example shop` listens on 127.0.0.1:8080, or on the address in `SHOP_LISTEN`. The options of
//! the control port come from the environment, such as `WEIR_CONTROL`.

use std::{error::Error, net::SocketAddr, process::ExitCode};

use axum::{Router, http::header::CONTENT_TYPE, routing::get};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use weir_client::{Client, Options};

#[tokio::main]
async fn main() -> ExitCode {
    // The library logs the faults of snapshots.
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shop: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    // The process that a container starts ignores SIGTERM until it has a handler.
    let mut terminate = signal(SignalKind::terminate())?;
    let listen = std::env::var("SHOP_LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let weir = Client::start(Options::from_env()?).await?;

    let scraped = weir.clone();
    let metrics = async move || ([(CONTENT_TYPE, Client::METRICS_TYPE)], scraped.metrics());
    let app = Router::new()
        .route("/checkout", get(async || "thank you\n"))
        // The layer limits the routes above it. The routes below it have no limits.
        .layer(weir.layer())
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"));

    // With WEIR_WAIT_FOR_CONFIG=true, the port stays closed until the operator has sent the limits.
    tokio::select! {
        () = weir.ready() => {}
        _ = terminate.recv() => return Ok(()),
    }
    let listener = TcpListener::bind(listen).await?;
    println!("listening on {}, control port {}", listener.local_addr()?, weir.control());
    let watched = weir.clone();
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            reason = watched.ended() => eprintln!("shop: the limits can no longer change: {reason}"),
        }
    };
    // Keys with `clientIP` need the address of each connection.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    weir.shutdown().await;
    Ok(())
}
