//! Requests that wait for their turn, and deadlines of policies.

use std::{future::pending, pin::Pin, time::Duration};

use http_body_util::BodyExt;
use tokio::time::Instant;

use super::*;

pub(super) async fn passed<T>(future: impl Future<Output = T>) -> (T, u128) {
    let start = tokio_now();
    let value = future.await;
    (value, tokio_now().duration_since(start).as_millis())
}

pub(super) fn tokio_now() -> Instant {
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
    // Three requests pass at 0, 100 and 200 ms. The fourth would pass at 300 ms, so it is refused without a wait.
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
    let line = |name: &str, requests, millis| {
        rule(name, &[limit("LeakyBucket", requests, 1000, json!({"burst": 10}))], wait(millis))
    };
    let day = rule("day", &[limit("TokenBucket", 3, 86_400_000, json!({}))], json!({}));
    let limits = Limits::new(&[policy("p", &[line("fast", 10, 5000), line("slow", 2, 5000), day])]);
    let turns: Vec<_> = (0..5).map(|_| limits.send(get("/"), ok)).collect();
    let (mut statuses, mut took) = (Vec::new(), 0);
    for turn in turns {
        let (response, millis) = passed(turn).await;
        statuses.push(response.status().as_u16());
        took += millis;
    }
    // The slow queue admits requests at 0, 500 and 1000 ms. These requests use up the daily limit, which refuses the
    // other two when they are first in the slow queue.
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(took, 1000);
    // The fast queue was charged when the requests passed. If the refused requests had kept their positions, two more
    // requests would be in this queue.
    let rules = limits.rules.load();
    let fast = rules.policies()[0].rules[0].rates().expect("limits");
    let opens = fast.pod_limiter().opens(limits.clock.now(), &[], 1).expect("some time");
    assert_eq!(opens.duration_since(limits.clock.now()), Duration::from_millis(100));
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
    assert_eq!((third.status().as_u16(), took), (429, 0), "the turn of the third request would come after 2 s");
    assert_eq!(passed(second).await.1, 1000);
}

#[tokio::test(start_paused = true)]
async fn wait_and_app_share_the_deadline() {
    let line = rule("r", &[limit("GCRA", 1, 1000, json!({}))], wait(60_000));
    let limits = Limits::new(&[with(policy("p", &[line]), json!({"deadlineMillis": 1500}))]);
    let never = |_| pending::<Response<AppBody>>();
    let (first, took) = passed(limits.send(get("/"), never)).await;
    assert_eq!((first.status().as_u16(), took), (504, 1500));
    let text = first.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(text, "weir-agent: no answer within the deadline of 1500 ms\n");
    assert_eq!(limits.status("/").await, 200);
    let (waited, took) = passed(limits.send(get("/"), never)).await;
    assert_eq!((waited.status().as_u16(), took), (504, 1500), "the deadline includes a wait of one second");
    let grpc = Request::builder().header("content-type", "application/grpc").body(()).expect("a request");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let answer = limits.send(grpc, never).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &http::HeaderValue::from(4)));
}

/// The policy with the shortest deadline gives the response. gRPC clients get the status of gRPC.
#[tokio::test(start_paused = true)]
async fn a_policy_chooses_the_response_after_its_deadline() {
    let hurried = |name: &str, millis: u64, form: Value| {
        let all = rule("r", &[limit("TokenBucket", 100, 1000, json!({}))], json!({}));
        with(policy(name, &[all]), json!({"deadlineMillis": millis, "onDeadline": form}))
    };
    let never = |_| pending::<Response<AppBody>>();
    let page = json!({"status": 503, "body": "<p>later</p>", "contentType": "text/html"});
    for (forms, status, content_type, text) in [
        ([json!({"status": 500}), page.clone()], 503, "text/html", "<p>later</p>"),
        (
            [page, json!({"status": 599})],
            599,
            "text/plain; charset=utf-8",
            "weir-agent: no answer within the deadline of 1500 ms\n",
        ),
    ] {
        let [slow, fast] = forms;
        let limits = Limits::new(&[hurried("slow", 2000, slow), hurried("fast", 1500, fast)]);
        let (answer, took) = passed(limits.send(get("/"), never)).await;
        assert_eq!((answer.status().as_u16(), took), (status, 1500));
        assert_eq!(answer.headers()["content-type"], content_type);
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), text);
        let grpc = Request::builder().header("content-type", "application/grpc").body(()).expect("a request");
        let answer = limits.send(grpc, never).await;
        assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &http::HeaderValue::from(4)));
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "");
    }
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

