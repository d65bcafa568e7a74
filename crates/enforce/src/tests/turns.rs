//! Requests that wait for their own limit, and at their turn find no room in a limit that all clients share.

use std::time::Duration;

use super::{
    waiting::{passed, served, tokio_now},
    *,
};

/// A request of this client to its own limit.
fn of(client: impl std::fmt::Display) -> Request<()> {
    Request::builder().uri("/").header("x-client", client.to_string()).body(()).expect("a request")
}

/// The limit of each client, which lets requests wait for so many milliseconds.
fn own(requests: u64, millis: u64) -> Value {
    let own = rule("own", &[limit("GCRA", requests, 1000, json!({}))], wait(millis));
    with(own, json!({"key": [{"header": "x-client"}], "maxKeys": 1000}))
}

/// A limit that all clients share. It lets no request wait.
fn pod(requests: u64, millis: u64, burst: u64) -> Value {
    let form = json!({"status": 503, "headers": "None", "body": "the pod is full"});
    rule("pod", &[limit("TokenBucket", requests, millis, json!({"burst": burst}))], json!({"onLimit": form}))
}

/// One unit per five seconds, and three at once. The limit of each client is one per second, for ten seconds.
fn full_pod() -> Limits {
    Limits::new(&[policy("p", &[own(1, 10_000), pod(1, 5_000, 3)])])
}

/// Sends a request. Returns the status, the text and `Retry-After` of its response, and the time in milliseconds.
async fn answer(limits: &Limits, client: &str) -> (u16, String, Option<String>, u128) {
    let start = tokio_now();
    let response = limits.send(of(client), ok).await;
    let retry_after = response.headers().get("retry-after").map(|it| it.to_str().expect("ASCII").to_owned());
    let status = response.status().as_u16();
    let text = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
    (status, String::from_utf8(text.into()).expect("a text"), retry_after, start.elapsed().as_millis())
}

