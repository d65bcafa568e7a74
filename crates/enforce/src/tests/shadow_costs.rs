//! Costs in headers of responses, for rules in shadow mode.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use tokio::time::sleep;
use weir_store::Backend;

use super::{ended_seats::World, *};

/// A rule with this limit and the cost in `x-units`.
fn costing(limit: Value, more: Value) -> Value {
    let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 100}}});
    rule("told", &[limit], with(cost, more))
}

fn shadow(rules: &[Value]) -> Value {
    with(policy("p", rules), json!({"mode": "Shadow"}))
}

/// Answers with the cost 10 after this time.
fn costly(after: Duration) -> impl Fn(Request<()>) -> BoxFuture<'static, Response<AppBody>> + Clone {
    move |_| {
        let answer = async move {
            sleep(after).await;
            Response::builder().header("x-units", "10").body("ok".into()).expect("a response")
        };
        answer.boxed()
    }
}

/// The client never gets the header, even if rules in shadow mode would refuse the request, for any reason.
#[tokio::test(start_paused = true)]
async fn a_refusal_in_shadow_mode_hides_the_cost() {
    let costing =
        |more: Value| costing(limit("TokenBucketWithDebt", 1, 3_600_000, json!({"burst": 1, "debt": 0})), more);
    let ban = json!({"key": [{"header": "x-user"}], "ban": {"after": 1, "withinMillis": 60_000, "forMillis": 600_000}});
    let store = json!({"shared": {
        "store": "shop/limits", "counters": "shop/p.told", "stamp": 1, "onStoreLoss": "LocalShare", "sharers": 2,
    }});
    let other = |more: Value| with(json!({"name": "other"}), more);
    let deny = other(json!({"action": "Deny"}));
    let bypass = other(json!({"action": "Bypass"}));
    let concurrent = other(json!({"action": "Limit", "concurrency": {"name": "l", "limit": 1}}));
    for (rules, is_hidden, refuses) in [
        (vec![costing(json!({}))], true, true),
        (vec![costing(ban)], true, true),
        (vec![costing(store)], true, true),
        (vec![costing(json!({})), deny], true, true),
        (vec![costing(json!({})), concurrent], true, true),
        (vec![costing(json!({})), bypass], false, false),
    ] {
        let world = World::before_the_end(Duration::from_secs(8));
        let memory = Arc::clone(&world.memory);
        let limits = world.program_of(&[shadow(&rules)], move || Ok(Backend::Memory(Arc::clone(&memory))));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(limits.send(get("/"), costly(Duration::ZERO)).await);
            sleep(Duration::from_millis(200)).await;
        }
        for answer in held {
            assert_eq!(
                (answer.status().as_u16(), answer.headers().contains_key("x-units")),
                (200, !is_hidden),
                "{rules:?}"
            );
        }
        let refused: u64 = (0..rules.len()).map(|rule| limits.counts(0, rule)[2]).sum();
        assert_eq!(refused > 0, refuses, "{rules:?}");
    }
}

/// The store answers before or after the app.
#[tokio::test(start_paused = true)]
async fn a_store_charges_the_cost_of_a_request_that_it_admits() {
    for after in [Duration::ZERO, Duration::from_secs(1)] {
        for is_admitted in [true, false] {
            let store = json!({"shared": {
                "store": "shop/limits", "counters": "shop/p.told", "stamp": 1, "onStoreLoss": "FailClosed", "sharers": 2,
            }});
            let limit = limit("TokenBucketWithDebt", 10, 100_000, json!({"burst": 10, "debt": 0}));
            let rules = [costing(limit, store)];
            let world = World::before_the_end(Duration::from_secs(8));
            let memory = Arc::clone(&world.memory);
            let tries = world.program_of(&[shadow(&rules)], move || Ok(Backend::Memory(Arc::clone(&memory))));
            let enforces = world.program(&rules);
            if !is_admitted {
                assert_eq!(enforces.send(get("/"), costly(Duration::ZERO)).await.status(), 200);
                sleep(Duration::from_millis(200)).await;
            }
            assert_eq!(tries.send(get("/"), costly(after)).await.status(), 200);
            sleep(Duration::from_millis(500)).await;
            assert_eq!(tries.counts(0, 0), if is_admitted { [1, 0, 0, 0] } else { [0, 0, 1, 0] });
            let refused = enforces.send(get("/"), ok).await.status() == 429;
            // The bucket refills one unit.
            sleep(Duration::from_secs(10)).await;
            let admitted = enforces.send(get("/"), ok).await.status() == 200;
            assert_eq!((refused, admitted), (true, true), "{after:?}, admitted: {is_admitted}");
        }
    }
}
