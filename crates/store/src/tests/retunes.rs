//! Limits that change while they count. The tests check the invariants R1 to R6 of ARCHITECTURE.md, as far as they
//! apply to stores.

use std::time::Duration;

use weir_core::{Quota, Strategy};
use weir_fuzz::Random;
use weir_seats::{Key, MemoryStore, Next, Take, terms::StoreTerms};

const START: u64 = 1_790_000_000_000_000;

fn quota(strategy: Strategy, requests: u64, millis: u64, burst: Option<u64>) -> Quota {
    Quota::new(strategy, requests, Duration::from_millis(millis), burst).expect("a quota")
}

fn key() -> Key {
    Key::new("limits test", 1).expect("a key")
}

/// The admissions, and the times from which each quota was in force.
struct Past {
    admissions: Vec<(u64, u64)>,
    changes: Vec<(u64, Quota)>,
}

/// Asks for more than the limit allows, at random times, and changes the limit at random times.
fn overload(quotas: &[Quota], every: u64, seed: u64) -> Past {
    let (store, mut random) = (MemoryStore::new(), Random::new(seed));
    let mut past = Past { admissions: Vec::new(), changes: Vec::new() };
    let (mut now, mut stamp, mut next_change) = (START, 0, START);
    while now < START + 5_000_000 {
        if now >= next_change {
            stamp += 1;
            past.changes.push((now, quotas[random.below(quotas.len())]));
            next_change = now + every / 2 + random.below(usize::try_from(every).expect("small")) as u64;
        }
        let &(_, quota) = past.changes.last().expect("the first");
        let terms = StoreTerms::new(stamp, &[(0, quota)]).expect("terms");
        let requests = 1 + u32::try_from(random.below(8)).expect("small");
        let reply = store.take(&key(), &Take { requests, ..Take::new(&terms) }, || now).expect("an answer");
        assert_eq!(reply.newer, None);
        if reply.granted > 0 {
            past.admissions.push((now, reply.granted.into()));
        }
        now += random.below(2_000) as u64;
    }
    past
}

impl Past {
    /// The maximum of a property of the quotas that were in force between two times.
    fn largest(&self, from: u64, to: u64, of: impl Fn(&Quota) -> u64) -> u64 {
        let ends = self.changes.iter().skip(1).map(|&(at, _)| at).chain([u64::MAX]);
        let in_force = self.changes.iter().zip(ends).filter(|&(&(at, _), end)| at <= to && end >= from);
        in_force.map(|((_, quota), _)| of(quota)).max().unwrap_or(0)
    }

    /// The refill between two times, in requests.
    fn flow(&self, from: u64, to: u64) -> f64 {
        let ends = self.changes.iter().skip(1).map(|&(at, _)| at).chain([u64::MAX]);
        let parts = self.changes.iter().zip(ends).map(|(&(at, quota), end)| {
            let time = end.min(to).saturating_sub(at.max(from)) as f64;
            time * quota.requests() as f64 / quota.period().as_micros() as f64
        });
        parts.sum()
    }

    /// For each pair of admissions: their times, the units admitted from the first to the second, and their indices.
    fn stretches(&self) -> impl Iterator<Item = (u64, u64, u64, [usize; 2])> {
        self.admissions.iter().enumerate().flat_map(|(first, &(from, _))| {
            let mut sum = 0;
            self.admissions[first..].iter().enumerate().map(move |(more, &(to, units))| {
                sum += units;
                (from, to, sum, [first, first + more])
            })
        })
    }

    fn total(&self) -> u64 {
        self.admissions.iter().map(|&(_, units)| units).sum()
    }
}

#[test]
fn buckets_have_no_fresh_burst_and_nobody_starves() {
    let sets = [
        vec![quota(Strategy::TokenBucket, 100, 1_000, Some(10)), quota(Strategy::TokenBucket, 300, 1_000, Some(60))],
        vec![quota(Strategy::TokenBucket, 70, 1_000, None), quota(Strategy::Gcra, 90, 1_000, Some(7))],
        vec![quota(Strategy::TokenBucket, 100, 1_000, Some(3)), quota(Strategy::TokenBucket, 100, 1_000, Some(80))],
    ];
    for (index, quotas) in sets.iter().enumerate() {
        for every in [3_000, 50_000, 1_000_000] {
            let past = overload(quotas, every, index as u64);
            let least = quotas.iter().map(Quota::burst).min().expect("one") as f64;
            let flow: Vec<_> = past.admissions.iter().map(|&(at, _)| past.flow(START, at)).collect();
            for (from, to, sum, [first, last]) in past.stretches() {
                let most = flow[last] - flow[first];
                if sum as f64 <= most + least {
                    continue;
                }
                let most = most + past.largest(from, to, Quota::burst) as f64;
                assert!(sum as f64 <= most + 1e-6, "{sum} of {most} from {from} to {to}, changed each {every} us");
            }
            let share = past.total() as f64 / past.flow(START, START + 5_000_000);
            assert!(share >= 0.95, "{share} of what flowed in, changed each {every} us");
        }
    }
}

