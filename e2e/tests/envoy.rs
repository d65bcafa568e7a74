//! Tests `weir-agent rls` as the rate limit service of a real Envoy. `WEIR_ENVOY` is the path of Envoy.
//!
//! Most limits are buckets that refill in hours, so the end of a window cannot change a result.

#![expect(clippy::disallowed_methods, reason = "waits for other programs")]

mod programs;
#[path = "envoy/stage.rs"]
mod stage;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::stage::{Behaviour, Envoy, Quotas, Service, Stage, until};

const DAY: u64 = 24 * 3600 * 1000;

/// A limit of `requests` a day that admits all of them at the same time.
fn a_day(requests: u64) -> Value {
    json!([{ "name": "day", "strategy": "TokenBucket", "requests": requests, "periodMillis": DAY, "burst": requests }])
}

fn per_second(requests: u64, burst: u64) -> Value {
    json!([{ "name": "rate", "strategy": "TokenBucket", "requests": requests, "periodMillis": 1000, "burst": burst }])
}

/// A rule with a key, for requests with this descriptor.
fn keyed(name: &str, descriptor: &str, limits: &Value) -> Value {
    let matches = json!([{ "descriptor": [{ "name": descriptor }] }]);
    json!({ "name": name, "action": "Limit", "match": matches, "key": [{ "descriptor": descriptor }], "limits": limits })
}

fn rules() -> Value {
    let checkout = json!([{ "descriptor": [{ "name": "path", "value": "/checkout" }] }]);
    let mut client = keyed("client", "api_key", &a_day(3));
    client["responseHeaders"] = json!([{ "name": "x-quota", "value": "{remaining} of {limit}" }]);
    let set = json!([{ "name": "x-refused-by", "value": "{policy}/{rule}" }]);
    client["onLimit"] = json!({ "status": 429, "headers": "IETF", "set": set, "body": "slow down\n" });
    let mut export = keyed("export", "remote_address", &a_day(2));
    export["match"] =
        json!([{ "descriptor": [{ "name": "remote_address" }, { "name": "generic_key", "value": "export" }] }]);
    // Burst and debt together are what the bucket admits.
    let mut tokens = keyed("tokens", "tokens", &a_day(10));
    tokens["limits"][0]["strategy"] = "TokenBucketWithDebt".into();
    tokens["limits"][0]["debt"] = 15.into();
    let mut plan = keyed("plan", "plan", &a_day(1));
    plan["limitOverride"] = json!({ "maxRequests": 100, "periodMillis": DAY });
    json!([
        { "name": "checkout", "action": "Limit", "match": checkout, "limits": a_day(100) },
        client,
        export,
        tokens,
        keyed("estimate", "estimate", &a_day(10)),
        plan,
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
    // A client of gRPC does not repeat a call that has exhausted a resource (8).
    let answer = client.get("/checkout", &[("x-api-key", "one"), ("content-type", "application/grpc")]).await?;
    ensure!((answer.status, answer.header("grpc-status")) == (200, "8"), "{answer:?}");
    // A request without the header has one descriptor less.
    let answer = client.get("/checkout", &[]).await?;
    ensure!(answer.status == 200 && answer.header("x-ratelimit-limit").starts_with("100, "), "{answer:?}");
    // Four admitted requests and this one: the refused one charged no limit.
    ensure!(answer.header("x-ratelimit-remaining") == "95", "{answer:?}");
    ensure!(stage.stat("over_limit").await? == 2 && stage.stat("error").await? == 0, "Envoy counted otherwise");
    Ok(())
}

#[tokio::test]
async fn a_header_that_is_not_utf_8_is_limited() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(client.get_with("/checkout", &[("x-api-key", b"bad\xff")]).await?.status);
    }
    ensure!(statuses == [200, 200, 200, 429] && stage.stat("error").await? == 0, "{statuses:?}");
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

/// Envoy charges an estimate before a request. After the response, it gives back what the app reports as unused.
#[tokio::test]
async fn the_unused_part_of_an_estimate_is_given_back() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    let mut get = async |cost, unused| {
        client.get("/estimate", &[("x-api-key", "one"), ("x-cost", cost), ("x-tokens", unused)]).await
    };
    let answer = get("8", "5").await?;
    ensure!(answer.status == 200 && answer.header("x-ratelimit-remaining") == "2", "{answer:?}");
    until("5 units are given back", async || {
        let answer = stage.client().await?.get("/estimate", &[("x-api-key", "one"), ("x-cost", "8")]).await?;
        ensure!(answer.status == 429, "beyond the limit: {answer:?}");
        Ok((answer.header("x-ratelimit-remaining") == "7").then_some(()))
    })
    .await?;
    ensure!(get("7", "0").await?.status == 200, "7 units are left");
    ensure!(get("1", "0").await?.status == 429, "no unit is left");
    Ok(())
}

