//! The limiter in the pod: an HTTP reverse proxy in front of one app that enforces the latest snapshot.
//!
//! It has three listeners: the proxy port for clients, the control port for operators, and the telemetry port for
//! probes and Prometheus. The request path does not depend on the other two. It shares only the rules in force with
//! them: a request loads the rules once, and a new snapshot replaces them as a whole.
//!
//! The agent never depends on Kubernetes, never waits for the operator, and keeps its rules when the operator is
//! unavailable.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests measure how long something takes"))]

mod agent;
mod apply;
mod bootstrap;
mod cache;
mod clock;
mod config;
mod control;
mod duration;
mod identity;
mod jwks;
mod leave;
mod listen;
mod logs;
mod metrics;
mod proxy;
mod ready;
mod serve;
mod slots;
mod stores;
mod telemetry;
mod watch;

pub use self::{
    agent::{Addresses, Agent},
    config::{Config, Flags, InvalidConfig},
    control::InvalidTls,
    jwks::InvalidSource,
    leave::{Leave, LeaveError},
    listen::BindError,
    logs::{LogFormat, Logs},
    proxy::Settings,
};