/// Fails if the bucket admitted more than its burst and what it refilled, in any interval.
fn check_bucket(times: &[u128], (requests, millis, burst): (u64, u64, u64)) {
    for (first, from) in times.iter().enumerate() {
        for (count, until) in (1..).zip(&times[first..]) {
            let room = u128::from(burst) * u128::from(millis) + u128::from(requests) * (until - from);
            assert!(count * u128::from(millis) <= room, "{count} requests from {from} to {until}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_own_limit_takes_nothing_from_other_clients() {
    for action in [json!({}), wait(500), wait(20_000)] {
        let pod = with(pod(100, 1000, 100), action.clone());
        for rules in [[own(10, 12_000), pod.clone()], [pod, own(10, 12_000)]] {
            let limits = Limits::new(&[policy("p", &rules)]);
            // With a rule that lets requests wait for 500 ms, only five requests wait.
            let waiting = if action == wait(500) { 5 } else { 110 };
            let others = async {
                for number in 0..240 {
                    let (response, took) = passed(limits.send(of(number), ok)).await;
                    assert_eq!((response.status().as_u16(), took), (200, 0), "{number}, {action}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let (greedy, ()) = tokio::join!(served(&limits, (0..=waiting).map(|_| of("greedy"))), others);
            assert_eq!(greedy, (0..=waiting).map(|place| 100 * place).collect::<Vec<u128>>());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_at_its_turn_tries_again_until_its_latest_time() {
    let limits = full_pod();
    let answers = futures::future::join_all((0..8).map(|_| answer(&limits, "ann"))).await;
    // The pod's bucket has 0.4 after 2 s. It has one unit after 5 s, and again after 10 s.
    let passes = [0, 1_000, 2_000, 5_000, 10_000].map(|at| (200, String::from("ok"), None, at));
    let refused = (503, String::from("the pod is full"), Some(String::from("5")), 10_000);
    assert_eq!(answers, [passes.to_vec(), vec![refused; 3]].concat());
    assert_eq!((limits.counts(0, 0), limits.counts(0, 1)), ([5, 0, 0, 4], [5, 3, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_at_its_turn_holds_up_no_other_client() {
    let all = rule("all", &[limit("GCRA", 100, 1000, json!({}))], wait(10_000));
    let each = rule("each", &[limit("TokenBucket", 1, 5_000, json!({"burst": 1}))], json!({}));
    let each = with(each, json!({"key": [{"header": "x-client"}], "maxKeys": 1000}));
    let limits = Limits::new(&[policy("p", &[all, each])]);
    let answers = ["bob", "ann", "ann", "cal", "dan", "eve"].map(|client| answer(&limits, client));
    let answers = futures::future::join_all(answers).await;
    let at: Vec<_> = answers.into_iter().map(|(status, _, _, at)| (status, at)).collect();
    assert_eq!(at, [0, 10, 5_010, 20, 30, 40].map(|at| (200, at)));
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_waits_no_longer_than_its_own_latest_time() {
    // The second request of ann is ahead of the one of bob, and may wait longer.
    let short =
        with(own(1, 6_000), json!({"name": "short", "match": [{"headers": [{"name": "x-client", "value": "bob"}]}]}));
    let long = with(own(1, 20_000), json!({"match": [{"headers": [{"name": "x-client", "value": "ann"}]}]}));
    let rules = |millis| [policy("p", &[long.clone(), short.clone(), pod(1, millis, 3)])];
    let limits = Limits::new(&rules(5_000));
    let answers = futures::future::join_all(["ann", "bob", "ann", "bob"].map(|client| answer(&limits, client)));
    let change = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(answer(&limits, "cal").await.0, 200, "the last unit");
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        limits.apply(&rules(10_000));
    };
    let (answers, ()) = tokio::join!(answers, change);
    let at: Vec<_> = answers.into_iter().map(|(status, _, _, at)| (status, at)).collect();
    // The bucket has 0.6 after 3 s, and one unit after 7 s.
    assert_eq!(at, [(200, 0), (200, 0), (200, 7_000), (503, 6_000)]);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_before_it_finds_room_gives_its_turn_to_the_next() {
    let limits = full_pod();
    let answers = ["ann", "bob", "ann", "bob", "ann", "bob"].into_iter().enumerate().map(async |(number, client)| {
        let leaves = Duration::from_millis(if number == 3 { 2_500 } else { 60_000 });
        let (status, _, _, at) = tokio::time::timeout(leaves, answer(&limits, client)).await.ok()?;
        Some((status, at))
    });
    // At 1 s, the second request of ann takes the last unit, and the second request of bob finds no room until 5 s. It
    // leaves. So the third request of ann is the next, and then the third request of bob.
    let at = |at| Some((200, at));
    let expected = [at(0), at(0), at(1_000), None, at(5_000), at(10_000)];
    assert_eq!(futures::future::join_all(answers).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_shared_limit_is_never_exceeded_and_clients_keep_their_order() {
    let limits = Limits::new(&[policy("p", &[own(5, 3_000), pod(10, 1000, 12)])]);
    let start = tokio_now();
    let waiting = async |client: u64| {
        let served = (0..12).map(async |_| {
            let status = limits.send(of(client), ok).await.status();
            (status == 200, start.elapsed().as_millis())
        });
        futures::future::join_all(served).await
    };
    let clients = futures::future::join_all((0..6).map(waiting));
    let mut others = Vec::new();
    let newcomers = async {
        for number in 100..160 {
            tokio::time::sleep(Duration::from_millis(70)).await;
            let (response, took) = passed(limits.send(of(number), ok)).await;
            assert_eq!(took, 0);
            others.extend((response.status() == 200).then(|| start.elapsed().as_millis()));
        }
    };
    let (clients, ()) = tokio::join!(clients, newcomers);
    let mut all = others;
    for answers in clients {
        assert!(answers.iter().all(|(_, at)| *at <= 3_000));
        let served: Vec<_> = answers.iter().filter(|(is_served, _)| *is_served).map(|(_, at)| *at).collect();
        assert!(served.is_sorted_by(|one, next| one + 200 <= *next), "{served:?}");
        all.extend(served);
    }
    all.sort_unstable();
    check_bucket(&all, (10, 1000, 12));
    // All that the bucket has in three seconds is used.
    assert_eq!(all.iter().filter(|at| **at <= 3_000).count(), 42);
}

#[tokio::test(start_paused = true)]
async fn the_strictest_rule_decides_at_once_who_waits() {
    let limits = Limits::new(&[policy(
        "p",
        &[own(10, 12_000), rule("pod", &[limit("TokenBucket", 1000, 1000, json!({}))], wait(500))],
    )]);
    let answers = futures::future::join_all((0..100).map(|_| answer(&limits, "ann"))).await;
    let took = |wanted| answers.iter().filter(move |(status, ..)| *status == wanted).map(|(.., took)| *took);
    assert_eq!(took(200).collect::<Vec<_>>(), [0, 100, 200, 300, 400, 500]);
    assert_eq!(took(429).collect::<Vec<_>>(), [0; 94]);
}
