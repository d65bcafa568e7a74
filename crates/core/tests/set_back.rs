//! Clocks that are set back, for all strategies, with and without keys: the limit refuses for at most a day, and never
//! admits too many requests.
#![cfg(not(loom))]

mod suite;

use std::time::Duration;

use weir_core::{Quota, RuleLimiter, Time};

use self::suite::{START, STRATEGIES, at_once, keys, quota, terms};

const DAY: Duration = Duration::from_hours(24);
const YEAR: Duration = Duration::from_hours(24 * 365);
const HOUR: Duration = Duration::from_hours(1);
const BACK: [Duration; 6] = [
    Duration::from_mins(1),
    HOUR,
    Duration::from_hours(25),
    Duration::from_hours(24 * 10),
    Duration::from_hours(24 * 45),
    YEAR.saturating_mul(10),
];

/// The number of periods for which admissions are counted.
const PERIODS: u64 = 10;

/// The admissions of a limiter before its clock was set back.
#[derive(Clone, Copy, Debug)]
enum Used {
    Nothing,
    Half,
    All,
}

/// A limit, shared or keyed, that was created and used while the clock was ahead.
struct Limit {
    rule: RuleLimiter,
    quota: Quota,
    key: &'static [u8],
}

impl Limit {
    fn both(made: Time, quota: Quota) -> [Self; 2] {
        let keyed = RuleLimiter::keyed(made, terms(quota), keys(10));
        let unkeyed = RuleLimiter::unkeyed(made, terms(quota));
        [(unkeyed, &b""[..]), (keyed, &b"ann"[..])].map(|(rule, key)| Self { rule, quota, key })
    }

    /// Charges one request at a time until a refusal, and at most `most` requests.
    fn take(&self, now: Time, most: u64) -> u64 {
        (0..most).take_while(|_| self.rule.charge(|| now, self.key, 1).is_ok()).count() as u64
    }

    /// Returns the admissions of a caller that sends a request whenever one more request has flowed in, for this many
    /// periods.
    fn take_for(&self, from: Time, periods: u64) -> u64 {
        let step = self.quota.period() / u32::try_from(self.quota.requests()).expect("few");
        let steps = periods * self.quota.requests();
        (0..steps)
            .map(|number| self.take(from.saturating_add(step * u32::try_from(number).expect("few")), u64::MAX))
            .sum()
    }
}

/// Returns a limit for each strategy, with and without keys, and for each usage.
fn each(made: Time) -> impl Iterator<Item = (String, Limit, Used)> {
    let numbers = [(10, Duration::from_secs(1)), (1000, DAY), (100, HOUR), (50, 30 * DAY)];
    let quotas = STRATEGIES.into_iter().flat_map(move |strategy| numbers.map(|(n, period)| quota(strategy, n, period)));
    quotas.flat_map(move |quota| {
        let used = [Used::Nothing, Used::Half, Used::All];
        used.into_iter().flat_map(move |used| {
            Limit::both(made, quota).map(|limit| {
                let keyed = if limit.key.is_empty() { "one" } else { "keyed" };
                let what =
                    format!("{:?} {} in {:?}, {keyed}, {used:?}", quota.strategy(), quota.requests(), quota.period());
                (what, limit, used)
            })
        })
    })
}

fn use_up(limit: &Limit, used: Used, now: Time) -> u64 {
    let burst = at_once(limit.quota.strategy(), limit.quota.most());
    match used {
        Used::Nothing => 0,
        Used::Half => limit.take(now, burst / 2),
        Used::All => limit.take(now, u64::MAX),
    }
}

#[test]
fn the_limit_is_there_again_within_a_day_and_a_period() {
    let mut wrong = Vec::new();
    for back in BACK {
        for (what, limit, used) in each(START.saturating_add(back)) {
            use_up(&limit, used, START.saturating_add(back));
            for hour in 0..24 {
                limit.take(START.saturating_add(HOUR * hour), u64::MAX);
            }
            let period = limit.quota.period();
            let from = START.saturating_add(DAY).saturating_add(period);
            limit.take(from, u64::MAX);
            let got = limit.take_for(from, PERIODS);
            // The same caller from the same time on, with a clock that was never ahead, gets the expected number.
            let [usual, _] = Limit::both(START, limit.quota);
            usual.take(from, u64::MAX);
            let due = usual.take_for(from, PERIODS);
            if got * 100 < due * 95 || got > PERIODS * limit.quota.requests() + limit.quota.most() {
                wrong.push(format!("{what}, back by {back:?}: {got} of {due}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn nothing_is_given_away_when_the_clock_goes_back_nor_when_it_comes_again() {
    let mut wrong = Vec::new();
    for back in BACK {
        for (what, limit, used) in each(START.saturating_add(back)) {
            let (ahead, burst) = (START.saturating_add(back), at_once(limit.quota.strategy(), limit.quota.most()));
            let before = use_up(&limit, used, ahead);
            let again = limit.take(START, u64::MAX);
            // An unused leaky bucket admits one request, now or later.
            if before + again > burst {
                wrong.push(format!("{what}, back by {back:?}: {before} and {again} of {burst}"));
            }
            // If the clock jumps ahead, the jump counts as elapsed time: the limit refills for this time, but never
            // more than its burst.
            for jump in [back, back.saturating_add(limit.quota.period() * 3)] {
                let later = limit.take(START.saturating_add(jump), u64::MAX);
                if later > burst {
                    wrong.push(format!("{what}, back by {back:?} and on by {jump:?}: {later} of {burst}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
