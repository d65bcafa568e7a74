//! A suite for all kinds of stores, with real stores, real time and several pods. To test a new kind, add it to
//! `kinds`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_core::{Quota, Strategy};
use weir_fuzz::Random;
use weir_seats::{
    BanChange, BanQuestion, Key, Level, MemoryStore, Next, Reply, Seats, StoreClock, StoreError, StoreTime, Take,
    terms::StoreTerms,
};

use super::{
    oracle::{Admission, excess, possible},
    servers::Server,
};
use crate::{
    memcached::MemcachedStore,
    redis::{RedisConfig, RedisStore, Topology},
};

/// A deadline that is long enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The store client of one pod.
#[derive(Clone)]
pub(crate) enum Store {
    Memory(Arc<MemoryStore>),
    Redis(Arc<RedisStore>),
    Memcached(Arc<MemcachedStore>),
}

impl Store {
    pub(crate) async fn take(&self, key: &Key, question: &Take<'_>) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(store) => store.take(key, question, wall),
            Self::Redis(store) => store.take(key, question, DEADLINE).await,
            Self::Memcached(store) => store.take(key, question, wall, DEADLINE).await,
        }
    }
}

/// A kind of store, with its running servers.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Creates the store client of a pod. All pods share one store in memory.
    pub(crate) pod: Box<dyn Fn() -> Store>,
    pub(crate) strategies: &'static [Strategy],
    _servers: Vec<Server>,
}

pub(crate) fn redis_at(topology: Topology, servers: &[Server]) -> Arc<RedisStore> {
    let endpoints = servers.iter().map(Server::endpoint).collect();
    let config = RedisConfig { topology, endpoints, tls: None, credentials: None };
    Arc::new(RedisStore::new(config).expect("a configuration"))
}

/// Returns the kinds of stores. With another server in place of Redis, only this one: nothing else differs.
fn kinds() -> Vec<Kind> {
    let memory = Arc::new(MemoryStore::new());
    let redis = Server::redis(&[]);
    let config =
        RedisConfig { topology: Topology::Standalone, endpoints: vec![redis.endpoint()], tls: None, credentials: None };
    let redis_pod = move || Store::Redis(Arc::new(RedisStore::new(config.clone()).expect("a configuration")));
    let memcached = Server::memcached(&[]);
    let servers = [memcached.endpoint()];
    let memcached_pod = move || Store::Memcached(Arc::new(MemcachedStore::new(&servers).expect("a store")));
    let kinds = vec![
        Kind {
            name: "memory",
            pod: Box::new(move || Store::Memory(Arc::clone(&memory))),
            strategies: &Strategy::ALL,
            _servers: vec![],
        },
        Kind { name: "redis", pod: Box::new(redis_pod), strategies: &Strategy::ALL, _servers: vec![redis] },
        Kind {
            name: "memcached",
            pod: Box::new(memcached_pod),
            strategies: &[
                Strategy::FixedWindow,
                Strategy::SlidingWindowCounter,
                Strategy::TokenBucket,
                Strategy::TokenBucketWithDebt,
                Strategy::Gcra,
            ],
            _servers: vec![memcached],
        },
    ];
    let is_only_redis = std::env::var_os("WEIR_REDIS_SERVER").is_some();
    kinds.into_iter().filter(|kind| !is_only_redis || kind.name == "redis").collect()
}

/// Microseconds since the Unix epoch. All processes of a machine share this clock.
pub(crate) fn wall() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(elapsed.as_micros()).expect("before the year 500,000")
}

pub(crate) fn key(hash: u128) -> Key {
    Key::new("limits shop/api.test", hash).expect("a key")
}

fn quota(strategy: Strategy, requests: u64, millis: u64) -> Quota {
    let burst = match strategy {
        Strategy::Gcra => Some(64),
        Strategy::LeakyBucket => Some(20),
        _ => None,
    };
    let quota = Quota::new(strategy, requests, Duration::from_millis(millis), burst).expect("a quota");
    if strategy == Strategy::TokenBucketWithDebt { quota.with_debt(20).expect("a debt") } else { quota }
}

