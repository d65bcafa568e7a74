//! The clocks. No other file of the crate reads them.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn since(start: Instant) -> Duration {
    start.elapsed()
}

/// Milliseconds of Unix time. The nodes of a kind cluster are containers, so agents and scenarios share one clock.
pub(crate) fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("this machine's clock is past 1970");
    u64::try_from(now.as_millis()).expect("milliseconds since 1970 fit 64 bits")
}

/// Waits if a day of UTC begins within this time, until it has begun.
pub(crate) async fn away_from_midnight(least: Duration) {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let rest = Duration::from_millis(DAY - unix_millis() % DAY);
    if rest < least {
        tokio::time::sleep(rest).await;
    }
}