/// Envoy knows the plan of a client, and sends its limit. The rule's own limit is 1.
#[tokio::test]
async fn envoy_brings_the_limit_of_a_client() -> Result<()> {
    let stage = Stage::start(&rules(), 1).await?;
    let mut client = stage.client().await?;
    for key in ["one", "two"] {
        for remaining in ["3", "2", "1", "0"] {
            let answer = client.get("/plan", &[("x-api-key", key)]).await?;
            ensure!(answer.status == 200 && answer.header("x-ratelimit-remaining") == remaining, "{key}: {answer:?}");
        }
        ensure!(client.get("/plan", &[("x-api-key", key)]).await?.status == 429, "{key}");
    }
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

const QUOTA_RATE: u64 = 200;
const QUOTA_BURST: u64 = 100;

/// Sends requests to these Envoys at the same time until they have admitted `wanted`. Checks after each request that
/// all Envoys together have admitted at most what the limit admits since `start`. Returns what each of them has admitted.
async fn load(envoys: &[&Envoy], wanted: u64, admitted: &Arc<AtomicU64>, start: Instant) -> Result<Vec<u64>> {
    const CLIENTS: usize = 8;
    let (begun, end) = (Instant::now(), admitted.load(Ordering::Relaxed) + wanted);
    let mut clients = JoinSet::new();
    for (index, envoy) in envoys.iter().enumerate() {
        for _ in 0..CLIENTS {
            let (mut client, admitted) = (envoy.client().await?, Arc::clone(admitted));
            clients.spawn(async move {
                let mut own = 0;
                while admitted.load(Ordering::Relaxed) < end {
                    let answer = client.get("/", &[("x-api-key", "ann")]).await?;
                    ensure!(matches!(answer.status, 200 | 429), "{answer:?}");
                    if answer.status == 200 {
                        own += 1;
                        let all = admitted.fetch_add(1, Ordering::Relaxed) + 1;
                        // The limit was full at the start.
                        let most = QUOTA_BURST + u64::try_from(start.elapsed().as_micros())? * QUOTA_RATE / 1_000_000;
                        ensure!(all <= most, "{all} of {most}");
                    }
                    ensure!(
                        begun.elapsed() < stage::PATIENCE,
                        "{} of {end} requests",
                        admitted.load(Ordering::Relaxed)
                    );
                }
                Ok((index, own))
            });
        }
    }
    let mut of_each = vec![0; envoys.len()];
    while let Some(client) = clients.join_next().await {
        let (index, own): (usize, u64) = client??;
        of_each[index] += own;
    }
    Ok(of_each)
}

/// Envoys decide by themselves, with units that the service has charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_envoys_with_quotas_share_a_limit_exactly() -> Result<()> {
    let mut limit =
        json!([{ "name": "rate", "strategy": "TokenBucket", "requests": QUOTA_RATE, "periodMillis": 1000 }]);
    limit[0]["burst"] = QUOTA_BURST.into();
    let quotas = Quotas::start(&json!([keyed("client", "api_key", &limit)]), &[Behaviour::EXACT; 2]).await?;
    let (one, two) = (&quotas.envoys[0], &quotas.envoys[1]);
    let admitted = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut phases = Vec::new();
    for (envoys, wanted) in [(&[one][..], 1_200), (&[two], 1_200), (&[one, two], 4_000)] {
        let before = start.elapsed();
        let of_each = load(envoys, wanted, &admitted, start).await?;
        phases.push((of_each, (start.elapsed() - before).as_secs_f32()));
    }
    println!("admitted by each Envoy, and seconds: {phases:?}");
    let both = &phases[2].0;
    // Envoy reports every 5 s, so an Envoy without requests gets its part of the limit 5 s later.
    ensure!(both.iter().all(|own| *own >= 1_000), "no Envoy may get all: {both:?}");
    let tokens = quotas.service.metric("weir_quota_tokens_total").await?;
    let all = admitted.load(Ordering::Relaxed);
    ensure!(all <= tokens, "{all} requests with {tokens} units");
    // A request without the header is in no bucket.
    ensure!(one.client().await?.get("/", &[]).await?.status == 200, "not in a bucket");
    Ok(())
}

