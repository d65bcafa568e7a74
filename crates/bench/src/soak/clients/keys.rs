//! Clients that use new keys all the time, more than a table can contain. Some keys are idle immediately, and some stay
//! in use for a day.

use anyhow::ensure;
use serde_json::{Value, json};

use super::{Client, Target, http1};

const PASSING: &str = "/passing";
const STAYING: &str = "/staying";

/// The number of requests per round.
const REQUESTS: u64 = 20;
/// The distance between the ranges of keys of two lanes.
const APART: u64 = 1 << 40;

/// A rule whose keys are idle after a millisecond, so the table can remove them to make room.
pub(super) fn passing_rule() -> Value {
    keyed("passing", PASSING, 1_000, 1_000, 100_000)
}

/// A rule whose keys stay in use. So its table is soon full, and other keys are counted in the overflow.
pub(super) fn staying_rule() -> Value {
    keyed("staying", STAYING, 5, 24 * 3600 * 1_000, 10_000)
}

fn keyed(name: &str, path: &str, requests: u64, period_millis: u64, max_keys: u32) -> Value {
    json!({
        "name": name,
        "action": "Limit",
        "match": [{ "paths": [path] }],
        "key": [{ "header": "x-key" }],
        "limits": [{
            "name": "limit",
            "strategy": "TokenBucket",
            "requests": requests,
            "periodMillis": period_millis,
        }],
        "maxKeys": max_keys,
    })
}

pub(super) struct Fresh {
    path: &'static str,
    next: u64,
    connection: Option<http1::Connection>,
}

impl Fresh {
    pub(super) fn passing(lane: usize) -> Self {
        Self::on(PASSING, lane)
    }

    pub(super) fn staying(lane: usize) -> Self {
        Self::on(STAYING, lane)
    }

    fn on(path: &'static str, lane: usize) -> Self {
        Self { path, next: APART * lane as u64, connection: None }
    }
}

impl Client for Fresh {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        for _ in 0..REQUESTS {
            self.next += 1;
            let key = self.next.to_string();
            let connection = http1::Connection::kept(&mut self.connection, target.proxy).await?;
            let (status, _) = connection.get(self.path, &[("x-key", &key)]).await?;
            ensure!(matches!(status, 200 | 429), "got {status}");
        }
        Ok(())
    }
}
