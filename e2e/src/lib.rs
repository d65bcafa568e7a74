//! Black-box scenarios of Weir on a real cluster.
//!
//! The program installs the chart as users do, creates workloads, applies policies with `kubectl`, and sends load from
//! inside the cluster. It compares the status of policies with the counts of agents, apps and loads. It must use only
//! the interfaces of a user: the apiserver, `kubectl`, `helm` and the agents' control API. The one exception is `node`,
//! which kills processes and pauses machines.

mod agents;
mod budget;
mod clock;
mod cluster;
mod conditions;
mod diagnostics;
mod direct;
mod external_metrics;
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
