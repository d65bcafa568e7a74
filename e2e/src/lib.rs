//! Black-box scenarios of Weir on a real cluster.
//!
//! The program installs the chart as users do, creates workloads, applies policies with kubectl, and sends load from
//! inside the cluster. It compares the policies' status with the counts of agents, apps and loads. It may use only what
//! any user has (the apiserver, kubectl, helm, the agents' control API), except where it breaks a machine: see `node`.

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
mod recording;
mod report;
mod run;
mod scenarios;
mod workload;

pub use self::run::{RunArgs, run};
