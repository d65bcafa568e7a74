//! The operator: watches `RateLimitPolicy` objects, compiles each once, pushes the rules to the agents of the
//! targeted pods, and reports what they enforce.
//!
//! ```text
//! source ──Update──► engine ──► compile ──► plan ──► link ──snapshot──► agent
//!                       ▲                             │
//!                       └───────Observation───────────┘◄──acknowledgement, status── agent
//!                       └──► observed, traffic ──► status ──► report ──► apiserver or files
//! ```
//!
//! The operator never decides about single requests and is not in their path, with one exception: it counts the limits
//! of scope Fleet ([`fleet`]). If the operator is down, agents continue to enforce their rules.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests measure how long something takes"))]

mod apiserver;
mod authority;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod compile;
pub mod dialing;
pub mod documents;
pub mod engine;
pub mod fleet;
mod host;
pub mod identity;
pub mod inject;
mod labels;
pub mod leader;
pub mod link;
mod log_filter;
mod log_once;
pub mod metrics;
pub mod observed;
pub mod open_files;
mod operator;
pub mod plan;
pub mod pod_ports;
pub mod report;
mod serve;
pub mod source;
pub mod status;
#[cfg(test)]
mod tables;
pub mod telemetry;
pub mod traffic;
mod wording;
pub mod world;

pub use self::operator::{Candidacy, Operator, TRAFFIC_INTERVAL};
