//! The protected app, as all workers and both paths see it: its address, whether it is up, and how it can fail.

pub(crate) use self::{address::AppAddress, failures::REASONS};
pub(super) use self::{
    connect::ConnectError,
    failures::{FailureCounts, InvalidResponse},
};

mod address;
mod connect;
mod failures;
