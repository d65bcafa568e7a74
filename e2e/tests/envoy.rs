//! Tests `weir-agent rls` as the rate limit service of a real Envoy. `WEIR_ENVOY` is the path of Envoy.
//!
//! Most limits are buckets that refill in hours, so the end of a window cannot change a result.

#![expect(clippy::disallowed_methods, reason = "waits for other programs")]

mod programs;
#[path = "envoy/stage.rs"]
mod stage;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::stage::{Service, Stage, until};

const DAY: u64 = 24 * 3600 * 1000;

/// A limit of `requests` a day that admits all of them at once.
fn a_day(requests: u64) -> Value {
    json!([{ "name": "day", "strategy": "TokenBucket", "requests": requests, "periodMillis": DAY, "burst": requests }])
}

fn rules() -> Value {
    json!([
        {
            "name": "checkout",
            "action": "Limit",
            "match": [{ "descriptor": [{ "name": "path", "value": "/checkout" }] }],
            "limits": a_day(100),
        },
        {
            "name": "client",
            "action": "Limit",
            "match": [{ "descriptor": [{ "name": "api_key" }] }],
            "key": [{ "descriptor": "api_key" }],
            "limits": a_day(3),
            "responseHeaders": [{ "name": "x-quota", "value": "{remaining} of {limit}" }],
            "onLimit": {
                "status": 429,
                "headers": "IETF",
                "set": [{ "name": "x-refused-by", "value": "{policy}/{rule}" }],
                "body": "slow down\n",
            },
        },
        {
            "name": "export",
            "action": "Limit",
            "match": [{ "descriptor": [{ "name": "remote_address" }, { "name": "generic_key", "value": "export" }] }],
            "key": [{ "descriptor": "remote_address" }],
            "limits": a_day(2),
        },
        {
            "name": "tokens",
            "action": "Limit",
            "match": [{ "descriptor": [{ "name": "tokens" }] }],
            "key": [{ "descriptor": "tokens" }],
            "limits": [{
                "name": "day",
                "strategy": "TokenBucketWithDebt",
                "requests": 10,
                "periodMillis": DAY,
                "burst": 10,
                // Burst and debt together are what the bucket admits.
                "debt": 15,
            }],
        },
    ])
}

#[tokio::test]
async fn clients_get_200_and_then_429_with_the_headers_of_envoy_and_of_the_service() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    for remaining in [2, 1, 0] {
        let answer = client.get("/checkout", &[("x-api-key", "one")]).await?;
        ensure!((answer.status, answer.body.as_str()) == (200, "the app\n"), "{answer:?}");
        // The limit that is closest to its end, and then all limits of the request.
        let limit = answer.header("x-ratelimit-limit");
        ensure!(limit.starts_with("3, ") && limit.contains("100;w=86400") && limit.contains("3;w=86400"), "{answer:?}");
        ensure!(answer.header("x-ratelimit-remaining") == remaining.to_string(), "{answer:?}");
        ensure!(answer.header("x-quota") == format!("{remaining} of 3"), "{answer:?}");
        ensure!(answer.header("retry-after").is_empty() && !answer.has_repetition(), "{answer:?}");
    }
    let answer = client.get("/checkout", &[("x-api-key", "one")]).await?;
    ensure!((answer.status, answer.body.as_str()) == (429, "slow down\n"), "{answer:?}");
    ensure!(answer.header("x-envoy-ratelimited") == "true", "{answer:?}");
    ensure!(answer.header("x-ratelimit-remaining") == "0", "{answer:?}");
    ensure!(answer.header("x-refused-by") == "shop/limits/client", "{answer:?}");
    ensure!(answer.header("content-type").starts_with("text/plain"), "{answer:?}");
    // Every header is there once.
    ensure!(!answer.has_repetition(), "{answer:?}");
    let (reset, retry) = (answer.number("x-ratelimit-reset")?, answer.number("retry-after")?);
    ensure!((1..=DAY / 1000).contains(&reset) && (1..=DAY / 1000 / 3).contains(&retry), "{answer:?}");
    let answer = client.get("/checkout", &[("x-api-key", "two")]).await?;
    ensure!(answer.status == 200 && answer.header("x-ratelimit-remaining") == "2", "{answer:?}");
    // A request without the header has one descriptor less.
    let answer = client.get("/checkout", &[]).await?;
    ensure!(answer.status == 200 && answer.header("x-ratelimit-limit").starts_with("100, "), "{answer:?}");
    // Four admitted requests and this one: the refused one charged no limit.
    ensure!(answer.header("x-ratelimit-remaining") == "95", "{answer:?}");
    ensure!(stage.stat("over_limit").await? == 1 && stage.stat("error").await? == 0, "Envoy counted otherwise");
    Ok(())
}