/// Simulates a pod: asks for requests and seats as often as possible, until `over` is set. Returns its admissions.
pub(crate) async fn pod(
    store: Store,
    (key, terms): (Key, StoreTerms),
    leases: bool,
    over: Arc<AtomicBool>,
    seed: u64,
) -> Vec<Admission> {
    let (mut random, started) = (Random::new(seed), Instant::now());
    let (mut clock, mut seats, mut level) = (StoreClock::default(), Vec::<Seats>::new(), None::<Level>);
    let mut admissions = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let returned = if random.below(10) == 0 { seats.pop() } else { None };
        let requests = u32::try_from(random.below(4)).expect("small");
        let prefetch = if leases { u32::try_from(random.below(20)).expect("small") } else { 0 };
        let (guard, lookahead) = (Duration::from_millis(2), Duration::from_millis(20));
        let question = Take {
            requests,
            prefetch,
            guard,
            lookahead,
            seen: level.as_ref().filter(|_| random.below(10) == 0),
            returned: returned.as_ref(),
            ..Take::new(&terms)
        };
        let sent = started.elapsed();
        let reply = store.take(&key, &question).await.expect("an answer");
        clock.learn(reply.time, sent, started.elapsed());
        if reply.granted > 0 {
            admissions.push((reply.time, reply.granted.into()));
        }
        level = Some(reply.level);
        seats.extend(reply.prefetched);
        // Uses some of the seats, and records the time of each use.
        for _ in 0..random.below(12) {
            // This thread can be paused between two readings. So one reading is before the recorded time, and one
            // after.
            let read = || clock.at(started.elapsed()).expect("bounds");
            let (before, now, after) = (read(), wall(), read());
            let bounds = StoreTime { earliest: before.earliest, latest: after.latest };
            if seats.iter_mut().any(|seats| seats.claim(&terms, 1, bounds)) {
                admissions.push((now, 1));
            }
        }
        seats.retain(|seats| seats.left() > 0);
        if random.below(4) == 0 {
            tokio::task::yield_now().await;
        }
    }
    admissions
}

/// The duration of a load: longer than a period, so that a limit is used up and refills.
const LOADED: Duration = Duration::from_millis(800);