#[test]
fn windows_and_logs_keep_what_they_counted() {
    for strategy in [Strategy::FixedWindow, Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog] {
        let quotas = [quota(strategy, 40, 1_000, None), quota(strategy, 90, 1_000, None)];
        for every in [3_000, 300_000, 1_500_000] {
            let past = overload(&quotas, every, 9);
            for (from, to, sum, _) in past.stretches() {
                let is_one = match strategy {
                    Strategy::FixedWindow => from / 1_000_000 == to / 1_000_000,
                    // The counter bounds the weighted sum of two windows, so it bounds each window, too.
                    Strategy::SlidingWindowCounter => from / 1_000_000 == to / 1_000_000,
                    _ => to - from < 1_000_000,
                };
                if !is_one || sum <= 40 {
                    continue;
                }
                let most = past.largest(from, to, Quota::requests);
                assert!(sum <= most, "{sum} of {most} from {from} to {to}, changed each {every} us");
            }
            let least = if strategy == Strategy::SlidingWindowCounter { 0.85 } else { 0.95 };
            let share = past.total() as f64 / (5.0 * 40.0);
            assert!(share >= least, "{strategy:?}: {share} of the smaller limit, changed each {every} us");
        }
    }
}

/// A window or a log that was in force before has counted what all terms have admitted since then.
#[test]
fn a_change_back_frees_nothing() {
    let quotas = [
        quota(Strategy::FixedWindow, 40, 1_000, None),
        quota(Strategy::FixedWindow, 3, 50, None),
        quota(Strategy::SlidingWindowCounter, 40, 1_000, None),
        quota(Strategy::SlidingWindowLog, 40, 1_000, None),
        quota(Strategy::SlidingWindowLog, 5, 70, None),
        quota(Strategy::TokenBucket, 40, 1_000, None),
        quota(Strategy::Gcra, 60, 1_000, Some(1)),
        quota(Strategy::LeakyBucket, 60, 1_000, Some(5)),
    ];
    let mut judged = 0;
    for every in [3_000, 50_000, 400_000, 1_500_000] {
        for seed in 0..5 {
            let past = overload(&quotas, every, seed);
            for (index, &(at, _)) in past.admissions.iter().enumerate() {
                let in_force = past.changes.iter().rfind(|&&(since, _)| since <= at).expect("one").1;
                let period = u64::try_from(in_force.period().as_micros()).expect("small");
                let is_same = |of: Quota| (of.strategy(), of.period()) == (in_force.strategy(), in_force.period());
                let first = past.changes.iter().find(|&&(_, quota)| is_same(quota)).expect("one").0;
                let sum = |from: u64, to: u64| {
                    let known = past.admissions[..=index].iter().filter(|&&(time, _)| time > first);
                    known.filter(|&&(time, _)| from <= time && time < to).map(|&(_, units)| units).sum::<u64>()
                };
                let start = at / period * period;
                let used = match in_force.strategy() {
                    Strategy::FixedWindow => sum(start, at + 1),
                    Strategy::SlidingWindowLog => sum(at + 1 - period, at + 1),
                    Strategy::SlidingWindowCounter => {
                        let before = sum(start - period, start) * (start + period - at);
                        sum(start, at + 1) + before.div_ceil(period)
                    }
                    _ => continue,
                };
                judged += 1;
                assert!(used <= in_force.requests(), "{used} of {in_force:?} at {at}, changed each {every} us");
            }
        }
    }
    assert!(judged > 1_000, "{judged} admissions were judged");
}

/// A limit that alternates between a window or a log and a bucket admits what each of them admits alone.
#[test]
fn nobody_starves_between_windows_and_buckets() {
    for window in [Strategy::FixedWindow, Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog] {
        for bucket in [Strategy::TokenBucket, Strategy::Gcra, Strategy::LeakyBucket] {
            let quotas = [quota(window, 40, 1_000, None), quota(bucket, 40, 1_000, None)];
            for every in [3_000, 50_000, 300_000, 1_500_000] {
                let past = overload(&quotas, every, 5);
                let least = if window == Strategy::SlidingWindowCounter { 0.85 } else { 0.95 };
                let share = past.total() as f64 / (5.0 * 40.0);
                assert!(share >= least, "{window:?}, {bucket:?}: {share} of the limit, changed each {every} us");
            }
        }
    }
}

