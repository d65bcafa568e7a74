//! The commands of the operator's program that control no agents: they check, import or prove policies, and exit.

pub mod bypasses;
pub mod check;
pub(crate) mod import;
pub mod prove;
pub mod pulled;