/// Runs several pods that compete for one limit. Returns all their admissions.
pub(crate) async fn compete(kind: &Kind, key: &Key, terms: &StoreTerms, leases: bool) -> Vec<Admission> {
    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..5)
        .map(|seed| tokio::spawn(pod((kind.pod)(), (key.clone(), terms.clone()), leases, Arc::clone(&over), seed)))
        .collect();
    tokio::time::sleep(LOADED).await;
    over.store(true, Ordering::Relaxed);
    let mut admissions = Vec::new();
    for task in tasks {
        admissions.extend(task.await.expect("no panic"));
    }
    admissions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pods_together_never_exceed_a_limit_and_use_it() {
    for kind in kinds() {
        for (index, &strategy) in (0..).zip(kind.strategies) {
            // The limits are so low that a busy machine reaches them. A slot of a leaky bucket is lost if no pod asks for
            // it. A slot has 125 ms, because a busy machine can run no pod for some time.
            let requests = if strategy == Strategy::LeakyBucket { 4 } else { 60 };
            let quota = quota(strategy, requests, 500);
            let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
            // With leases, pods take more seats than they use, and unused seats expire.
            for (hash, leases) in [(index, false), (100 + index, true)] {
                let begun = wall();
                let admissions = compete(&kind, &key(hash), &terms, leases).await;
                let ended = wall();
                assert_eq!(excess(quota, &admissions), [""; 0], "{} {strategy:?} {leases}", kind.name);
                let admitted: u64 = admissions.iter().map(|&(_, units)| units).sum();
                let share = admitted as f64 / possible(quota, begun, ended);
                println!("{} {strategy:?}, leases {leases}: {share:.2} of what is possible", kind.name);
                // What leases lose is bounded in virtual time, in `simulated`.
                assert!(leases || share >= 0.4, "{} {strategy:?}: {share} of what is possible", kind.name);
                assert!(admitted > 0, "{} {strategy:?} {leases}", kind.name);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_limits_of_a_rule_are_charged_or_none() {
    for kind in kinds() {
        let quotas = [quota(Strategy::TokenBucket, 30, 500), quota(Strategy::FixedWindow, 45, 1_000)];
        let both = [(0, quotas[0]), (1, quotas[1])];
        let terms = StoreTerms::new(1, &both).expect("terms");
        let begun = wall();
        let admissions = compete(&kind, &key(1), &terms, false).await;
        let ended = wall();
        for quota in quotas {
            assert_eq!(excess(quota, &admissions), [""; 0], "{} {quota:?}", kind.name);
        }
        let admitted: u64 = admissions.iter().map(|&(_, units)| units).sum();
        let possible = quotas.map(|quota| possible(quota, begun, ended)).into_iter().fold(f64::MAX, f64::min);
        assert!(admitted as f64 >= possible / 3.0, "{}: {admitted} of {possible}", kind.name);

        // If the outer limit refuses a request, the inner one is not charged.
        let narrow =
            [(0, quota(Strategy::FixedWindow, 2, 3_600_000)), (1, quota(Strategy::TokenBucket, 10, 3_600_000))];
        let (store, key) = ((kind.pod)(), key(2));
        let terms = StoreTerms::new(1, &narrow).expect("terms");
        let mut granted = 0;
        for _ in 0..20 {
            granted += store.take(&key, &Take::new(&terms)).await.expect("an answer").granted;
        }
        assert_eq!(granted, 2, "{}", kind.name);
        let only = StoreTerms::new(2, &narrow[1..]).expect("terms");
        let reply = store.take(&key, &Take { requests: 20, ..Take::new(&only) }).await.expect("an answer");
        assert_eq!(reply.granted, 8, "{}", kind.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_small_limit_over_many_pods_is_exact() {
    for kind in kinds() {
        for &strategy in kind.strategies.iter().filter(|&&strategy| strategy != Strategy::LeakyBucket) {
            let quota =
                Quota::new(strategy, 5, Duration::from_secs(900_000_000), (strategy == Strategy::Gcra).then_some(5));
            let terms = StoreTerms::new(1, &[(0, quota.expect("a quota"))]).expect("terms");
            let key = key(strategy as u128);
            let tasks: Vec<_> = (0..100)
                .map(|_| {
                    let (store, key, terms) = ((kind.pod)(), key.clone(), terms.clone());
                    tokio::spawn(async move { store.take(&key, &Take::new(&terms)).await.expect("an answer") })
                })
                .collect();
            let mut granted = 0;
            for task in tasks {
                let reply = task.await.expect("no panic");
                granted += reply.granted;
                assert!(reply.granted == 1 || matches!(reply.next, Next::At(next) if next > reply.time), "{reply:?}");
            }
            assert_eq!(granted, 5, "{} {strategy:?}", kind.name);
        }
    }
}

/// Waiting requests get slots, each one interval after the previous one, for all pods together. An interval is 10 s, so
/// that no further slot comes within the patience of a later question.
#[tokio::test]
async fn waiting_requests_get_slots() {
    for kind in kinds().into_iter().filter(|kind| kind.strategies.contains(&Strategy::LeakyBucket)) {
        let quota = quota(Strategy::LeakyBucket, 10, 100_000);
        let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
        let stores = [(kind.pod)(), (kind.pod)()];
        let (mut slots, mut now) = (Vec::new(), 0);
        for index in 0..6 {
            let question = Take { requests: 5, patience: Duration::from_secs(100), ..Take::new(&terms) };
            let reply = stores[index % 2].take(&key(1), &question).await.expect("an answer");
            now = reply.time;
            let Some(served) = reply.served else { continue };
            slots.extend((0..reply.granted).map(|before| (served.due(&terms, before, 1).max(reply.time), 1)));
        }
        assert_eq!(excess(quota, &slots), [""; 0], "{}", kind.name);
        assert!((10..=11).contains(&slots.len()), "{}: 100 seconds of waiting: {slots:?}", kind.name);
        assert!(slots.iter().all(|&(slot, _)| slot <= now + 100_000_000), "{}", kind.name);
    }
}

/// Seats that are given back are granted again, only once.
#[tokio::test]
async fn returned_seats_are_granted_again() {
    for kind in kinds() {
        // Memcached takes no seats of a fixed window back, because its counter can have expired in the meantime.
        let takes_back = |strategy: &&Strategy| {
            **strategy != Strategy::LeakyBucket && (kind.name, **strategy) != ("memcached", Strategy::FixedWindow)
        };
        for &strategy in kind.strategies.iter().filter(takes_back) {
            let burst = (strategy == Strategy::Gcra).then_some(8);
            let quota = Quota::new(strategy, 8, Duration::from_secs(900_000_000), burst).expect("a quota");
            let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
            let (store, key) = ((kind.pod)(), key(100 + strategy as u128));
            let all = Take { requests: 8, ..Take::new(&terms) };
            let first = store.take(&key, &all).await.expect("an answer");
            assert_eq!(first.granted, 8, "{} {strategy:?}", kind.name);
            let question = Take { requests: 20, returned: first.served.as_ref(), ..all };
            let second = store.take(&key, &question).await.expect("an answer");
            assert_eq!(second.granted, 8, "{} {strategy:?}", kind.name);
            let third = store.take(&key, &Take { requests: 20, ..all }).await.expect("an answer");
            assert_eq!(third.granted, 0, "{} {strategy:?}", kind.name);
        }
    }
}

/// A ban that one pod starts is in force for all pods, until a pod lifts it.
#[tokio::test]
async fn a_ban_is_in_force_for_all_pods() {
    for kind in kinds() {
        for &strategy in kind.strategies {
            let terms = StoreTerms::new(1, &[(0, quota(strategy, 1_000, 1_000))]).expect("terms");
            let (one, other, key) = ((kind.pod)(), (kind.pod)(), key(300 + strategy as u128));
            // Requests leave a leaky bucket one by one.
            let patience = Duration::from_secs(if strategy == Strategy::LeakyBucket { 9 } else { 0 });
            let ask = |change| Take {
                patience,
                ban: Some(BanQuestion { length: Duration::from_secs(3_600), change }),
                ..Take::new(&terms)
            };
            let who = format!("{} {strategy:?}", kind.name);
            let before = other.take(&key, &ask(BanChange::Keep)).await.expect("an answer");
            assert_eq!((before.granted, before.level.banned()), (1, None), "{who}");
            let start = Take { requests: 0, ..ask(BanChange::Start { ago: Duration::from_secs(60) }) };
            let begun = one.take(&key, &start).await.expect("an answer").level.banned().expect("a ban");
            assert_eq!(begun.length, 3_600_000_000, "{who}");
            let again = one.take(&key, &start).await.expect("an answer");
            assert_eq!(again.level.banned(), Some(begun), "{who}: a ban is not extended");
            let refused = other.take(&key, &Take { prefetch: 9, ..ask(BanChange::Keep) }).await.expect("an answer");
            assert_eq!((refused.granted, refused.prefetched.is_none()), (0, true), "{who}");
            assert_eq!((refused.next, refused.level.banned()), (Next::At(begun.end()), Some(begun)), "{who}");
            let no_seats = Take { requests: 0, prefetch: 9, ..ask(BanChange::Keep) };
            let looked = other.take(&key, &no_seats).await.expect("an answer");
            assert!(looked.prefetched.is_none(), "{who}: seats would admit requests of a banned key");
            let rest = begun.end() - refused.time;
            assert!((3_530_000_000..=3_540_000_000).contains(&rest), "{who}: {rest}");
            let lift = Take { requests: 0, ..ask(BanChange::Lift) };
            assert_eq!(other.take(&key, &lift).await.expect("an answer").level.banned(), None, "{who}");
            assert_eq!(one.take(&key, &ask(BanChange::Keep)).await.expect("an answer").granted, 1, "{who}");
            if (kind.name, strategy) == ("memcached", Strategy::FixedWindow) {
                // Without a ban, Memcached counts in another value.
                continue;
            }
            // The rule has no ban any more.
            one.take(&key, &start).await.expect("an answer");
            let gone = StoreTerms::new(2, &[(0, quota(strategy, 1_000, 1_000))]).expect("terms");
            let plain = other.take(&key, &Take { patience, ..Take::new(&gone) }).await.expect("an answer");
            assert_eq!(plain.granted, 1, "{who}");
            let back = Take { terms: &gone, ..ask(BanChange::Keep) };
            assert_eq!(one.take(&key, &back).await.expect("an answer").level.banned(), None, "{who}");
        }
    }
}

/// A server contains values that earlier versions of the script have written, in this form: the number of limits; stamp,
/// birth, beginning and length of the ban; number, strategy, requests, period, burst and debt of the limit; the start of
/// the window, until the year 2039, and its count.
#[tokio::test]
async fn a_recorded_value_of_redis_is_read() {
    let recorded = "010000000000001c4000007960902818430000000000000000000000000000000000000000000000000000000000000000\
                    0000000000005940000006aa8d430f4300000000000059400000000000000000000006aa8d430f43\
                    00000000000044400000000000000000";
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let quota = Quota::new(Strategy::FixedWindow, 100, Duration::from_secs(1_100_000_000), None).expect("a quota");
    let terms = StoreTerms::new(7, &[(0, quota)]).expect("terms");
    let escaped: String =
        recorded.as_bytes().chunks(2).map(|hex| format!("\\x{}", String::from_utf8_lossy(hex))).collect();
    let answer = server.send_line(&format!("SET {{limits.shop/api.test.1}} \"{escaped}\""));
    assert!(answer.starts_with("+OK"), "{answer}");
    let question = Take { requests: 100, ..Take::new(&terms) };
    assert_eq!(store.take(&key(1), &question, DEADLINE).await.map(|reply| reply.granted), Ok(60));
}

/// Owed units are charged, also beyond the limit.
#[tokio::test]
async fn owed_units_are_charged() {
    for kind in kinds() {
        for &strategy in kind.strategies {
            let quota = quota(strategy, 100, 3_600_000);
            let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
            let (store, key) = ((kind.pod)(), key(200 + strategy as u128));
            let question = Take { requests: 1, owed: 150, ..Take::new(&terms) };
            let reply = store.take(&key, &question).await.expect("an answer");
            assert_eq!(reply.granted, 0, "{} {strategy:?}", kind.name);
        }
    }
}

/// A credit frees units that any pod has charged, up to the full limit.
#[tokio::test]
async fn units_are_given_back() {
    for kind in kinds() {
        for &strategy in kind.strategies {
            let who = format!("{} {strategy:?}", kind.name);
            let terms = StoreTerms::new(1, &[(0, quota(strategy, 100, 3_600_000))]).expect("terms");
            let (one, other, key) = ((kind.pod)(), (kind.pod)(), key(300 + strategy as u128));
            let (most, at_once) = (terms.raw()[0].most(), terms.raw()[0].at_once());
            let most = u32::try_from(most).expect("some dozens");
            let used = Take { requests: 0, owed: most, ..Take::new(&terms) };
            assert_eq!(one.take(&key, &used).await.expect("an answer").granted, 0, "{who}");
            let back = Take { requests: 5, credit: 3, ..Take::new(&terms) };
            let granted = other.take(&key, &back).await.expect("an answer").granted;
            // A leaky bucket grants nothing while other units are in it.
            assert_eq!(granted, if strategy == Strategy::LeakyBucket { 0 } else { 3 }, "{who}");
            let more = Take { requests: 200, credit: 1_000_000, ..Take::new(&terms) };
            assert_eq!(u64::from(one.take(&key, &more).await.expect("an answer").granted), at_once, "{who}");
        }
    }
}

/// What a limit does not grant stays free, for every cost, for each pod, and for a higher limit.
#[tokio::test]
async fn a_refused_request_takes_nothing() {
    for kind in kinds() {
        let grants_many = |strategy: &&Strategy| **strategy != Strategy::LeakyBucket;
        for &strategy in kind.strategies.iter().filter(grants_many) {
            let who = format!("{} {strategy:?}", kind.name);
            let terms = |stamp, requests: u64| {
                let burst = (strategy == Strategy::Gcra).then_some(requests);
                let quota = Quota::new(strategy, requests, Duration::from_secs(900_000_000), burst);
                StoreTerms::new(stamp, &[(0, quota.expect("a quota"))]).expect("terms")
            };
            let (low, high) = (terms(1, 64), terms(2, 70));
            let (one, other, key) = ((kind.pod)(), (kind.pod)(), key(500 + strategy as u128));
            let question = Take { requests: 10, ..Take::new(&low) };
            assert_eq!(one.take(&key, &question).await.expect("an answer").granted, 10, "{who}");
            for cost in [60, 1_000] {
                let dear = Take { cost, prefetch: 8, ..Take::new(&low) };
                assert_eq!(one.take(&key, &dear).await.expect("an answer").granted, 0, "{who}");
            }
            let rest = Take { requests: 200, prefetch: 8, ..question };
            assert_eq!(other.take(&key, &rest).await.expect("an answer").granted, 54, "{who}");
            let more = Take { requests: 200, ..Take::new(&high) };
            let is_window = !matches!(strategy, Strategy::Gcra | Strategy::TokenBucket | Strategy::TokenBucketWithDebt);
            let granted = if is_window { 6 } else { 0 };
            assert_eq!(one.take(&key, &more).await.expect("an answer").granted, granted, "{who}");
        }
    }
}

/// Many pods ask at the same time, and most of their requests are refused. The limit admits no unit too many, and none of
/// its units is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_at_the_same_time_lose_nothing() {
    for kind in kinds() {
        let quota = Quota::new(Strategy::FixedWindow, 500, Duration::from_secs(900_000_000), None).expect("a quota");
        let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
        let pods: Vec<_> = (0..8)
            .map(|pod| {
                let (store, terms) = ((kind.pod)(), terms.clone());
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for round in 0..60 {
                        let cost = if (pod + round) % 3 == 0 { 1 } else { 300 };
                        let question = Take { cost, requests: 2, ..Take::new(&terms) };
                        admitted += store.take(&key(600), &question).await.expect("an answer").granted * cost;
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = 0;
        for pod in pods {
            admitted += pod.await.expect("a pod");
        }
        let question = Take { requests: 1_000, ..Take::new(&terms) };
        let rest = (kind.pod)().take(&key(600), &question).await.expect("an answer").granted;
        assert_eq!(admitted + rest, 500, "{}: {rest} at the end", kind.name);
    }
}

/// Redis keeps a log until its newest request has left the period, even if a question takes as many units as it gives
/// back.
#[tokio::test]
async fn a_log_lives_as_long_as_its_newest_request() {
    let server = Server::redis(&[]);
    let store = redis_at(Topology::Standalone, std::slice::from_ref(&server));
    let client = redis::Client::open(format!("redis://{}", server.endpoint())).expect("an address");
    let mut connection = client.get_connection().expect("a running server");
    let terms = StoreTerms::new(1, &[(0, quota(Strategy::SlidingWindowLog, 4, 3_600_000))]).expect("terms");
    let key = key(400);
    let mut ends_at = async |question: Take<'_>| {
        assert_eq!(store.take(&key, &question, DEADLINE).await.expect("an answer").granted, question.requests);
        redis::cmd("PEXPIRETIME").arg(key.as_str()).query::<i64>(&mut connection).expect("the end of the key")
    };
    let first = ends_at(Take { requests: 2, ..Take::new(&terms) }).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = ends_at(Take { requests: 2, credit: 2, ..Take::new(&terms) }).await;
    assert!(second > first, "{first} {second}");
}

/// A strategy that a store does not support is refused before the store is asked.
#[tokio::test]
async fn strategies_that_a_store_lacks_are_refused() {
    for kind in kinds() {
        for strategy in Strategy::ALL.into_iter().filter(|strategy| !kind.strategies.contains(strategy)) {
            let terms = StoreTerms::new(1, &[(0, quota(strategy, 10, 1_000))]).expect("terms");
            let refused = (kind.pod)().take(&key(1), &Take::new(&terms)).await;
            assert!(matches!(refused, Err(StoreError::Unsupported(_))), "{} {strategy:?}: {refused:?}", kind.name);
        }
    }
}