/// New terms with the same content change no count, for any strategy and at any time.
#[test]
fn an_equal_change_is_none() {
    for strategy in Strategy::ALL {
        let quota = quota(strategy, 7, 1_000, None);
        let (changed, plain, mut random) = (MemoryStore::new(), MemoryStore::new(), Random::new(3));
        let mut now = START;
        for stamp in 1..500 {
            let old = StoreTerms::new(1, &[(0, quota)]).expect("terms");
            let new = StoreTerms::new(stamp, &[(0, quota)]).expect("terms");
            let ask = |store: &MemoryStore, terms: &StoreTerms| {
                let reply = store.take(&key(), &Take { requests: 2, ..Take::new(terms) }, || now).expect("an answer");
                (reply.granted, reply.next)
            };
            assert_eq!(ask(&changed, &new), ask(&plain, &old), "{strategy:?} at {now}");
            now += random.below(300_000) as u64;
        }
    }
}

/// Any strategy can be changed to any other. The used units stay used.
#[test]
fn a_change_of_strategy_frees_nothing() {
    for old in Strategy::ALL {
        for new in Strategy::ALL {
            let store = MemoryStore::new();
            let before = StoreTerms::new(1, &[(0, quota(old, 10, 1_000_000, None))]).expect("terms");
            let after = StoreTerms::new(2, &[(0, quota(new, 10, 1_000_000, None))]).expect("terms");
            let all = Take { requests: 100, ..Take::new(&before) };
            let first = store.take(&key(), &all, || START).expect("an answer").granted;
            let second = store.take(&key(), &Take { terms: &after, ..all }, || START + 1).expect("an answer");
            let most = 10.max(u32::from(old == Strategy::LeakyBucket) + 10);
            assert!(first + second.granted <= most, "{old:?} admits {first}, then {new:?} {}", second.granted);
            assert!(matches!(second.next, Next::At(next) if next > START), "{second:?}");
        }
    }
}

/// A caller with older terms gets the newest terms, and the store decides by them.
#[test]
fn an_older_asker_learns_the_newer_terms() {
    let store = MemoryStore::new();
    let [old, new] = [(1, 100), (2, 3)].map(|(stamp, requests)| {
        StoreTerms::new(stamp, &[(0, quota(Strategy::FixedWindow, requests, 60_000, None))]).expect("terms")
    });
    let ask =
        |terms| store.take(&key(), &Take { requests: 5, prefetch: 50, ..Take::new(terms) }, || START).expect("one");
    let first = ask(&new);
    assert_eq!((first.granted, first.newer), (3, None));
    let second = ask(&old);
    assert_eq!((second.granted, second.prefetched, second.newer), (0, None, Some(new)));
}

/// A bucket keeps its remaining tokens, up to the new burst. A backlog keeps its number of requests. A window keeps its
/// count.
#[test]
fn state_is_kept_in_requests() {
    let bucket = |requests, burst| quota(Strategy::TokenBucket, requests, 1_000_000, Some(burst));
    let leaky = |requests| quota(Strategy::LeakyBucket, requests, 1_000, Some(20));
    let window = |requests| quota(Strategy::FixedWindow, requests, 1_000_000, None);
    for (old, used, new, left) in [
        (bucket(10, 10), 6, bucket(10, 100), 4),
        (bucket(10, 10), 6, bucket(500, 100), 4),
        (bucket(10, 10), 6, bucket(3, 2), 2),
        (bucket(10, 10), 10, bucket(7, 100), 0),
        (bucket(7, 100), 1, bucket(10, 100), 99),
        (window(10), 6, window(100), 94),
        (window(100), 60, window(70), 10),
        (window(100), 60, window(10), 0),
        // Five requests are in the queue, and sixteen more fit.
        (leaky(10), 5, leaky(100), 16),
        (leaky(100), 5, leaky(7), 16),
    ] {
        let store = MemoryStore::new();
        let ask = |stamp, quota, requests| {
            let terms = StoreTerms::new(stamp, &[(0, quota)]).expect("terms");
            let patience = Duration::from_secs(if quota.strategy() == Strategy::LeakyBucket { 60 } else { 0 });
            let question = Take { requests, patience, ..Take::new(&terms) };
            store.take(&key(), &question, || START).expect("an answer").granted
        };
        assert_eq!(ask(1, old, used), used, "{old:?}");
        assert_eq!(ask(2, new, 1_000), left, "{used} of {old:?}, then {new:?}");
    }
}
