//! Requests that wait, and policies that do not wait for ever.

use std::{future::pending, time::Duration};

use http_body_util::BodyExt;
use tokio::time::Instant;

use super::*;

async fn passed<T>(future: impl Future<Output = T>) -> (T, u128) {
    let start = tokio_now();
    let value = future.await;
    (value, tokio_now().duration_since(start).as_millis())
}

fn tokio_now() -> Instant {
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn turns_are_given_at_once_and_in_order() {
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("LeakyBucket", 10, 1000, json!({}))], wait(250))])]);
    let turns: Vec<_> = (0..5).map(|_| limits.send(get("/"), ok)).collect();
    let mut taken = Vec::new();
    for turn in turns {
        let (response, _) = passed(turn).await;
        taken.push(response.status().as_u16());
    }
    // At 0, 100 and 200 ms; the fourth would come at 300, and was told so before anybody had waited.
    assert_eq!(taken, [200, 200, 200, 429, 429]);
    assert_eq!(limits.counts(0, 0), [3, 2, 0, 2]);
    let waits = limits.rules.load().policies()[0].rules[0].waits();
    assert_eq!(waits.sum, Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn who_waits_comes_at_its_turn_and_who_leaves_gives_it_back() {
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("GCRA", 1, 1000, json!({}))], wait(2000))])]);
    assert_eq!(limits.status("/").await, 200);
    let second = limits.send(get("/"), ok);
    let third = limits.send(get("/"), ok);
    assert_eq!(limits.status("/").await, 429);
    drop(third);
    let fourth = limits.send(get("/"), ok);
    let ((response, took), (last, last_took)) = tokio::join!(passed(second), passed(fourth));
    assert_eq!((response.status().as_u16(), took), (200, 1000));
    assert_eq!((last.status().as_u16(), last_took), (200, 2000));
    assert_eq!(limits.counts(0, 0), [3, 1, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn several_rules_give_their_turns_together_or_not_at_all() {
    let line =
        |name: &str, requests, millis| rule(name, &[limit("LeakyBucket", requests, 1000, json!({}))], wait(millis));
    let day = rule("day", &[limit("TokenBucket", 3, 86_400_000, json!({}))], json!({}));
    let limits = Limits::new(&[policy("p", &[line("fast", 10, 1000), line("slow", 2, 1000), day])]);
    let turns: Vec<_> = (0..5).map(|_| limits.send(get("/"), ok)).collect();
    let (mut statuses, mut took) = (Vec::new(), 0);
    for turn in turns {
        let (response, millis) = passed(turn).await;
        statuses.push(response.status().as_u16());
        took += millis;
    }
    // The slow line is at 0, 500, 1000 ms; what comes after is refused by the day, and then by nobody's line.
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(took, 1000);
    // Had a refusal kept its place in the fast line, this would be behind two more.
    let rules = limits.rules.load();
    let fast = rules.policies()[0].rules[0].limits.as_ref().expect("limits");
    assert_eq!(fast.limiter.peek(limits.clock.now(), &[], 1).expect("free").standing.reset_after(), Duration::ZERO);
    assert_eq!(limits.counts(0, 0), [3, 0, 0, 2]);
    assert_eq!(limits.counts(0, 2), [3, 2, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_beyond_the_deadline() {
    let line = rule("r", &[limit("GCRA", 1, 1000, json!({}))], wait(60_000));
    let limits = Limits::new(&[with(policy("p", &[line]), json!({"deadlineMillis": 1500}))]);
    assert_eq!(limits.status("/").await, 200);
    let second = limits.send(get("/"), ok);
    let (third, took) = passed(limits.get("/")).await;
    assert_eq!((third.status().as_u16(), took), (429, 0), "its turn would come after 2 s");
    assert_eq!(passed(second).await.1, 1000);
}

#[tokio::test(start_paused = true)]
async fn wait_and_app_share_the_deadline() {
    let line = rule("r", &[limit("GCRA", 1, 1000, json!({}))], wait(60_000));
    let limits = Limits::new(&[with(policy("p", &[line]), json!({"deadlineMillis": 1500}))]);
    let never = |_| pending::<Response<ResponseBody>>();
    let (first, took) = passed(limits.send(get("/"), never)).await;
    assert_eq!((first.status().as_u16(), took), (504, 1500));
    let text = first.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(text, "weir-agent: no answer within the deadline of 1500 ms\n");
    assert_eq!(limits.status("/").await, 200);
    let (waited, took) = passed(limits.send(get("/"), never)).await;
    assert_eq!((waited.status().as_u16(), took), (504, 1500), "of which a second was the wait");
    let grpc = Request::builder().header("content-type", "application/grpc").body(()).expect("a request");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let answer = limits.send(grpc, never).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &http::HeaderValue::from(4)));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_never_makes_anybody_wait() {
    let line = rule("r", &[limit("GCRA", 1, 1000, json!({}))], wait(1000));
    let shadow = with(policy("p", &[line]), json!({"mode": "Shadow", "deadlineMillis": 5000}));
    let limits = Limits::new(&[shadow]);
    for _ in 0..3 {
        assert_eq!(passed(limits.status("/")).await, (200, 0));
    }
    assert_eq!(limits.counts(0, 0), [2, 0, 1, 1]);
}
