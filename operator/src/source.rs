//! The sources of policies, pods and workloads: a cluster, or a directory and a list of agents.
//!
//! A source reports each difference as an [`Update`](crate::world::Update), in order. It has no copy of the world, and
//! never judges a policy.

pub mod agents;
pub mod cluster;
pub mod directory;
mod first_listings;
mod folder;
pub(crate) mod listing;
pub(crate) mod object;
pub(crate) mod objects;
mod pod;
pub(crate) mod status_file;
pub(crate) mod watch;
