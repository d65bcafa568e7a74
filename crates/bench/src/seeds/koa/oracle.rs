//! Compares the admissions that the apps recorded with the limit, in whole numbers.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::Limit;
use crate::proxy::Connection;

/// What an app recorded, in microseconds of the machine's clock.
#[derive(Deserialize)]
pub(super) struct Recorded {
    since: u64,
    admitted: Vec<u64>,
}

/// What the apps of a contender admitted together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Admitted {
    pub(super) count: u64,
    /// How many more than the limit allows.
    pub(super) excess: u64,
}

/// Forgets what the apps recorded.
pub(super) fn start(apps: &[SocketAddr]) -> anyhow::Result<()> {
    apps.iter().try_for_each(|app| ask(*app, "start").map(drop))
}

/// What the apps admitted since [`start`].
pub(super) fn read(apps: &[SocketAddr], limit: Limit) -> anyhow::Result<Admitted> {
    let recorded = apps.iter().map(|app| ask(*app, "read")).collect::<Result<Vec<_>, _>>()?;
    Ok(Admitted::of(&recorded, limit))
}

fn ask(app: SocketAddr, what: &str) -> anyhow::Result<Recorded> {
    let request = format!("GET /control/{what} HTTP/1.1\r\nhost: app\r\n\r\n");
    let (status, body) = Connection::open(app)?.exchange(request.as_bytes())?;
    ensure!(status == 200, "the app answered {status}");
    serde_json::from_str(&body).context("read the app's admissions")
}

impl Admitted {
    /// A bucket that is full at the start admits at each time at most its burst and what it earned since then. A request
    /// arrives at the app after its admission, so an admission within the limit never counts as excess.
    fn of(recorded: &[Recorded], limit: Limit) -> Self {
        let since = recorded.iter().map(|recorded| recorded.since).min().unwrap_or_default();
        let mut times: Vec<_> = recorded.iter().flat_map(|recorded| &recorded.admitted).copied().collect();
        times.sort_unstable();
        let excess = |(count, time): (u64, &u64)| count.saturating_sub(limit.most(time.saturating_sub(since)));
        let excess = (1..).zip(&times).map(excess).max().unwrap_or_default();
        Self { count: times.len() as u64, excess }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { path: "/", requests: 100, millis: 1_000 };

    fn recorded(since: u64, admitted: impl IntoIterator<Item = u64>) -> Recorded {
        Recorded { since, admitted: admitted.into_iter().collect() }
    }

    #[test]
    fn the_admissions_of_all_apps_count() {
        let half = |since| recorded(since, [since + 5; 50]);
        assert_eq!(Admitted::of(&[half(7), half(9)], LIMIT), Admitted { count: 100, excess: 0 });
        let more = recorded(9, [10; 53]);
        assert_eq!(Admitted::of(&[half(7), more], LIMIT), Admitted { count: 103, excess: 3 });
    }

    #[test]
    fn a_bucket_earns_with_time() {
        // A request each 10 ms, after the burst.
        let rest = (1..=50).map(|number| number * 10_000);
        let all = recorded(0, [0; 100].into_iter().chain(rest));
        assert_eq!(Admitted::of(&[all], LIMIT).excess, 0);
        let rest = (1..=50).map(|number| number * 10_000 - 1);
        let all = recorded(0, [0; 100].into_iter().chain(rest));
        assert_eq!(Admitted::of(&[all], LIMIT), Admitted { count: 150, excess: 1 });
    }
}