/// A limit per second for one value of the header, or for each of them.
fn a_second(name: &str, value: Option<&str>, requests: u64) -> Value {
    let mut rule = keyed(name, "api_key", &per_second(requests, requests));
    rule["match"][0]["descriptor"][0]["value"] = json!(value);
    rule
}

async fn until_status(envoy: &Envoy, key: &[u8], status: u16) -> Result<()> {
    let what = format!("status {status} for {}", key.escape_ascii());
    until(&what, async || {
        let answer = envoy.client().await?.get_with("/", &[("x-api-key", key)]).await?;
        Ok((answer.status == status).then_some(()))
    })
    .await
}

/// Values that are long or not UTF-8 share a bucket. Envoy could get no assignment for a bucket of their own.
#[tokio::test]
async fn any_value_of_a_header_is_in_a_bucket() -> Result<()> {
    let quotas = Quotas::start(&json!([a_second("client", None, 1_000)]), &[Behaviour::EXACT]).await?;
    let long = [b'x'; 3000];
    for value in [&b"bad\xff"[..], b"\xed\xa0\x80", &long, b"", b"ann"] {
        until_status(&quotas.envoys[0], value, 200).await?;
    }
    ensure!(quotas.service.metric("weir_quota_buckets").await? == 2, "one bucket of ann, and one of all others");
    ensure!(quotas.service.metric("weir_quota_buckets_refused_total").await? == 0, "each bucket has room");
    Ok(())
}

/// Units expire 10 s after the end of the service. Then Envoy does not return to the behaviour without an assignment.
#[tokio::test]
async fn expired_units_have_their_own_behaviour() -> Result<()> {
    let closed = json!({
        "name": "closed",
        "action": "Deny",
        "match": [{ "descriptor": [{ "name": "api_key", "value": "closed" }] }],
    });
    let rules = json!([a_second("few", Some("few"), 10), a_second("many", Some("many"), 1_000_000), closed]);
    let opens = Behaviour { without_assignment: "DENY_ALL", expired: "ALLOW_ALL" };
    let closes = Behaviour { without_assignment: "ALLOW_ALL", expired: "DENY_ALL" };
    let quotas = Quotas::start(&rules, &[opens, closes]).await?;
    let (opens, closes) = (&quotas.envoys[0], &quotas.envoys[1]);
    until_status(opens, b"few", 200).await?;
    until_status(closes, b"many", 200).await?;
    // The units of `many` arrive before this ban, or with it.
    until_status(closes, b"closed", 429).await?;
    quotas.service.kill().await?;
    // No units are left, and then they expire.
    until_status(opens, b"few", 429).await?;
    until_status(opens, b"few", 200).await?;
    // More units than requests were left.
    until_status(closes, b"many", 429).await
}
