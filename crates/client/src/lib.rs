//! The control port of a program that enforces limits: it accepts snapshots from the operator, keeps their rules in force,
//! and reports what is in force.
//!
//! `weir-agent` is such a program, with a proxy or a rate limit service in front of the rules.
//!
//! This crate never depends on Kubernetes, never waits for the operator, and keeps its rules when the operator is
//! unavailable.

pub mod agent;
mod apply;
mod bootstrap;
mod cache;
mod client;
mod clock;
mod config;
mod control;
mod identity;
mod jwks;
mod leaving;
mod listen;
mod metrics;
mod options;
mod serve;
mod slots;
mod stores;
mod watch;

pub use self::{
    apply::Serves,
    client::Client,
    config::{BoundControl, ControlConfig, InvalidOptions},
    control::InvalidTls,
    identity::InvalidIdentity,
    jwks::InvalidSource,
    listen::BindError,
    options::{ControlOptions, JwksOptions},
};
