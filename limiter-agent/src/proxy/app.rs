//! The protected app, as all workers and both paths see it: its address, whether it is up, and how it can fail.

pub(crate) use self::{address::AppAddress, failure_counts::REASONS};
pub(super) use self::{connect::ConnectError, failure_counts::FailureCounts, garbled::InvalidResponse};

mod address;
mod availability;
mod connect;
mod failure_counts;
mod garbled;
