//! The commands of the operator's program that control no agents: each does one thing, and exits.

pub mod bypasses;
pub mod check;
pub(crate) mod import;
pub mod prove;
pub mod pulled;
