//! Simulates pods with slow connections and separate clocks, in virtual time, with the store in memory. The simulation
//! knows the exact time of the store, so the oracle checks each admission at its true time.

use std::{collections::BTreeMap, time::Duration};

use weir_core::{Quota, Strategy};
use weir_fuzz::Random;
use weir_seats::{Key, Level, MemoryStore, Next, Reply, Seats, StoreClock, Take, terms::StoreTerms};

use super::oracle::{Admission, excess, possible};

const START: u64 = 1_790_000_000_000_000;

/// A pod. Its clock has an offset, and runs faster or slower than the store's clock.
#[derive(Default)]
struct Pod {
    clock: StoreClock,
    /// The drift of the clock, in parts per million.
    drift: i64,
    offset: u64,
    seats: Vec<Seats>,
    level: Option<Level>,
    waiting: u32,
    /// True if a question is on its way.
    asks: bool,
    refused_until: u64,
}

impl Pod {
    /// The time of the pod's monotonic clock at this time of the store.
    fn clock_at(&self, now: u64) -> Duration {
        let elapsed = i64::try_from(now - START).expect("short");
        let drifted = elapsed + elapsed * self.drift / 1_000_000;
        Duration::from_micros(self.offset + u64::try_from(drifted).expect("forward"))
    }
}

enum Event {
    /// A request arrives at a pod.
    Arrival(usize),
    /// A question arrives at the store: the pod, the time of sending, the wanted seats and the returned seats.
    Asked(usize, u64, u32, Option<Seats>),
    /// An answer arrives at a pod: the pod, the time when the question was sent, and the reply.
    Answered(usize, u64, Box<Reply>),
}

/// The parameters of a simulation.
#[derive(Clone, Copy)]
struct Setting {
    quota: Quota,
    /// The requests per second, summed over all pods.
    offered: u64,
    /// The delay in one direction, in microseconds.
    delay: u64,
    leases: bool,
    seconds: u64,
}

struct Run {
    admissions: Vec<Admission>,
    trips: u64,
    local: u64,
}

fn run(setting: Setting, seed: u64) -> Run {
    let Setting { quota, offered, delay, leases, seconds } = setting;
    let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
    let (store, key) = (MemoryStore::new(), Key::new("limits test", 1).expect("a key"));
    let mut random = Random::new(seed);
    let mut pods: Vec<Pod> = (0..10)
        .map(|_| Pod {
            drift: 100 - i64::try_from(random.below(200)).expect("small"),
            offset: random.below(1_000_000_000) as u64,
            ..Pod::default()
        })
        .collect();
    let mut events = BTreeMap::new();
    let mut number = 0_u64;
    let mut add = |events: &mut BTreeMap<(u64, u64), Event>, at: u64, event: Event| {
        number += 1;
        events.insert((at, number), event);
    };
    for index in 0..offered * seconds {
        let at = START + index * 1_000_000 / offered + random.below(1_000) as u64;
        add(&mut events, at, Event::Arrival(random.below(10)));
    }
    let horizon = Duration::from_micros(2 * delay + 10_000);
    let mut run = Run { admissions: Vec::new(), trips: 0, local: 0 };
    while let Some(((now, _), event)) = events.pop_first() {
        match event {
            Event::Arrival(index) => {
                let pod = &mut pods[index];
                let bounds = pod.clock.at(pod.clock_at(now));
                let claimed = bounds.is_some_and(|bounds| {
                    assert!(bounds.earliest <= now && now <= bounds.latest, "{bounds:?} at {now}");
                    pod.seats.retain(|seats| seats.left() > 0);
                    pod.seats.iter_mut().any(|seats| seats.claim(&terms, 1, bounds))
                });
                if claimed {
                    run.admissions.push((now, 1));
                    run.local += 1;
                } else if now >= pod.refused_until {
                    pod.waiting += 1;
                }
                let held: u32 = pod.seats.iter().map(Seats::left).sum();
                let wanted = u32::try_from(offered * (2 * delay + 10_000) / 10_000_000).expect("small").max(4);
                let wants = leases && held < wanted / 2;
                if !pod.asks && now >= pod.refused_until && (pod.waiting > 0 || wants) {
                    pod.asks = true;
                    // Sometimes the pod gives seats back.
                    let returned = if random.below(8) == 0 { pod.seats.pop() } else { None };
                    let arrival = now + delay + random.below(1_000) as u64;
                    add(&mut events, arrival, Event::Asked(index, now, wanted, returned));
                }
            }
            Event::Asked(index, sent, wanted, returned) => {
                let pod = &mut pods[index];
                run.trips += 1;
                let question = Take {
                    requests: pod.waiting,
                    prefetch: if leases { wanted } else { 0 },
                    guard: horizon,
                    lookahead: horizon,
                    seen: pod.level.as_ref(),
                    returned: returned.as_ref(),
                    ..Take::new(&terms)
                };
                let reply = store.take(&key, &question, || now).expect("an answer");
                // The requests are admitted at the store's time.
                if reply.granted > 0 {
                    run.admissions.push((now, reply.granted.into()));
                }
                pod.waiting = 0;
                let arrival = now + delay + random.below(1_000) as u64;
                // One in a hundred answers is lost, and a pod that waits for it asks again.
                if random.below(100) == 0 {
                    pod.asks = false;
                } else {
                    add(&mut events, arrival, Event::Answered(index, sent, Box::new(reply)));
                }
            }
            Event::Answered(index, sent, reply) => {
                let pod = &mut pods[index];
                let (sent, received) = (pod.clock_at(sent), pod.clock_at(now));
                pod.clock.learn(reply.time, sent, received);
                pod.asks = false;
                if let Next::At(next) = reply.next {
                    pod.refused_until = next;
                }
                pod.seats.extend(reply.prefetched);
                pod.level = Some(reply.level);
            }
        }
    }
    run
}

