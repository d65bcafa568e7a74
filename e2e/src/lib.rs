//! Black-box scenarios of Weir on a real cluster.
//!
//! The program installs the chart as people do, makes workloads, applies policies with kubectl, sends load from inside
//! the cluster, and holds what the policies' status claims against what agents, apps and loads have counted. It may
//! use what any user has (the apiserver, kubectl, helm, the agents' control API) and nothing else, but where it breaks a
//! machine: see `node`.

pub mod control_plane;

mod agents;
mod budget;
mod clock;
mod cluster;
mod conditions;
mod diagnostics;
mod direct;
mod kubectl;
mod load;
mod namespace;
mod node;
mod operator;
mod policy;
mod report;
mod run;
mod scenarios;
mod workload;

pub use run::{RunArgs, run};
