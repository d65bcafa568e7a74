//! The limiter in the pod: an HTTP reverse proxy in front of one app that enforces the rules it was given last.
//!
//! Three listeners: the proxy port for clients, the control port for operators, the telemetry port for
//! probes and Prometheus. The request path knows neither of the other two: they meet in the rules in force, which a request
//! loads once and which are replaced as a whole.
//!
//! The agent must never know Kubernetes, wait for the operator, or forget what it has because nobody is there.

mod agent;
mod apply;
mod bootstrap;
mod cache;
mod config;
mod control;
#[cfg(test)]
mod fuzz;
mod identity;
mod jwks;
mod leave;
mod leaving;
mod listen;
mod logs;
mod metrics;
mod places;
mod proxy;
mod ready;
mod serve;
mod telemetry;
mod wall;
mod watch;

pub use self::{
    agent::{Addresses, Agent},
    config::{Config, Flags, InvalidConfig, LogFormat},
    control::InvalidTls,
    jwks::InvalidSource,
    leave::{Leave, LeaveError},
    listen::BindError,
    logs::Logs,
    proxy::Settings,
};
