//! The clock of the crate: a run has a length in seconds. Only this file reads the clock.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::SystemTime;

pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
