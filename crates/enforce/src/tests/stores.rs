//! What an answer says about limits that a store counts.

use std::{rc::Rc, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use tokio::time::sleep;
use weir_store::Backend;

use super::{ended_seats::World, *};

/// The part of a rule that a store counts.
fn counted(on_loss: &str) -> Value {
    json!({"shared": {
        "store": "shop/limits", "counters": "shop/p.r", "stamp": 1, "onStoreLoss": on_loss, "sharers": 2,
    }})
}

/// Limit `a` has fewer units left, and limit `b` never admits the cost.
#[tokio::test(start_paused = true)]
async fn a_cost_above_a_limit_is_refused_by_this_limit() {
    let (a, b) =
        (limit("FixedWindow", 10, 10_000, json!({"name": "a"})), limit("TokenBucket", 5, 100, json!({"name": "b"})));
    let cost = json!({"cost": {"requestHeader": {"name": "x-cost", "most": 100}}});
    let world = World::before_the_end(Duration::from_secs(5));
    let limits = world.program(&[rule("r", &[a, b], with(counted("LocalShare"), cost))]);
    let of_cost = |cost: &str| Request::builder().uri("/").header("x-cost", cost).body(()).expect("a request");
    for known in [false, true] {
        let refused = limits.send(of_cost("7"), ok).await;
        assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (429, false));
        let remaining = if known { 2 } else { 0 };
        assert_eq!(refused.headers()["ratelimit"], format!("\"b\";r={remaining}"));
        let body = refused.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON")["limit"], json!("b"));
        let request = json!({"method": "GET", "target": "/", "headers": [["x-cost", "7"]]});
        let request = serde_json::from_value(request).expect("a request");
        let explained = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Keep).expect("valid");
        let limit = explained.rules[0].limit.as_ref().map(|limit| &*limit.name);
        assert_eq!(limit, known.then_some("b"));
        for _ in 0..if known { 0 } else { 2 } {
            assert_eq!(limits.send(of_cost("4"), ok).await.status(), 200);
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// A rule without a key has the headroom of the last answer, with the seats of this program.
#[tokio::test(start_paused = true)]
async fn the_headroom_of_a_rule_in_a_store_is_known_after_an_answer() {
    let both = [
        limit("TokenBucket", 100, 1_000, json!({"name": "second"})),
        limit("FixedWindow", 20, 10_000, json!({"name": "window"})),
    ];
    let keyed = with(counted("FailClosed"), json!({"key": [{"header": "x-user"}], "maxKeys": 9}));
    let world = World::before_the_end(Duration::from_secs(9));
    let limits = world.program(&[rule("r", &both, counted("FailClosed"))]);
    let headroom = |of: &Limits| of.rules.load().policies()[0].rules[0].headroom(of.clock.now());
    let request = || Request::builder().uri("/").body(()).expect("a request");
    assert_eq!(headroom(&limits), None, "the store has not answered yet");
    for left in (0..20).rev() {
        assert_eq!(limits.send(request(), ok).await.status(), 200);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(headroom(&limits), Some((left, 20)), "the window has the smallest share");
    }
    for _ in 0..2 {
        assert_eq!(limits.send(request(), ok).await.status(), 429);
        assert_eq!(headroom(&limits).map(|(left, _)| left), Some(0));
    }
    sleep(Duration::from_secs(6)).await;
    assert!(headroom(&limits).is_none_or(|(left, of)| left == of), "a new window has begun");
    let limits = world.program(&[rule("r", &both, keyed)]);
    limits.send(request(), ok).await;
    assert_eq!(headroom(&limits), None, "each key has its own");
}

/// Another key of a rule has its own counts and bans, also for a client with an equal value.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_key_hits_no_other_client() {
    let ban = json!({"ban": {"after": 2, "withinMillis": 60_000, "forMillis": 600_000}});
    for ban in [json!({}), ban] {
        let world = World::before_the_end(Duration::from_secs(9));
        let by = |header: &str| {
            let key = json!({"key": [{"header": header}]});
            rule(
                "r",
                &[limit("FixedWindow", 1, 10_000, json!({}))],
                with(with(counted("FailClosed"), key), ban.clone()),
            )
        };
        let of = |header: &str| Request::builder().uri("/").header(header, "42").body(()).expect("a request");
        let (user, tenant) = (world.program(&[by("x-user")]), world.program(&[by("x-tenant")]));
        for expected in [200, 429, 429, 429] {
            assert_eq!(user.send(of("x-user"), ok).await.status(), expected);
        }
        sleep(Duration::from_millis(200)).await;
        assert_eq!(tenant.send(of("x-tenant"), ok).await.status(), 200, "another client");
        let again = world.program(&[by("x-user")]);
        assert_eq!(again.send(of("x-user"), ok).await.status(), 429, "the store still has the count");
    }
}

/// A ban ends with the first request after another program has lifted it, however late this request arrives.
#[tokio::test(start_paused = true)]
async fn a_ban_that_another_program_lifted_refuses_no_request() {
    let fields = json!({
        "key": [{"header": "x-user"}], "ban": {"after": 2, "withinMillis": 60_000, "forMillis": 600_000},
    });
    let world = World::before_the_end(Duration::from_secs(9));
    let rules = [rule("r", &[limit("FixedWindow", 1, 10_000, json!({}))], with(counted("FailOpen"), fields))];
    let (one, other) = (world.program(&rules), world.program(&rules));
    let send = async |limits: &Limits| {
        let request = Request::builder().uri("/").header("x-user", "42").body(()).expect("a request");
        let answer = limits.send(request, ok).await;
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        let error = serde_json::from_slice::<Value>(&body).map_or(Value::Null, |body| body["error"].clone());
        (status.as_u16(), error)
    };
    for status in [200, 429, 429] {
        assert_eq!(send(&one).await.0, status);
    }
    // The next window has begun. The store must be asked, and the ban is still in force.
    sleep(Duration::from_secs(20)).await;
    for limits in [&one, &other, &one] {
        assert_eq!(send(limits).await, (429, json!("banned")));
        sleep(Duration::from_secs(2)).await;
    }
    let selection = BanSelection { key: vec![b"42".to_vec()], ..BanSelection::default() };
    let lifted = other.rules.load().lift_bans_in_stores(&selection, other.clock.now()).await;
    assert_eq!(lifted.ok(), Some(1));
    sleep(Duration::from_secs(8)).await;
    assert_eq!(send(&one).await.0, 200, "the first request");
    assert_eq!(send(&one).await, (429, json!("rate limited")), "the ban has ended");
}

/// While the store is lost, all requests are admitted: the state of the rule is that of a limit at full credit, and the
/// tightest limit of the descriptor is that of the other rule.
#[tokio::test(start_paused = true)]
async fn a_lost_store_that_fails_open_leaves_everything() {
    let of = |key: &str| json!({"match": [{"descriptor": [{"name": key}]}]});
    let shared = |name: &str, key: &str| {
        rule(name, &[limit("FixedWindow", 9, 10_000, json!({}))], with(counted("FailOpen"), of(key)))
    };
    let own = rule("own", &[limit("FixedWindow", 5, 10_000, json!({}))], of("both"));
    let domain = with(policy("p", &[shared("alone", "alone"), shared("with", "both"), own]), json!({"domain": "shop"}));
    let world = World::before_the_end(Duration::from_secs(9));
    let limits = world.program_of(&[domain], || Err("gone".to_owned()));
    sleep(Duration::from_secs(2)).await;
    for own in [4, 3] {
        for (key, name, remaining) in [("alone", "alone.l", 9), ("both", "own.l", own)] {
            let one = Descriptor {
                entries: vec![(key, "x")],
                is_unordered: false,
                hits: 1,
                is_credit: false,
                is_quota: false,
                limit: None,
            };
            let DescriptorVerdict::Decided(answer) = limits.rules.decide_descriptors("shop", &[one]) else {
                panic!("the store is lost");
            };
            let state = &answer.states[0];
            assert!(!answer.is_refused && !state.is_refused, "{key}");
            let limit = state.limit.as_ref().map(|limit| (&*limit.name, limit.remaining));
            assert_eq!(limit, Some((name, remaining)), "{key}");
        }
    }
}

/// A data plane that takes units in advance tries how many it can get. A refusal of a try is no refusal of a client.
#[tokio::test(start_paused = true)]
async fn a_quota_that_is_refused_bans_nobody() {
    for is_shared in [false, true] {
        let of = json!({"match": [{"descriptor": [{"name": "key"}]}], "key": [{"descriptor": "key"}]});
        let ban = json!({"ban": {"after": 2, "withinMillis": 60_000, "forMillis": 600_000}});
        let more = with(of, if is_shared { with(counted("FailClosed"), ban) } else { ban });
        let rule = rule("r", &[limit("FixedWindow", 10, 10_000, json!({}))], more);
        let world = World::before_the_end(Duration::from_secs(9));
        let memory = Arc::clone(&world.memory);
        let domain = with(policy("p", &[rule]), json!({"domain": "shop"}));
        let limits = world.program_of(&[domain], move || Ok(Backend::Memory(Arc::clone(&memory))));
        let decide = async |is_quota: bool, hits: u64| {
            let entries = vec![("key", "x")];
            let one = Descriptor { entries, is_unordered: false, hits, is_credit: false, is_quota, limit: None };
            match limits.rules.decide_descriptors("shop", &[one]) {
                DescriptorVerdict::Decided(answer) => answer.is_refused,
                DescriptorVerdict::Waits(wait) => wait.answer().await.is_refused,
            }
        };
        assert!(!decide(true, 8).await, "shared: {is_shared}");
        for hits in [8, 7, 6, 5, 4, 3] {
            assert!(decide(true, hits).await, "shared: {is_shared}");
        }
        assert_eq!((decide(false, 1).await, decide(true, 1).await), (false, false), "shared: {is_shared}");
        for _ in 0..2 {
            assert!(decide(false, 1).await, "shared: {is_shared}");
        }
        sleep(Duration::from_secs(10)).await;
        assert!(decide(false, 1).await, "shared: {is_shared}: refusals of clients do count");
    }
}

/// Checks and quotas never wait for the store: for them, a ban is in force until its end, or until an answer says that it
/// was lifted.
#[tokio::test(start_paused = true)]
async fn a_check_of_a_banned_key_is_refused_however_old_the_last_answer_is() {
    let fields = json!({
        "match": [{"descriptor": [{"name": "key"}]}],
        "key": [{"descriptor": "key"}],
        "ban": {"after": 1, "withinMillis": 60_000, "forMillis": 600_000},
    });
    let rule = rule("r", &[limit("FixedWindow", 1, 10_000, json!({}))], with(counted("FailClosed"), fields));
    let world = World::before_the_end(Duration::from_secs(9));
    let memory = Arc::clone(&world.memory);
    let domain = with(policy("p", &[rule]), json!({"domain": "shop"}));
    let limits = world.program_of(&[domain], move || Ok(Backend::Memory(Arc::clone(&memory))));
    let of = |hits: u64| Descriptor {
        entries: vec![("key", "x")],
        is_unordered: false,
        hits,
        is_credit: false,
        is_quota: false,
        limit: None,
    };
    let decide = async |hits: u64| match limits.rules.decide_descriptors("shop", &[of(hits)]) {
        DescriptorVerdict::Decided(answer) => answer,
        DescriptorVerdict::Waits(wait) => wait.answer().await,
    };
    for is_refused in [false, true, true] {
        assert_eq!(decide(1).await.is_refused, is_refused);
    }
    for _ in 0..5 {
        sleep(Duration::from_secs(20)).await;
        let check = decide(0).await;
        assert!(check.is_refused, "a check");
        assert_eq!(check.states[0].limit.as_ref().map(|limit| limit.remaining), Some(0));
        sleep(Duration::from_secs(20)).await;
        let standing = limits.rules.standing("shop", &of(1));
        assert!(matches!(standing, DescriptorStanding::Denied), "{standing:?}");
    }
}

/// A request and its later cost belong to the rule from before a change. They must not give the store another key's limits
/// with the new stamp, because the store keeps the first limits of a stamp.
#[tokio::test(start_paused = true)]
async fn a_cost_of_a_request_from_before_a_change_has_the_limits_of_its_key() {
    let world = World::before_the_end(Duration::from_secs(9));
    let memory = Arc::clone(&world.memory);
    let of = |name: &str, requests: u64| {
        let limit = json!({
            "name": "l", "strategy": "TokenBucketWithDebt", "requests": requests, "periodMillis": 1_000,
        });
        json!({"keys": [[name]], "limits": [limit]})
    };
    let policy = |stamp: u64, overrides: &[Value]| {
        let fields = json!({
            "key": [{"header": "x-user"}], "overrides": overrides,
            "cost": {"responseHeader": {"name": "x-units", "most": 100}},
            "shared": {
                "store": "shop/limits", "counters": "shop/p.r", "stamp": stamp, "onStoreLoss": "FailClosed", "sharers": 2,
            },
        });
        policy("p", &[rule("r", &[limit("TokenBucketWithDebt", 10, 1_000, json!({}))], fields)])
    };
    let before = policy(1, &[of("a", 1), of("b", 1_000)]);
    let limits = Rc::new(world.program_of(&[before], move || Ok(Backend::Memory(Arc::clone(&memory)))));
    let shared = |rule: &Rule| {
        rule.rates().and_then(|limits| limits.shared.as_ref()).map(|shared| Arc::clone(shared.limiter.client()))
    };
    let client = shared(&limits.rules.load().policies()[0].rules[0]).expect("a shared rule");
    let stores = Stores::from([(client.name().to_owned(), client)]);
    let of_b = || Request::builder().uri("/").header("x-user", "b").body(()).expect("a request");
    let changes = Rc::clone(&limits);
    let answer = limits.send(of_b(), move |_| {
        changes.apply_with(&[policy(2, &[of("b", 1_000)])], &stores);
        std::future::ready(Response::builder().header("x-units", "5").body(AppBody::default()).expect("a response"))
    });
    assert_eq!(answer.await.status(), 200);
    sleep(Duration::from_secs(2)).await;
    for index in 0..500 {
        assert_eq!(limits.send(of_b(), ok).await.status(), 200, "request {index}");
    }
}
