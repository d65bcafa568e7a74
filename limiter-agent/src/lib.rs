//! The limiter in the pod: an HTTP reverse proxy in front of one app that enforces the latest snapshot. The same program
//! is a rate limit service for proxies such as Envoy (`weir-agent rls`).
//!
//! It has three listeners: the port of its front (the proxy or the service) for clients, the control port for operators, and the telemetry port for
//! probes and Prometheus. The request path does not depend on the other two. It shares only the rules in force with
//! them: a request loads the rules once, and a new snapshot replaces them as a whole.
//!
//! The agent never depends on Kubernetes, never waits for the operator, and keeps its rules when the operator is
//! unavailable.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests measure how long something takes"))]

mod agent;
mod clock;
mod commands;
mod config;
mod front;
mod logs;
mod metrics;
mod open_files;
mod proxy;
mod ready;
mod resets;
mod service;
mod telemetry;

pub use self::{
    agent::{Addresses, Agent},
    commands::{CommandError, Leave, Probe},
    config::{CommonFlags, Config, Flags, InvalidConfig, ServiceFlags},
    logs::{LogFormat, Logs},
    proxy::Settings,
};
