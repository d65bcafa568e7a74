//! The control port of a Rust program, which takes its limits live from the operator, without a sidecar. The operator
//! counts the program as a pod that enforces them.
//!
//! [`Client`] opens a control port: it accepts snapshots from the operator, keeps their rules in force, and reports what is
//! in force. [`Client::layer`] limits any HTTP service of tower by these rules. `docs/guides/library-client.md` shows a program,
//! its policy and its Deployment.
//!
//! ```no_run
//! use std::{error::Error, net::SocketAddr};
//!
//! use axum::{Router, routing::get};
//! use tokio::{
//!     net::TcpListener,
//!     signal::unix::{SignalKind, signal},
//! };
//! use weir_client::{Client, Options};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn Error>> {
//! let mut terminate = signal(SignalKind::terminate())?;
//! let weir = Client::start(Options::from_env()?).await?;
//! let app = Router::new().route("/", get(async || "hello\n")).layer(weir.layer());
//! weir.ready().await;
//! let listener = TcpListener::bind("[::]:8080").await?;
//! let app = app.into_make_service_with_connect_info::<SocketAddr>();
//! axum::serve(listener, app).with_graceful_shutdown(async move { drop(terminate.recv().await) }).await?;
//! weir.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! `weir-agent` is built on this crate, too, with a proxy or a rate limit service in front of the rules.
//!
//! This crate never depends on Kubernetes, never waits for the operator, and keeps its rules when the operator is
//! unavailable.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests measure how long something takes"))]

pub mod agent;
mod bootstrap;
mod cache;
mod client;
mod clock;
mod config;
mod control;
mod https;
mod identity;
mod jwks;
mod leaving;
mod listen;
mod metrics;
mod options;
mod serve;
mod slots;
mod snapshots;
mod stores;
mod watch;

pub use prometheus::proto::MetricFamily;
pub use weir_enforce::{AmbiguousPaths, LimitLayer, Limited, LimitedBody, LiveRules, SyncGate, Tunnel};
pub use weir_tower::MonotonicClock;

pub use self::{
    client::{Client, StartError},
    config::{BoundControl, ControlConfig, InvalidOptions},
    control::InvalidTls,
    https::InvalidServer,
    listen::BindError,
    options::{ControlOptions, InvalidEnvironment, JwksOptions, Options},
    snapshots::Serves,
};
