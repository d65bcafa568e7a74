//! New keys without end: more than a table holds, some that are idle at once and some that stay for a day.

use anyhow::ensure;
use serde_json::{Value, json};

use super::{Client, Target, http1};

const PASSING: &str = "/passing";
const STAYING: &str = "/staying";

/// Requests per round.
const REQUESTS: u64 = 20;
/// The distance between the key ranges of lanes.
const APART: u64 = 1 << 40;

/// Keys that are idle a millisecond later: the table makes room by removing them.
pub(super) fn passing_rule() -> Value {
    keyed("passing", PASSING, 1_000, 1_000, 100_000)
}

/// Keys that stay: the table is soon full, and other keys go to the overflow.
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
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => http1::Connection::open(target.proxy).await?,
        };
        for _ in 0..REQUESTS {
            self.next += 1;
            let key = self.next.to_string();
            let (status, _) = connection.get(self.path, &[("x-key", &key)]).await?;
            ensure!(matches!(status, 200 | 429), "got {status}");
        }
        self.connection = Some(connection);
        Ok(())
    }
}
