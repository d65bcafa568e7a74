//! Well-behaved clients. They must always get correct and fast responses, independent of the other clients.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{Client, Target, http1, http2};

/// The common prefix of the names of both kinds.
pub(in crate::soak) const CONTROL: &str = "control";

/// The longest accepted time of a request, also on a busy machine.
pub(in crate::soak) const SLOWEST: Duration = Duration::from_secs(2);

const PATH: &str = "/control";

/// The rule for these clients, with a limit that is never reached.
pub(super) fn rule() -> Value {
    json!({
        "name": "control",
        "action": "Limit",
        "match": [{ "paths": [PATH] }],
        "limits": [{ "name": "limit", "strategy": "TokenBucket", "requests": 1_000_000, "periodMillis": 1000 }],
    })
}

fn check((status, body): &(u16, Bytes)) -> anyhow::Result<()> {
    ensure!(*status == 200 && body == "ok", "got {status} and {body:?}");
    Ok(())
}

/// A client that sends all requests on one connection, until it is closed.
#[derive(Default)]
pub(super) struct Http1(Option<http1::Connection>);

impl Client for Http1 {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let connection = http1::Connection::kept(&mut self.0, target.proxy).await?;
        let answer = tokio::time::timeout(SLOWEST, connection.get(PATH, &[])).await;
        let answer = answer.map_err(|_| anyhow::anyhow!("no answer after {SLOWEST:?}"))??;
        check(&answer)
    }
}

#[derive(Default)]
pub(super) struct Http2(Option<http2::Connection>);

impl Client for Http2 {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let mut connection = match self.0.take() {
            Some(connection) => connection,
            None => http2::Connection::open(target.proxy).await?,
        };
        let answer = tokio::time::timeout(SLOWEST, connection.get(PATH)).await;
        let answer = answer.map_err(|_| anyhow::anyhow!("no answer after {SLOWEST:?}"))??;
        self.0 = Some(connection);
        check(&answer)
    }
}