/// Sends each request in its own task, expects status 200, and returns the time of each response in milliseconds.
pub(super) async fn served(limits: &Limits, requests: impl Iterator<Item = Request<()>>) -> Vec<u128> {
    let start = tokio_now();
    let answers = requests.map(|request| {
        let answer = limits.send(request, ok);
        async move { (answer.await.status() == 200).then(|| start.elapsed().as_millis()) }
    });
    let mut served: Vec<_> = futures::future::join_all(answers).await.into_iter().flatten().collect();
    served.sort_unstable();
    served
}

#[tokio::test(start_paused = true)]
async fn what_waited_for_one_rule_still_goes_at_the_pace_of_the_other() {
    let paced = rule("paced", &[limit("LeakyBucket", 10, 1000, json!({"burst": 99}))], wait(60_000));
    let paced = with(paced, json!({"match": [{"paths": ["/x"]}]}));
    let log = rule("log", &[limit("SlidingWindowLog", 50, 10_000, json!({}))], wait(60_000));
    let limits = Limits::new(&[policy("p", &[paced, log])]);
    assert_eq!(served(&limits, (0..50).map(|_| get("/"))).await, [0; 50]);
    // The log has no room for ten seconds, and then room for fifty requests, of which the leaky bucket admits one per
    // 100 ms.
    let expected: Vec<_> = (0..50).map(|place| 10_000 + 100 * place).collect();
    assert_eq!(served(&limits, (0..50).map(|_| get("/x"))).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_its_own_limit_holds_up_no_other() {
    let own = rule("own", &[limit("GCRA", 1, 1000, json!({}))], wait(10_000));
    let own = with(own, json!({"key": [{"header": "x-client"}], "maxKeys": 100}));
    let pod = rule("pod", &[limit("GCRA", 10, 1000, json!({}))], wait(10_000));
    // The result does not depend on the order of the rules.
    for rules in [[own.clone(), pod.clone()], [pod, own]] {
        let limits = Limits::new(&[policy("p", &rules)]);
        let of = |client: String| Request::builder().uri("/").header("x-client", client).body(()).expect("a request");
        let clients = (0..9).map(|_| String::from("greedy")).chain((0..9).map(|number| number.to_string()));
        let served = served(&limits, clients.map(of)).await;
        // The first request of the greedy client and the requests of the nine other clients pass at the pod's rate.
        // Then one request of the greedy client passes per second.
        let expected: Vec<_> = (0..10).map(|place| 100 * place).chain((1..9).map(|place| 1000 * place)).collect();
        assert_eq!(served, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_leaves_takes_nothing_from_those_who_stay() {
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("GCRA", 10, 1000, json!({}))], wait(5_000))])]);
    let poll = async |mut waits: Pin<Box<_>>| futures::poll!(&mut waits).is_pending().then_some(waits);
    let mut waiting = Vec::new();
    for _ in 0..500 {
        waiting.extend(poll(Box::pin(limits.send(get("/"), ok))).await);
    }
    assert_eq!(waiting.len(), 50, "one request passes immediately, and fifty have a turn within five seconds");
    let mut number = 0;
    waiting.retain(|_| {
        number += 1;
        number % 10 == 3
    });
    for _ in 0..100 {
        waiting.extend(poll(Box::pin(limits.send(get("/"), ok))).await);
    }
    assert_eq!(waiting.len(), 50, "new requests take the positions of cancelled requests");
    let start = tokio_now();
    let served = futures::future::join_all(waiting).await;
    assert!(served.iter().all(|response| response.status() == 200));
    assert_eq!(start.elapsed(), Duration::from_millis(5000));
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_cut_tells_those_who_are_too_late_at_once() {
    let paced = |requests| policy("p", &[rule("r", &[limit("GCRA", requests, 1000, json!({}))], wait(1_000))]);
    let limits = Limits::new(&[paced(10)]);
    let mut waits: Vec<_> = (0..11).map(|_| Box::pin(limits.send(get("/"), ok))).collect();
    for wait in &mut waits {
        let _ = futures::poll!(wait);
    }
    limits.apply(&[paced(2)]);
    let start = tokio_now();
    let statuses = futures::future::join_all(waits.drain(1..).map(async |wait| {
        let status = wait.await.status().as_u16();
        (status, start.elapsed().as_millis())
    }));
    let expected: Vec<_> = [(200, 500), (200, 1000)].into_iter().chain([(429, 0); 8]).collect();
    assert_eq!(statuses.await, expected);
    assert_eq!(limits.counts(0, 0), [3, 8, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_added_also_counts_those_who_wait() {
    let limit = |name: &str, strategy, requests, millis| limit(strategy, requests, millis, json!({"name": name}));
    let (paced, hourly) = (limit("paced", "GCRA", 10, 1000), limit("hourly", "TokenBucket", 5, 3_600_000));
    let of = |limits: &[Value], key: Value| policy("p", &[rule("r", limits, with(wait(1_000), key))]);
    for key in [json!({}), json!({"key": [{"header": "x-client"}], "maxKeys": 100})] {
        let limits = Limits::new(&[of(std::slice::from_ref(&paced), key.clone())]);
        let send = || limits.send(Request::builder().header("x-client", "ann").body(()).expect("a request"), ok);
        assert_eq!(send().await.status(), 200);
        let mut waits: Vec<_> = (0..5).map(|_| Box::pin(send())).collect();
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
        limits.apply(&[of(&[paced.clone(), hourly.clone()], key)]);
        let answers = futures::future::join_all(waits).await;
        assert!(answers.iter().all(|answer| answer.status() == 200));
        assert_eq!(send().await.status(), 429, "five requests have used up the new limit");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_late_keeps_no_place_in_any_queue() {
    let rules = |requests| {
        let paced = rule("paced", &[limit("GCRA", requests, 1000, json!({}))], wait(1_000));
        let paced = with(paced, json!({"match": [{"paths": ["/x"]}]}));
        let all = rule("all", &[limit("TokenBucket", 11, 3_600_000, json!({"burst": 11}))], json!({}));
        policy("p", &[paced, all])
    };
    let limits = Limits::new(&[rules(10)]);
    let mut waits: Vec<_> = (0..11).map(|_| Box::pin(limits.send(get("/x"), ok))).collect();
    for wait in &mut waits {
        let _ = futures::poll!(wait);
    }
    limits.apply(&[rules(2)]);
    let answers = futures::future::join_all(waits.drain(1..)).await;
    assert_eq!(answers.iter().filter(|answer| answer.status() == 429).count(), 8);
    // Three of the eleven requests passed. The refused requests charged nothing, so eight requests remain.
    for _ in 0..8 {
        assert_eq!(limits.status("/").await, 200);
    }
    assert_eq!(limits.status("/").await, 429);
}

/// New requests in shadow mode do not take the turns of requests that wait.
#[tokio::test(start_paused = true)]
async fn who_waits_keeps_its_turn_when_the_rule_goes_into_shadow() {
    for (strategy, more, at_once, last) in [
        ("TokenBucket", json!({"burst": 1}), 1, 1_200),
        ("LeakyBucket", json!({"burst": 10}), 1, 1_200),
        ("GCRA", json!({}), 1, 1_200),
        ("SlidingWindowLog", json!({}), 5, 2_000),
    ] {
        let of = |mode: &str| {
            let limits = [limit(strategy, 5, 1_000, more.clone())];
            [with(policy("p", &[rule("r", &limits, wait(3_000))]), json!({"mode": mode}))]
        };
        let limits = Limits::new(&of("Enforce"));
        for _ in 0..at_once {
            assert_eq!(limits.status("/").await, 200);
        }
        let turns: Vec<_> = (0..6).map(|_| passed(limits.send(get("/"), ok))).collect();
        limits.apply(&of("Shadow"));
        let in_shadow = async {
            for _ in 0..40 {
                assert_eq!(limits.status("/").await, 200);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let (turns, ()) = tokio::join!(futures::future::join_all(turns), in_shadow);
        let took: Vec<_> = turns.iter().map(|(response, took)| (response.status().as_u16(), *took)).collect();
        assert!(took.iter().all(|(status, took)| *status == 200 && *took <= last), "{strategy}: {took:?}");
        let [allowed, _, in_shadow, _] = limits.counts(0, 0);
        assert!(allowed > at_once + 6 && in_shadow > 0, "{strategy}: the rule charges again when the queue is empty");
    }
}
