//! The sources of policies, pods and workloads: a cluster, or a directory and a list of agents.
//!
//! A source turns what it sees into [`Update`](crate::world::Update)s and sends them in order. It keeps no world of
//! its own and never judges a policy.

pub mod agents;
pub mod cluster;
pub mod directory;
mod folder;
pub(crate) mod listing;
pub(crate) mod object;
pub(crate) mod objects;
mod pod;
pub(crate) mod status_file;
