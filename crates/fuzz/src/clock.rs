//! Only this file of the crate reads the clock: the length of a run is given in seconds.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::SystemTime;

pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
