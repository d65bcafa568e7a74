//! Tests over all kinds of stores.

mod clocks;
mod faults;
mod histories;
pub(crate) mod oracle;
mod retunes;
mod servers;
mod simulated;
mod suite;