#[tokio::test]
async fn an_address_with_a_generic_key_has_its_own_limit() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(client.get("/export", &[]).await?.status);
    }
    ensure!(statuses == [200, 200, 429, 429], "{statuses:?}");
    Ok(())
}

#[tokio::test]
async fn the_cost_of_a_request_is_in_its_header_and_a_refusal_charges_nothing() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    for (cost, status, remaining) in [("2", 200, "1"), ("2", 429, ""), ("1", 200, "0"), ("1", 429, "0")] {
        let answer = client.get("/cost", &[("x-api-key", "one"), ("x-cost", cost)]).await?;
        let told = answer.header("x-ratelimit-remaining");
        ensure!(answer.status == status && (remaining.is_empty() || told == remaining), "{cost}: {answer:?}");
    }
    Ok(())
}

/// The app reports the cost of a response. Envoy charges it when the response has ended.
#[tokio::test]
async fn the_cost_of_a_response_is_charged_after_it() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    for _ in 0..3 {
        // Without a report of the app, Envoy only asks.
        let answer = client.get("/tokens", &[("x-api-key", "one")]).await?;
        ensure!(answer.status == 200 && answer.header("x-ratelimit-remaining") == "25", "{answer:?}");
    }
    let answer = client.get("/tokens", &[("x-api-key", "one"), ("x-tokens", "25")]).await?;
    ensure!(answer.status == 200 && answer.header("x-ratelimit-remaining") == "25", "{answer:?}");
    // Envoy charges the report after the client has its response, and counts this question nowhere.
    until("the charge of 25 tokens", async || {
        let answer = stage.client().await?.get("/tokens", &[("x-api-key", "one")]).await?;
        Ok((answer.status == 429).then_some(()))
    })
    .await?;
    let answer = client.get("/tokens", &[("x-api-key", "two")]).await?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn requests_pass_while_the_service_is_away_and_are_limited_when_it_is_back() -> Result<()> {
    let mut stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    let of_one = [("x-api-key", "one"), ("x-cost", "3")];
    ensure!(client.get("/cost", &of_one).await?.status == 200, "below the limit");
    ensure!(client.get("/cost", &of_one).await?.status == 429, "beyond the limit");
    let address = stage.services[0].listen;
    stage.services.remove(0).kill().await?;
    let answer = client.get("/cost", &of_one).await?;
    ensure!(answer.status == 200 && answer.header("x-ratelimit-limit").is_empty(), "not open: {answer:?}");
    ensure!(stage.stat("error").await? == 1 && stage.stat("failure_mode_allowed").await? == 1, "no error was counted");
    let service = Service::start(&stage.bootstrap(), Some(address)).await?;
    stage.services.push(service);
    ensure!(client.get("/cost", &of_one).await?.status == 200, "the next service has counted nothing yet");
    ensure!(client.get("/cost", &of_one).await?.status == 429, "Envoy does not ask the next service");
    Ok(())
}

/// Two services behind one name, as in a rolling update. One of them is asked to end while requests arrive.
#[tokio::test]
async fn a_service_ends_without_an_error_for_envoy() -> Result<()> {
    const CLIENTS: usize = 8;
    const SOME: u64 = 400;
    let mut stage = Stage::start(&rules(), 2).await?;
    let answered = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (mut client, answered) = (stage.client().await?, answered.clone());
        clients.spawn(async move {
            let key = number.to_string();
            loop {
                let answer = client.get("/cost", &[("x-api-key", &key), ("x-cost", "1")]).await?;
                // Each of the two services admits three requests of each key.
                ensure!(matches!(answer.status, 200 | 429), "{answer:?}");
                ensure!(!answer.header("x-ratelimit-limit").is_empty(), "no service decided: {answer:?}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let more = async || {
        let wanted = answered.load(Ordering::Relaxed) + SOME;
        until("more requests", async || Ok((answered.load(Ordering::Relaxed) >= wanted).then_some(()))).await
    };
    let service = stage.services.remove(0);
    let ends = async {
        more().await?;
        let before = answered.load(Ordering::Relaxed);
        ensure!(service.end().await?.success(), "the service did not end well");
        println!("{} requests while the service ended", answered.load(Ordering::Relaxed) - before);
        more().await
    };
    tokio::select! {
        Some(client) = clients.join_next() => client?,
        ended = ends => ended,
    }?;
    let errors = stage.stat("error").await?;
    ensure!(errors == 0, "{errors} questions of Envoy failed");
    Ok(())
}
