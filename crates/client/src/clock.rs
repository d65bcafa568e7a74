//! The clocks of this crate. Only this file of the crate reads them. The engine has a separate clock.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::SystemTime;

use tokio::time::Instant;

/// The time of tokio's timers.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock. It can jump when an administrator sets it.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