fn quota(strategy: Strategy, requests: u64, seconds: u64, burst: Option<u64>) -> Quota {
    Quota::new(strategy, requests, Duration::from_secs(seconds), burst).expect("a quota")
}

#[test]
fn all_pods_together_never_exceed_a_limit() {
    for (index, quota) in [
        quota(Strategy::TokenBucket, 100, 1, None),
        quota(Strategy::TokenBucket, 70, 1, Some(300)),
        quota(Strategy::TokenBucket, 999, 7, Some(640)),
        quota(Strategy::Gcra, 100, 1, Some(64)),
        quota(Strategy::FixedWindow, 150, 1, None),
        quota(Strategy::SlidingWindowCounter, 150, 1, None),
        quota(Strategy::LeakyBucket, 100, 1, Some(20)),
        quota(Strategy::SlidingWindowLog, 60, 1, None),
        quota(Strategy::TokenBucketWithDebt, 100, 1, Some(50)).with_debt(30).expect("a debt"),
        quota(Strategy::TokenBucket, 5, 900, None),
    ]
    .into_iter()
    .enumerate()
    {
        for (delay, leases) in [(50, true), (33_500, true), (125_000, true), (33_500, false)] {
            let setting = Setting { quota, offered: 300, delay, leases, seconds: 6 };
            let run = run(setting, index as u64);
            assert_eq!(excess(quota, &run.admissions), [""; 0], "{quota:?} after {delay} us");
            assert!(!run.admissions.is_empty());
        }
    }
}

/// With a round trip of 67 ms and three times the limit, pods admit at least 93 % of what is possible.
#[test]
fn little_is_lost_with_a_slow_store() {
    for (offered, least) in [(3_000, 0.93), (800, 0.75)] {
        let quota = quota(Strategy::TokenBucket, 1_000, 1, None);
        let run = run(Setting { quota, offered, delay: 33_500, leases: true, seconds: 20 }, 7);
        assert_eq!(excess(quota, &run.admissions), [""; 0]);
        let admitted: u64 = run.admissions.iter().map(|&(_, units)| units).sum();
        let most = possible(quota, START, START + 20_000_000).min((offered * 20) as f64);
        let share = admitted as f64 / most;
        let local = run.local as f64 / admitted as f64;
        println!("{offered}/s: {share:.3} of what is possible, {local:.2} without a trip, {} trips", run.trips);
        assert!(share >= least, "{share} of what is possible");
        assert!(local > 0.1, "{local} without a trip");
    }
}

/// A limit of five per fifteen minutes admits exactly five requests over many pods.
#[test]
fn a_small_limit_is_exact() {
    let quota = quota(Strategy::TokenBucket, 5, 900, None);
    let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
    let (store, key) = (MemoryStore::new(), Key::new("limits test", 1).expect("a key"));
    let granted: u32 =
        (0..100).map(|pod| store.take(&key, &Take::new(&terms), || START + pod).expect("an answer").granted).sum();
    assert_eq!(granted, 5);
}
