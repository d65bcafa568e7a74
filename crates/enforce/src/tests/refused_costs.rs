//! The headers of refusals of requests that cost more than one unit.

use std::time::Duration;

use super::{
    ended_seats::{World, shared},
    *,
};

fn by_cost(more: Value) -> Value {
    with(json!({"cost": {"requestHeader": {"name": "x-cost", "most": 100}}}), more)
}

fn both() -> Value {
    json!({"onLimit": {
        "status": 429, "headers": "Both", "set": [{"name": "x-why", "value": "{remaining} of {limit}, {resetAfter} s"}],
    }})
}

/// Returns the status, and the headers that describe the quota.
async fn ask(limits: &Limits, target: &str, cost: u64) -> (u16, [Option<String>; 5]) {
    let request = Request::builder().uri(target).header("x-cost", cost).body(()).expect("a request");
    let response = limits.send(request, ok).await;
    let header = |name: &str| Some(response.headers().get(name)?.to_str().expect("text").to_owned());
    let names = ["ratelimit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after", "x-why"];
    (response.status().as_u16(), names.map(header))
}

fn refused(headers: [Option<&str>; 5]) -> (u16, [Option<String>; 5]) {
    (429, headers.map(|header| header.map(str::to_owned)))
}

/// The headers have the units that the limit admits. Without a possible retry, they have no time of reset.
#[tokio::test(start_paused = true)]
async fn a_refusal_reports_what_the_limit_admits() {
    for (strategy, burst) in [
        ("FixedWindow", json!({})),
        ("SlidingWindowCounter", json!({})),
        ("SlidingWindowLog", json!({})),
        ("TokenBucket", json!({"burst": 5})),
        ("TokenBucketWithDebt", json!({"burst": 4, "debt": 1})),
        ("GCRA", json!({"burst": 5})),
    ] {
        let hour = limit(strategy, 5, 3_600_000, burst);
        for waits in [json!({}), json!({"maxWaitMillis": 10})] {
            let mut more = by_cost(both());
            more["onLimit"] = with(more["onLimit"].clone(), waits);
            let limits = Limits::new(&[policy("p", &[rule("r", std::slice::from_ref(&hour), more)])]);
            let (status, never) = ask(&limits, "/", 6).await;
            assert_eq!((status, &never[..4]), (429, &[Some("\"l\";r=5".into()), Some("5".into()), None, None][..]));
            assert!(never[4].as_ref().is_some_and(|why| why.starts_with("5 of 5, ")), "{strategy}: {never:?}");
            assert_eq!(ask(&limits, "/", 3).await.0, 200);
            let (status, [ietf, remaining, reset, retry_after, why]) = ask(&limits, "/", 3).await;
            let seconds = retry_after.expect("a time");
            assert_eq!((status, ietf), (429, Some(format!("\"l\";r=2;t={seconds}"))), "{strategy}");
            assert_eq!((remaining, reset), (Some("2".into()), Some(seconds.clone())), "{strategy}");
            assert_eq!(why, Some(format!("2 of 5, {seconds} s")), "{strategy}");
            assert_eq!(ask(&limits, "/", 2).await.0, 200, "{strategy}");
            let (_, [ietf, remaining, reset, retry_after, why]) = ask(&limits, "/", 6).await;
            assert_eq!((ietf, remaining), (Some("\"l\";r=0".into()), Some("0".into())), "{strategy}");
            assert_eq!((reset, retry_after), (None, None), "{strategy}");
            let full_in = why.expect("a header");
            assert!(!full_in.ends_with(", 1 s"), "{strategy}: {full_in}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_refuses_with_what_the_limit_admits() {
    let world = World::before_the_end(Duration::from_secs(8));
    let pod = rule("pod", &[limit("FixedWindow", 4, 10_000, json!({"name": "pod"}))], by_cost(both()));
    let limits =
        world.program(&[with(shared(5), by_cost(both())), with(pod, json!({"match": [{"paths": ["/shared"]}]}))]);
    assert_eq!(ask(&limits, "/shared", 1).await.0, 200);
    let why = Some("4 of 5, 8 s");
    assert_eq!(ask(&limits, "/shared", 6).await, refused([Some("\"l\";r=4"), Some("4"), None, None, why]));
    assert_eq!(ask(&limits, "/shared", 3).await.0, 200);
    // The rule of scope Pod refuses this cost only for now.
    let why = Some("1 of 5, 8 s");
    assert_eq!(ask(&limits, "/shared", 6).await, refused([Some("\"l\";r=1"), Some("1"), None, None, why]));
}

#[tokio::test(start_paused = true)]
async fn a_store_refuses_a_cost_for_now() {
    let limits = World::before_the_end(Duration::from_secs(8)).program(&[with(shared(5), by_cost(both()))]);
    assert_eq!(ask(&limits, "/shared", 3).await.0, 200);
    let (ietf, why) = (Some("\"l\";r=2;t=8"), Some("2 of 5, 8 s"));
    assert_eq!(ask(&limits, "/shared", 3).await, refused([ietf, Some("2"), Some("8"), Some("8"), why]));
    assert_eq!(ask(&limits, "/shared", 2).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_limit_refuses_with_the_free_permits() {
    let concurrent = json!({"name": "r", "action": "Limit", "concurrency": {"name": "l", "limit": 5}});
    let limits = Limits::new(&[policy("p", &[with(concurrent, by_cost(both()))])]);
    let never = refused([Some("\"l\";r=5"), Some("5"), None, None, Some("5 of 5, 0 s")]);
    assert_eq!(ask(&limits, "/", 6).await, never);
    let held = limits.send(Request::builder().header("x-cost", "3").body(()).expect("a request"), ok).await;
    let soon = refused([Some("\"l\";r=2"), Some("2"), None, Some("1"), Some("2 of 5, 1 s")]);
    assert_eq!(ask(&limits, "/", 3).await, soon);
    drop(held);
}
