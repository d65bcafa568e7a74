//! The wall clock, which someone may set. Only this file of the crate reads it.
#![expect(clippy::disallowed_methods, reason = "this is the crate's wall clock")]

use std::time::SystemTime;

/// The current wall clock time.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
