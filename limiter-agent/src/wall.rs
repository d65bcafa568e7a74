//! The clock on the wall, which somebody may set: the only place of this crate that reads it.
#![expect(clippy::disallowed_methods, reason = "this is the crate's wall clock")]

use std::time::SystemTime;

/// What it shows.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
