//! Changes of the quota, from every strategy to every other strategy. An oracle with the whole history
//! (`history/mod.rs`) judges them. An equal quota changes nothing (R1). State is kept as a number of requests (R2). No
//! sequence of changes admits more than the limits in force (R3), and no sequence starves callers (R6).
#![cfg(not(loom))]

mod history;
mod random;
mod suite;

use std::{num::NonZeroUsize, time::Duration};

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use weir_core::{Limiter, Quota, RuleLimiter, Standing, Strategy as Counting, Time};

use self::{
    history::Memory,
    random::{END, START, What, arrivals, for_each_strategy, quotas},
    suite::{SECOND, STRATEGIES, at_once, is_window, quota, terms},
};

const TENTH: Duration = Duration::from_millis(100);
const MILLI: u64 = 1_000_000;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn state(standing: Standing) -> (u64, Duration, Option<Duration>) {
    (standing.remaining(), standing.reset_after(), standing.retry_after(1))
}

/// A limit in one of the forms in which it can be counted.
enum Judged {
    Alone(Limiter),
    Rule(RuleLimiter),
}

const KEYS: Option<NonZeroUsize> = NonZeroUsize::new(10);

impl Judged {
    fn all(quota: Quota, now: u64) -> [(&'static str, Self); 3] {
        [
            ("alone", Self::Alone(Limiter::new(at(now), quota))),
            ("shared", Self::Rule(RuleLimiter::unkeyed(at(now), terms(quota)))),
            ("keyed", Self::Rule(RuleLimiter::keyed(at(now), terms(quota), KEYS.expect("not zero")))),
        ]
    }

    fn admits(&self, now: u64) -> bool {
        self.admits_cost(now, 1)
    }

    fn admits_cost(&self, now: u64, cost: u64) -> bool {
        match self {
            Self::Alone(limiter) => limiter.charge(at(now), cost).is_ok(),
            Self::Rule(rule) => rule.charge(|| at(now), b"key", cost).is_ok(),
        }
    }

    fn remaining(&self, now: u64) -> u64 {
        match self {
            Self::Alone(limiter) => limiter.peek(at(now)).remaining(),
            Self::Rule(rule) => rule.peek(at(now), b"key", 0).map_or(0, |tightest| tightest.standing.remaining()),
        }
    }

    fn change(&mut self, now: u64, quota: Quota) {
        *self = match self {
            Self::Alone(limiter) => Self::Alone(limiter.retune(|| at(now), quota)),
            Self::Rule(rule) => Self::Rule(rule.retune(|| at(now), terms(quota), rule.keys().and(KEYS))),
        };
    }

    fn drain(&self, now: u64) -> u64 {
        (0..1_000_000).take_while(|_| self.admits(now)).count() as u64
    }
}

/// Runs constant overload over a sequence of quotas, each in force for `every` milliseconds. Returns the admissions of
/// each limit, and the admissions of a limiter with perfect memory. The history judges every admission (R3) and counts
/// forbidden admissions.
fn overload(quotas: &[Quota], every: u64, step: u64) -> Vec<Outcome> {
    let first = quotas[0];
    let mut perfect = Memory::new(first, START);
    let mut judged = Judged::all(first, START).map(|(kind, judged)| (kind, judged, Memory::new(first, START), [0; 2]));
    let (mut now, mut all) = (START, 0);
    for &quota in quotas {
        perfect.change(now, quota);
        for (_, judged, history, _) in &mut judged {
            judged.change(now, quota);
            history.change(now, quota);
        }
        for _ in 0..every / step {
            while perfect.admits(now, 1) {
                perfect.charge(now, 1);
                all += 1;
            }
            for (_, judged, history, [sum, over]) in &mut judged {
                while judged.admits(now) {
                    // A bucket can be early by less than two nanoseconds.
                    *over += u64::from(!history.admits(now, 1) && !history.admits_soon(now + 2, 1));
                    history.charge(now, 1);
                    *sum += 1;
                }
            }
            now += step * MILLI;
        }
    }
    judged.map(|(kind, _, _, [admitted, over])| Outcome { kind, admitted, over, perfect: all }).into()
}

/// The outcome of an overload.
struct Outcome {
    kind: &'static str,
    admitted: u64,
    over: u64,
    perfect: u64,
}

impl Outcome {
    /// Returns true if no admission was forbidden, and if at least this share of the admissions with perfect memory was
    /// admitted, minus one request.
    fn is_right(&self, percent: u64) -> bool {
        self.over == 0 && (self.admitted + 1) * 100 >= self.perfect * percent
    }
}

/// R6 and R3 for any two strategies that alternate, at any frequency, with equal or different numbers.
#[test]
fn two_that_take_turns_admit_what_perfect_memory_would() {
    let mut wrong = Vec::new();
    // The frequencies are from every hundredth of a period to every tenth period. The hardest frequency is once per
    // period.
    let frequencies: &[_] = if cfg!(debug_assertions) {
        &[(10, 150), (50, 40)]
    } else {
        &[(1, 1_000), (7, 150), (10, 150), (30, 50), (50, 40), (100, 30), (1_000, 5)]
    };
    for &(every, rounds) in frequencies {
        for old in STRATEGIES {
            for new in STRATEGIES {
                for (one, other, period) in
                    [(20, 20, TENTH), (7, 60, TENTH), (20, 90, 3 * TENTH), (50, 31, TENTH * 7 / 10)]
                {
                    let pair = [quota(old, one, TENTH), quota(new, other, period)];
                    let quotas: Vec<_> = pair.into_iter().cycle().take(rounds).collect();
                    for Outcome { kind, admitted, over, perfect } in
                        overload(&quotas, every, 1).into_iter().filter(|outcome| !outcome.is_right(95))
                    {
                        wrong.push(format!(
                            "{kind}: {old:?} of {one}, {new:?} of {other} in {period:?}, every {every} ms: \
                             {admitted} of {perfect}, {over} too many"
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns quotas with numbers, bursts and periods of any size.
fn changes(strategies: &'static [Counting], most: usize) -> impl Strategy<Value = Vec<Quota>> {
    let numbers = (1..100_u64, prop_oneof![Just(100_u64), 50..500_u64], prop::option::of(1..60_u64), 0..20_u64);
    let quota = (prop::sample::select(strategies), numbers).prop_map(|(counting, (requests, millis, burst, debt))| {
        let burst = burst.filter(|_| !is_window(counting));
        let quota = Quota::new(counting, requests, Duration::from_millis(millis), burst).expect("valid");
        quota.with_debt(debt).unwrap_or(quota)
    });
    prop::collection::vec(quota, most / 2..most)
}

/// R3 and R6 for any strategies with any numbers and periods, changed at any frequency.
#[test]
fn any_changes_admit_what_perfect_memory_would() {
    any_changes_of(&STRATEGIES);
}

/// R3 and R6 for changes of numbers and periods within one strategy.
#[test]
fn changes_within_a_strategy_admit_what_perfect_memory_would() {
    for strategy in &STRATEGIES {
        any_changes_of(std::slice::from_ref(strategy));
    }
}

fn any_changes_of(strategies: &'static [Counting]) {
    let all = if cfg!(debug_assertions) { 8 } else { 1 };
    for (every, cases) in [(1, 40 / all), (10, 40 / all), (100, 30 / all), (1_000, 4_u64.div_ceil(all))] {
        let (mut runner, mut sums) = (TestRunner::deterministic(), [[0; 2]; 3]);
        for _ in 0..cases {
            let quotas = changes(strategies, 60).new_tree(&mut runner).expect("nothing is rejected").current();
            let quotas = if every == 1_000 { &quotas[..15] } else { &quotas[..] };
            for (Outcome { kind, admitted, over, perfect }, sum) in
                overload(quotas, every, 1).into_iter().zip(&mut sums)
            {
                assert_eq!(over, 0, "R3: {kind}: {quotas:?}, every {every} ms");
                *sum = [sum[0] + admitted, sum[1] + perfect];
            }
        }
        for [admitted, perfect] in sums {
            let share = admitted as f64 / perfect as f64;
            println!("{strategies:?}, every {every} ms: {admitted} of {perfect}, {share:.3}");
            assert!(share >= 0.95, "R6: {strategies:?}, every {every} ms: {admitted} of {perfect}");
        }
    }
}

/// R3: a longer period needs older admissions than shorter periods.
#[test]
fn what_is_older_than_all_periods_so_far_is_not_forgotten() {
    let (short, long) = (quota(Counting::SlidingWindowLog, 10, TENTH), 10 * SECOND);
    for new in [Counting::SlidingWindowLog, Counting::SlidingWindowCounter] {
        for (kind, mut judged) in Judged::all(short, START) {
            assert_eq!(judged.drain(START), 10);
            for step in 1..8 {
                judged.change(START + step * 100 * MILLI, quota(Counting::FixedWindow, 10 + step, TENTH));
            }
            judged.change(START + 900 * MILLI, quota(new, 12, long));
            assert_eq!(judged.drain(START + 900 * MILLI), 2, "{kind}, {new:?}: ten were admitted a second ago");
        }
    }
}

const BUCKETS: [Counting; 4] =
    [Counting::TokenBucket, Counting::TokenBucketWithDebt, Counting::LeakyBucket, Counting::Gcra];

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// R3 and R6 of buckets, without an oracle: buckets admit the flow plus the largest burst, and rounding loses
    /// nothing at any frequency of changes.
    #[test]
    fn buckets_admit_the_integral(quotas in changes(&BUCKETS, 400), every in prop::sample::select(vec![1_u64, 7])) {
        let integral: f64 = quotas.iter().map(|quota| quota.requests() as f64 / quota.period().as_millis() as f64).sum();
        let integral = integral * every as f64;
        let most = |of: fn(&Quota) -> u64| quotas.iter().map(of).max().expect("at least one") as f64;
        let most = most(Quota::burst) + most(Quota::debt);
        for Outcome { kind, admitted, perfect, .. } in overload(&quotas, every, 1) {
            let admitted = admitted as f64;
            prop_assert!(admitted <= integral + most + 1.0, "R3: {kind}: {admitted} of {integral}");
            prop_assert!(admitted + 1.0 >= 0.99 * perfect as f64, "R6: {kind}: {admitted} of {perfect}");
        }
    }
}

/// R2: a higher limit takes effect immediately, a lowered limit keeps its count, and changing back restores the state.
#[test]
fn windows_and_logs_keep_what_was_counted() {
    for counting in [Counting::FixedWindow, Counting::SlidingWindowCounter, Counting::SlidingWindowLog] {
        // A time in the middle of a window.
        let now = START - START % 1_000_000_000 + 500 * MILLI;
        for (kind, mut judged) in Judged::all(quota(counting, 100, SECOND), now) {
            assert_eq!((0..40).filter(|_| judged.admits(now)).count(), 40);
            for requests in [10, 100, 39, 40, 7, 1, 100] {
                judged.change(now + MILLI, quota(counting, requests, SECOND));
                assert_eq!(judged.remaining(now + MILLI), requests.saturating_sub(40), "{counting:?}, {kind}");
            }
            judged.change(now + 2 * MILLI, quota(counting, 1_000, SECOND));
            assert_eq!(judged.drain(now + 2 * MILLI), 960, "{counting:?}, {kind}: a higher limit helps");
            judged.change(now + 3 * MILLI, quota(counting, 5, SECOND));
            assert_eq!(judged.drain(now + 400 * MILLI), 0, "{counting:?}, {kind}");
            // The lowered limit leaves no debt for the future.
            assert_eq!(judged.drain(now + 2_000 * MILLI), 5, "{counting:?}, {kind}");
        }
    }
}

/// R3: a refused request has no effect on a later change, even if its cost is larger than all counts together.
#[test]
fn a_refused_huge_cost_gives_no_fresh_window() {
    let window = |seconds| quota(Counting::FixedWindow, 10, seconds * SECOND);
    for (kind, mut judged) in Judged::all(window(59), START) {
        judged.change(START, window(60));
        assert_eq!(judged.drain(START), 10, "{kind}");
        assert!(!judged.admits_cost(START, u64::MAX), "{kind}");
        judged.change(START, window(61));
        assert_eq!(judged.drain(START), 0, "{kind}");
    }
}

/// R2: buckets keep their remaining tokens, up to the new burst, and debts stay the same number of requests.
#[test]
fn buckets_keep_what_is_left() {
    let bucket = |burst| Quota::new(Counting::TokenBucket, 10, SECOND, Some(burst)).expect("valid");
    let overdrawn = |burst, debt| {
        let quota = Quota::new(Counting::TokenBucketWithDebt, 10, SECOND, Some(burst)).expect("valid");
        quota.with_debt(debt).expect("valid")
    };
    for (kind, mut judged) in Judged::all(bucket(100), START) {
        assert_eq!((0..40).filter(|_| judged.admits(START)).count(), 40);
        for (burst, left) in [(200, 60), (80, 60), (30, 30), (100, 30)] {
            judged.change(START, bucket(burst));
            assert_eq!(judged.remaining(START), left, "{kind}");
        }
        judged.change(START, overdrawn(10, 8));
        assert_eq!(judged.drain(START), 18, "{kind}");
        judged.change(START, overdrawn(20, 20));
        assert_eq!(judged.remaining(START), 12, "{kind}: the debt is eight");
        judged.change(START, bucket(10));
        assert_eq!(
            (judged.remaining(START), judged.remaining(START + 1_000 * MILLI)),
            (0, 2),
            "{kind}: the debt is kept"
        );
    }
}

/// R2: after windows and logs only, a bucket has the requests that the last of them had left, and no debt.
#[test]
fn a_bucket_after_windows_has_what_they_left() {
    const WINDOWS: [Counting; 3] = [Counting::FixedWindow, Counting::SlidingWindowCounter, Counting::SlidingWindowLog];
    // A time early in a window, which the counter weighs as the whole window.
    let (day, hour) = (Duration::from_hours(24), 3_600_000 * MILLI);
    let start = START - START % (24 * hour);
    let limit = |strategy, requests| Quota::new(strategy, requests, day, None).expect("valid");
    let large = NonZeroUsize::new(65_536).expect("not zero");
    for old in WINDOWS {
        for new in WINDOWS {
            let bucket = limit(Counting::TokenBucket, 500);
            let first = limit(old, 100);
            let unrecorded = RuleLimiter::keyed(at(start), terms(first), large);
            // For so many keys, a table starts histories only when their words lack data.
            (0..5_000_u32).for_each(|key| _ = unrecorded.charge(|| at(start), &key.to_be_bytes(), 1));
            let unrecorded = Judged::Rule(unrecorded);
            let all = Judged::all(first, start).into_iter().chain([("large", unrecorded)]);
            for ((kind, mut judged), used) in all.zip([400, 50, 0, 400]) {
                let place = format!("{kind}: {old:?}, {new:?}, {used}");
                assert_eq!(judged.drain(start), 100, "{place}");
                judged.change(start + hour, limit(new, 500));
                assert_eq!((0..used).filter(|_| judged.admits(start + 2 * hour)).count() as u64, used, "{place}");
                let left = judged.remaining(start + 3 * hour);
                judged.change(start + 3 * hour, bucket);
                assert_eq!(judged.remaining(start + 3 * hour), left, "{place}");
                // The bucket has no debt: its first token comes after one interval.
                judged.drain(start + 3 * hour);
                assert!(judged.admits(start + 3 * hour + 172_800 * MILLI), "{place}");
            }
        }
    }
}

/// R3: a short window between two buckets, and a long one at midnight, give no burst each day. All limits are at most
/// 100 a day, so three days admit at most 300, the first burst, and
/// one request for each short window.
#[test]
fn windows_between_buckets_give_no_fresh_burst() {
    let minute = 60_000 * MILLI;
    let (day, quarter) = (Duration::from_hours(24), Duration::from_mins(15));
    let start = START - START % (24 * 60 * minute);
    let limit = |strategy, requests, per| Quota::new(strategy, requests, per, None).expect("valid");
    let bucket = limit(Counting::TokenBucket, 100, day);
    for (kind, mut judged) in Judged::all(bucket, start) {
        let mut admitted = judged.drain(start);
        for midnight in (1..=3).map(|days| start + days * 24 * 60 * minute) {
            for (at, quota) in [
                (midnight - 20 * minute, limit(Counting::FixedWindow, 1, quarter)),
                (midnight - 2 * minute, limit(Counting::FixedWindow, 100, day)),
                (midnight + 1_000 * MILLI, bucket),
            ] {
                if at < midnight {
                    admitted += judged.drain(at);
                }
                judged.change(at, quota);
                admitted += judged.drain(at);
            }
        }
        assert!(admitted <= 410, "{kind}: {admitted}");
    }
}

/// R2: reservations stay charged after any change. A window keeps each reservation in its own window.
#[test]
fn places_reserved_ahead_stay_as_many_requests() {
    let start = START - START % 1_000_000_000;
    let three_windows = || {
        let limiter = Limiter::new(at(start), quota(Counting::FixedWindow, 10, SECOND));
        let reserve = || limiter.reserve(at(start), 1, at(start + 5_000 * MILLI)).expect("in a later window").at;
        let places: Vec<_> = (0..25).map(|_| reserve()).collect();
        assert_eq!(places[24], at(start + 2_000 * MILLI));
        limiter
    };
    let limiter = three_windows().retune(|| at(start), quota(Counting::FixedWindow, 8, SECOND));
    let limiter = limiter.retune(|| at(start), quota(Counting::FixedWindow, 12, SECOND));
    let left = [0, 999, 1_000, 1_999, 2_000, 3_000].map(|millis| limiter.peek(at(start + millis * MILLI)).remaining());
    assert_eq!(left, [0, 0, 0, 0, 7, 12], "reservations stay in their windows");
    let limiter = three_windows().retune(|| at(start), quota(Counting::TokenBucket, 10, SECOND));
    assert_eq!(limiter.peek(at(start)).retry_after(1), Some(Duration::from_millis(1_600)), "15 reservations remain");
}

/// Sealed words differ from the words of all times, even shortly after the Unix epoch.
#[test]
fn old_handles_follow_in_the_first_day_of_all() {
    let (now, day) = (at(0), Duration::from_hours(24));
    for old in STRATEGIES {
        for new in STRATEGIES {
            let limiter = Limiter::new(now, quota(old, 4, day));
            limiter.charge(now, 1).expect("the whole burst is free");
            let left = limiter.retune(|| now, quota(new, 2, day)).peek(now).remaining();
            let admitted = (0..10).filter(|_| limiter.charge(now, 1).is_ok()).count() as u64;
            assert_eq!(admitted, left, "{old:?} to {new:?}");
        }
    }
}

/// R1 after any requests, reservations and changes. Also checks that the whole burst is free after the reset time.
#[test]
fn an_equal_quota_touches_nothing() {
    let changes = || prop::collection::vec((quotas(), arrivals(8)), 1..6);
    for_each_strategy(
        |quotas| (quotas, changes()),
        |(first, changes)| {
            let mut limiter = Limiter::new(at(START), first);
            let mut now = START;
            for (quota, arrivals) in changes {
                for arrival in arrivals {
                    let old = limiter.quota();
                    let cost;
                    (now, cost) = arrival.after(now, old);
                    now = now.min(END);
                    if arrival.ask == What::Reserve {
                        let _ = limiter.reserve(at(now), cost, at(arrival.latest(now, old)));
                    } else {
                        let _ = limiter.charge(at(now), cost);
                    }
                }
                let before = state(limiter.peek(at(now)));
                limiter = limiter.retune(|| at(now), limiter.quota());
                prop_assert_eq!(state(limiter.peek(at(now))), before);

                limiter = limiter.retune(|| at(now), quota);
                let standing = limiter.peek(at(now));
                if standing.reset_after().as_nanos() < 1 << 60 {
                    let idle = at(now).saturating_add(standing.reset_after());
                    prop_assert_eq!(limiter.peek(idle).remaining(), at_once(quota.strategy(), quota.most()));
                }
            }
            Ok(())
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any change, a limit continues at the new rate. Its wait is at most the time in which its debt flows in.
    #[test]
    fn a_used_up_limit_goes_on_at_the_new_rate(
        old in prop::sample::select(STRATEGIES.to_vec()),
        new in prop::sample::select(STRATEGIES.to_vec()),
        from in 1..200_u64,
        to in 1..200_u64,
        period in prop::sample::select(vec![TENTH, SECOND, 3_600 * SECOND]),
        nanos in 0..2_000_000_000_u64,
    ) {
        let now = at(START + nanos);
        let from = quota(old, from, period);
        let limiter = Limiter::new(at(START), from);
        while limiter.charge(now, 1).is_ok() {}
        let to = quota(new, to, SECOND);
        let limiter = limiter.retune(|| now, to);
        let wait = limiter.peek(now).retry_after(1).expect("one request fits any burst");
        let longest = match new {
            Counting::FixedWindow | Counting::SlidingWindowLog => SECOND,
            Counting::SlidingWindowCounter => 2 * SECOND,
            // The time in which the debt and one request flow in, rounded up.
            _ => SECOND * u32::try_from(from.debt() + 1).expect("small") / u32::try_from(to.requests()).expect("small") + Duration::from_nanos(2),
        };
        prop_assert!(wait <= longest, "{wait:?}");
        prop_assert!(limiter.charge(now.saturating_add(wait), 1).is_ok());
    }
}

/// The share of a used limit is not rounded down to zero: a request of a hundred uses up a limit of one for a time.
#[test]
fn a_limit_of_one_admits_after_it_was_a_hundred() {
    for (old, new) in STRATEGIES.into_iter().flat_map(|old| STRATEGIES.map(|new| (old, new))) {
        let limiter = Limiter::new(at(START), quota(old, 100, SECOND));
        limiter.charge(at(START), 1).expect("all is free");
        let limiter = limiter.retune(|| at(START), quota(new, 1, SECOND));
        assert!(limiter.charge(at(START + 2_000 * MILLI), 1).is_ok(), "{old:?} to {new:?}");
    }
}

/// A change keeps a debt up to the supply of twelve hours at the new rate, because a level further ahead would look like
/// a clock that was set back. Later changes at no lower rate forgive nothing more.
#[test]
fn a_change_keeps_a_debt_of_twelve_hours() {
    let quota = |requests, debt| {
        let quota = Quota::new(Counting::TokenBucketWithDebt, requests, Duration::from_hours(24), Some(10));
        let quota = quota.expect("valid");
        if debt > 0 { quota.with_debt(debt).expect("valid") } else { quota }
    };
    let now = at(START);
    let limiter = Limiter::new(now, quota(240, 1_000));
    limiter.charge(now, 1_010).expect("burst and debt");
    let owed = |limiter: &Limiter, per_hour: u64| {
        let opens = limiter.charge(now, 1).expect_err("a debt").retry_after().expect("some time");
        opens.as_nanos().div_ceil(u128::from(3_600_000_000_000 / per_hour)) - 1
    };
    // The debt is 1,000, and ten requests flow in per hour.
    let mut limiter = limiter.retune(|| now, quota(240, 0));
    assert_eq!(owed(&limiter, 10), 120);
    for per_hour in [20, 10, 40, 10] {
        limiter = limiter.retune(|| now, quota(24 * per_hour, 0));
        assert_eq!(owed(&limiter, per_hour), 120, "at {per_hour} per hour");
    }
    limiter = limiter.retune(|| now, quota(24, 0));
    assert_eq!(owed(&limiter, 1), 12);
}
