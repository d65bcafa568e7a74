//! Keeps a part of a limit free for programs that are cut off from the counter. Each of them decides with its share:
//! the limits divided by the number of sharers, which begins without credit. The counter charges what the shares can
//! use, so that all programs together stay within the limit.
//!
//! The counter charges only the shares of programs that are cut off now. A program that comes back first reports the
//! units that its share used and that still count ([`owed`](crate::Take::owed)), so its reserve can end.
//!
//! A share has at least one unit. If there are more sharers than units, the shares of many programs together exceed
//! the limit, and no reserve can prevent that.

use crate::{
    bucket::{MOST_RESERVED, Point, WHOLE, capacity},
    model::{Transition, take},
    state::{Mark, Reach, State, start_of},
    take::EncodedTake,
    terms::StoreLimit,
    value::Value,
};

/// The programs that are cut off. They can divide the limits by different numbers of sharers, because the number
/// changes while programs come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent<'a> {
    /// How many programs are cut off now, and by how many sharers they divide the limits. At least 1.
    pub programs: &'a [(u32, u32)],
    /// The sum of [`part`] multiplied by the microseconds for which each program was cut off, since the last reservation.
    pub elapsed: u128,
    /// No share of these programs began before this time. Zero if that is unknown. A share begins without credit, so a
    /// short absence needs a small reserve.
    pub since: u64,
}

/// The part of a limit that is the share of one of this many sharers.
pub fn part(sharers: u32) -> u128 {
    WHOLE.div_ceil(sharers.max(1).into())
}

/// The units of one key that are reserved now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedUnits {
    stamp: u64,
    /// The time of the last update.
    updated: u64,
    /// The part of the elapsed time that is less than a microsecond of the level.
    rest: u128,
    /// The sum of the parts of all programs that are cut off, at most [`MOST_RESERVED`].
    part: u32,
    /// For each limit that is not a bucket: the start of the window or the time in the log, and the reserved units.
    /// Empty if nothing is reserved.
    units: Vec<(u64, u64)>,
}

impl ReservedUnits {
    /// Adjusts what is reserved of a key, at `now`. Call this immediately before the value answers a question.
    pub fn update(&mut self, value: &mut Value, absent: Absent<'_>, now: u64) {
        if self.stamp != value.stamp {
            // Units that were reserved under other terms stay charged.
            (self.stamp, self.units) = (value.stamp, Vec::new());
        }
        let parts =
            absent.programs.iter().map(|&(programs, sharers)| u128::from(programs) * part(sharers)).sum::<u128>();
        self.part = u32::try_from(parts).unwrap_or(MOST_RESERVED).min(MOST_RESERVED);
        let passed = now.saturating_sub(std::mem::replace(&mut self.updated, now));
        if absent.programs.is_empty() && absent.elapsed == 0 && self.units.is_empty() {
            return;
        }
        if self.units.is_empty() {
            // A fraction of a microsecond counts as a whole one.
            self.rest = WHOLE - 1;
        }
        let elapsed = absent.elapsed.saturating_add(self.rest);
        // Shares take their part of the supply while it is made. So they take at most the supply since the last update,
        // even if more programs are cut off than divide the limit.
        let moved = u64::try_from(elapsed / WHOLE).unwrap_or(u64::MAX).min(passed);
        self.rest = elapsed % WHOLE;
        self.units.resize(value.limits.len(), (0, 0));
        // Shares can have saved at most their part of the supply since they began. A share of a log begins half a period
        // later, so the first period in which it admits requests begins after that time.
        let age = now.saturating_sub(absent.since);
        let saved = u64::try_from((parts * u128::from(age)).div_ceil(WHOLE)).unwrap_or(u64::MAX);
        for ((limit, state), units) in value.limits.iter().zip(&mut value.states).zip(&mut self.units) {
            let units_of =
                |&(programs, sharers): &(u32, u32)| u64::from(programs).saturating_mul(share(limit, sharers.max(1)));
            let part = absent.programs.iter().map(units_of).fold(0, u64::saturating_add);
            if let State::Bucket(level) = state {
                // The level can be ahead of an empty bucket, because seats use the supply of the near future. The shares
                // take their part of it nevertheless.
                *level = level.plus(limit, Point::at(moved));
            }
            state.advance(limit, now);
            match state {
                State::Bucket(level) => {
                    let most = Point::at(now.saturating_add(saved));
                    *level = (*level).max(saved_level(limit, part, now).min(most));
                }
                State::Log(_) if age < limit.period / 2 => {}
                State::Log(_) => reserve_log(limit, state, units, part.min(limit.requests), now),
                State::Window { .. } | State::Counter { .. } => {
                    reserve_window(limit, state, units, (part.min(limit.requests), absent.since), now);
                }
            }
        }
        if absent.programs.is_empty() {
            self.units.clear();
        }
    }

    /// Answers a question. Call [`update`](Self::update) immediately before.
    ///
    /// While shares use a part of a bucket's supply, only the rest refills the bucket. So the granted seats follow
    /// each other more slowly, and end earlier.
    pub fn take(&self, value: &Value, encoded: &EncodedTake, now: u64) -> Transition {
        if self.part == 0 || !value.limits.iter().any(StoreLimit::is_bucket) {
            return take(Some(value), encoded, now);
        }
        let rest = WHOLE - u128::from(self.part);
        let part_of = |time: u64| u64::try_from(u128::from(time) * rest / WHOLE).unwrap_or(time);
        let reach = Reach { lookahead: part_of(encoded.reach.lookahead), ..encoded.reach };
        let slower = EncodedTake { patience: part_of(encoded.patience), reach, ..encoded.clone() };
        let mut outcome = take(Some(value), &slower, now);
        let [served, lent, _] = &mut outcome.answer.marks;
        for marks in [served, lent] {
            for (limit, mark) in value.limits.iter().zip(marks).filter(|(limit, _)| limit.is_bucket()) {
                *mark = stretched(limit, *mark, rest, now);
            }
        }
        outcome.answer.reserved = self.part;
        outcome
    }
}

/// Moves the mark away from the end of what can be used now, by the factor by which the bucket refills more slowly.
fn stretched(limit: &StoreLimit, [us, parts, _]: Mark, rest: u128, now: u64) -> Mark {
    let usable = if limit.is_leaky() { Point::at(now) } else { Point::at(now).plus(limit, capacity(limit)) };
    let mark = Point { us, parts };
    let longer = |distance: Point| distance.times(limit, WHOLE, rest);
    let Point { us, parts } = if mark < usable {
        usable.minus(limit, longer(usable.minus(limit, mark)))
    } else {
        usable.plus(limit, longer(mark.minus(limit, usable)))
    };
    [us, parts, 0]
}

/// The units that a share can use at the same time. Zero if there is no valid share. Then programs refuse all requests.
fn share(limit: &StoreLimit, sharers: u32) -> u64 {
    limit.share(sharers).map_or(0, |share| share.at_once())
}

/// The level that leaves the credit that shares of `part` units can have saved. One unit is always available to others,
/// so that a small bucket does not starve.
fn saved_level(limit: &StoreLimit, part: u64, now: u64) -> Point {
    Point::at(now).after(limit, part.min(limit.at_once().saturating_sub(1)))
}

/// Reserves `part` units of the current window, for shares that began at `since` or later.
fn reserve_window(limit: &StoreLimit, state: &mut State, units: &mut (u64, u64), (part, since): (u64, u64), now: u64) {
    let start = start_of(limit, now);
    let (before, charged) = *units;
    let charged = if before == start { charged } else { 0 };
    match state {
        State::Window { count, .. } => *count = (*count + part).saturating_sub(charged),
        State::Counter { current, previous, .. } => {
            // Agents could also use their shares in the previous window, even if no question arrived in it.
            if since < start && before < start && before + limit.period != start {
                *previous += part;
            }
            *current = (*current + part).saturating_sub(charged);
        }
        State::Bucket(_) | State::Log(_) => {}
    }
    *units = (start, part);
}

/// Reserves `part` units of each period. Units of a log are never taken back: they expire.
fn reserve_log(limit: &StoreLimit, state: &mut State, units: &mut (u64, u64), part: u64, now: u64) {
    let (at, charged) = *units;
    if charged == 0 || now >= at + limit.period {
        state.charge(limit, now, part);
        *units = (now, part);
    } else if part > charged {
        state.charge(limit, now, part - charged);
        *units = (at, part);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{Quota, Strategy};
    use weir_fuzz::Random;

    use super::*;
    use crate::{
        bounds::StoreTime,
        model::used_up,
        seats::Seats,
        take::{Reply, Take},
        terms::StoreTerms,
    };

    const START: u64 = 1_790_000_000_000_000;
    const PERIOD: u64 = 1_000_000;
    /// The longest time for which requests wait.
    const LONGEST_WAIT: u64 = 500_000;

    fn terms(strategy: Strategy, requests: u64, period: u64, burst: u64) -> StoreTerms {
        let is_bucket =
            !matches!(strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog);
        let quota = Quota::new(strategy, requests, Duration::from_micros(period), is_bucket.then_some(burst));
        StoreTerms::new(1, &[(0, quota.expect("a quota"))]).expect("terms")
    }

    fn small(number: usize) -> u32 {
        u32::try_from(number).expect("a small number")
    }

    fn granted(value: &mut Value, terms: &StoreTerms, requests: u32, now: u64) -> u64 {
        let question = Take { requests, ..Take::new(terms) }.encode().expect("a question");
        let outcome = take(Some(value), &question, now);
        *value = outcome.value;
        outcome.answer.granted
    }

    /// Asks the counter.
    fn ask(reserved: &ReservedUnits, value: &mut Value, question: &Take<'_>, now: u64) -> Reply {
        let encoded = question.encode().expect("a question");
        let outcome = reserved.take(value, &encoded, now);
        *value = outcome.value;
        outcome.answer.reply(&encoded).expect("an answer to the question")
    }

    /// Reserves the shares of programs that are cut off, and were cut off for this sum of microseconds.
    fn cut_off(
        reserved: &mut ReservedUnits,
        value: &mut Value,
        (programs, sharers, elapsed): (u32, u32, u64),
        now: u64,
    ) {
        let all = [(programs, sharers)];
        let programs = if programs == 0 { &[][..] } else { &all };
        reserved.update(value, Absent { programs, elapsed: u128::from(elapsed) * part(sharers), since: 0 }, now);
    }

    /// The largest number of units that the definition of the strategy allows to be exceeded, or zero.
    fn excess(strategy: Strategy, requests: u64, times: &[u64]) -> u64 {
        let in_period = |at: u64| times.iter().filter(|&&time| time > at - PERIOD && time <= at).count() as u64;
        let in_window =
            |at: u64| times.iter().filter(|&&time| time / PERIOD == at / PERIOD && time <= at).count() as u64;
        let over = |at: u64| match strategy {
            Strategy::FixedWindow => in_window(at).saturating_sub(requests),
            Strategy::SlidingWindowLog => in_period(at).saturating_sub(requests),
            Strategy::SlidingWindowCounter => {
                let before = in_window(at - at % PERIOD - 1);
                let weight = (before * (PERIOD - at % PERIOD)).div_ceil(PERIOD);
                (weight + in_window(at)).saturating_sub(requests)
            }
            _ => {
                // The intervals that end at `at` and begin with an admission.
                let spans = times.iter().filter(|&&time| time <= at).map(|&time| {
                    let count = times.iter().filter(|&&other| (time..=at).contains(&other)).count() as u64;
                    count.saturating_sub(requests + (at - time) * requests / PERIOD)
                });
                spans.max().unwrap_or(0)
            }
        };
        times.iter().map(|&at| over(at)).max().unwrap_or(0)
    }

    /// The counter and the shares of programs that are cut off one after the other never exceed the limit.
    #[test]
    fn counter_and_shares_together_stay_within_the_limit() {
        for strategy in Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::LeakyBucket) {
            let mut from_hand = 0;
            for seed in 0..120 {
                let mut random = Random::new(seed);
                let sharers = 2_u32 << random.below(3);
                let requests = u64::from(sharers) * (1 + random.below(4) as u64);
                let whole = terms(strategy, requests, PERIOD, requests);
                let share = requests / u64::from(sharers);
                let part = match strategy {
                    Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
                        terms(strategy, share, PERIOD, share)
                    }
                    _ => terms(strategy, requests, PERIOD * u64::from(sharers), share),
                };
                let mut now = START + random.below(1_000_000) as u64;
                let (mut value, mut reserved) = (Value::new(1, whole.raw(), now), ReservedUnits::default());
                let (mut shares, mut elapsed, mut since, mut times) = (Vec::new(), 0, 0, Vec::new());
                // The seats that programs took in advance, and those of late answers.
                let mut hand: Vec<Seats> = Vec::new();
                for _ in 0..150 {
                    let most = [2_000, 50_000, 400_000][random.below(3)];
                    let step = random.below(most) as u64;
                    now += step;
                    elapsed += step * shares.len() as u64;
                    match random.below(10) {
                        // The counter notices that a program is cut off before its share begins. Meanwhile, requests
                        // go that were granted with patience.
                        0 if shares.len() + 1 < sharers as usize => {
                            since = if shares.is_empty() { now } else { since };
                            let is_log = strategy == Strategy::SlidingWindowLog;
                            shares.push(used_up(&part, now + if is_log { PERIOD / 2 } else { LONGEST_WAIT }));
                        }
                        1..=4 => {
                            let programs = [(small(shares.len()), sharers)];
                            let programs = if shares.is_empty() { &[][..] } else { &programs };
                            let elapsed = u128::from(std::mem::take(&mut elapsed)) * super::part(sharers);
                            reserved.update(&mut value, Absent { programs, elapsed, since }, now);
                            let [guard, lookahead, patience] =
                                [200, 200, 500].map(|most| Duration::from_millis(random.below(most) as u64));
                            let patience = if random.below(2) == 0 { patience } else { Duration::ZERO };
                            let [requests, prefetch] = [1 + small(random.below(9)), small(random.below(30))];
                            let question = Take { requests, prefetch, patience, guard, lookahead, ..Take::new(&whole) };
                            let reply = ask(&reserved, &mut value, &question, now);
                            hand.extend(reply.prefetched);
                            match reply.served {
                                Some(late) if random.below(4) == 0 => hand.push(late),
                                Some(served) => {
                                    let goes = |before| now.max(served.due(&whole, before, 1));
                                    times.extend((0..reply.granted).map(goes));
                                }
                                None => {}
                            }
                        }
                        5 | 6 => {
                            let at = StoreTime { earliest: now, latest: now };
                            let most = random.below(20);
                            let claims = hand
                                .iter_mut()
                                .flat_map(|seats| std::iter::from_fn(|| seats.claim(&whole, 1, at).then_some(now)));
                            let before = times.len();
                            times.extend(claims.take(most));
                            from_hand += times.len() - before;
                        }
                        _ => {
                            for share in &mut shares {
                                let granted = granted(share, &part, small(random.below(4)), now);
                                times.extend((0..granted).map(|_| now));
                            }
                        }
                    }
                }
                assert_eq!(excess(strategy, requests, &times), 0, "{strategy:?}, seed {seed}");
            }
            let gives_in_advance = terms(strategy, 1, PERIOD, 1).raw()[0].gives_in_advance();
            assert!(from_hand > 0 || !gives_in_advance, "no seat was used later: {strategy:?}");
        }
    }

    /// A program with unlimited demand takes seats in advance, so the level is always later than that of an empty bucket.
    #[test]
    fn shares_take_their_part_although_seats_use_the_near_future() {
        const MILLI: u64 = 1_000;
        const LOOKAHEAD: u64 = 50 * MILLI;
        let whole = terms(Strategy::TokenBucket, 1_000, PERIOD, 1_000);
        let (mut value, mut reserved) = (Value::new(1, whole.raw(), START), ReservedUnits::default());
        let lookahead = Duration::from_micros(LOOKAHEAD);
        let (mut taken, seconds) = (0, 20);
        for now in (0..seconds * PERIOD).step_by(usize::try_from(MILLI).expect("small")).map(|time| START + time) {
            // One of four programs is cut off.
            cut_off(&mut reserved, &mut value, (1, 4, MILLI), now);
            let question = Take { prefetch: 100, lookahead, ..Take::new(&whole) };
            let reply = ask(&reserved, &mut value, &question, now);
            taken += u64::from(reply.granted + reply.prefetched.map_or(0, |seats| seats.left()));
        }
        let (most, least) = (1_000 + 750 * seconds + 50, 750 * seconds);
        assert!((least..=most).contains(&taken), "{taken}, and {least} to {most} are due");
    }

    /// More programs are cut off than divide the limit.
    #[test]
    fn shares_take_no_more_than_the_supply_since_the_last_update() {
        let whole = terms(Strategy::TokenBucket, 1_000, PERIOD, 1_000);
        let (mut value, mut reserved) = (used_up(&whole, START), ReservedUnits::default());
        for (elapsed, now) in [(0, START), (8 * PERIOD, START + PERIOD)] {
            cut_off(&mut reserved, &mut value, (8, 4, elapsed), now);
        }
        assert_eq!(value.full_at(), START + 2 * PERIOD, "an empty bucket at that time");
    }

    /// Two of four programs are cut off, so a bucket of 8 has 4 units for the others, and 4 more in each second.
    #[test]
    fn requests_that_wait_go_at_the_pace_of_the_rest() {
        for strategy in [Strategy::TokenBucket, Strategy::LeakyBucket] {
            let whole = terms(strategy, 8, PERIOD, 8);
            let (mut value, mut reserved) = (Value::new(1, whole.raw(), START), ReservedUnits::default());
            cut_off(&mut reserved, &mut value, (2, 4, 0), START);
            let question = Take { requests: 9, patience: Duration::from_secs(1), ..Take::new(&whole) };
            let reply = ask(&reserved, &mut value, &question, START);
            let served = reply.served.expect("seats");
            let due = |before| served.due(&whole, before, 1).saturating_sub(START);
            let due: Vec<u64> = (0..reply.granted).map(due).collect();
            let expected: &[u64] = match strategy {
                Strategy::LeakyBucket => &[0, 250_000, 500_000, 750_000, 1_000_000],
                _ => &[0, 0, 0, 0, 250_000, 500_000, 750_000, 1_000_000],
            };
            assert_eq!(due, expected, "{strategy:?}");
            // After the pods are back, questions get the whole supply.
            let later = START + 10 * PERIOD;
            cut_off(&mut reserved, &mut value, (0, 4, 0), later);
            let reply = ask(&reserved, &mut value, &Take { requests: 9, ..Take::new(&whole) }, later);
            assert_eq!(reply.served.expect("seats").reserved, 0);
        }
    }

    #[test]
    fn seats_in_advance_are_due_within_the_lookahead() {
        const LOOKAHEAD: u64 = 100_000;
        let whole = terms(Strategy::TokenBucket, 1_000, PERIOD, 1_000);
        let (mut value, mut reserved) = (Value::new(1, whole.raw(), START), ReservedUnits::default());
        cut_off(&mut reserved, &mut value, (2, 4, 0), START);
        let question = Take { prefetch: 1_000, lookahead: Duration::from_micros(LOOKAHEAD), ..Take::new(&whole) };
        let replies = (0..100).map(|_| ask(&reserved, &mut value, &Take { requests: 0, ..question }, START));
        let due = replies.filter_map(|reply| reply.prefetched).map(|seats| seats.due(&whole, seats.left() - 1, 1));
        let latest = due.max().expect("seats") - START;
        assert!((LOOKAHEAD / 2..=LOOKAHEAD).contains(&latest), "{latest}");
    }

    /// One of four programs is cut off for three seconds. In this time, its share makes less than one unit.
    #[test]
    fn a_short_absence_reserves_little_of_a_long_limit() {
        const DAY: u64 = 86_400 * PERIOD;
        for strategy in Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::LeakyBucket) {
            let whole = terms(strategy, 300, DAY, 300);
            let now = START - START % DAY + DAY / 2;
            let mut value = Value::new(1, whole.raw(), now - DAY);
            assert_eq!(granted(&mut value, &whole, 40, now), 40);
            let mut reserved = ReservedUnits::default();
            let since = now + 3 * PERIOD;
            let absent = |programs, elapsed, since| Absent { programs, elapsed, since };
            reserved.update(&mut value, absent(&[], 0, since), since);
            let back = since + 3 * PERIOD;
            reserved.update(&mut value, absent(&[(1, 4)], u128::from(3 * PERIOD) * part(4), since), back);
            let while_absent = granted(&mut value.clone(), &whole, 300, back);
            reserved.update(&mut value, absent(&[], 0, back), back);
            let left = granted(&mut value, &whole, 300, back);
            let is_window = matches!(strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter);
            assert!(while_absent >= if is_window { 185 } else { 259 }, "{strategy:?}: {while_absent}");
            assert!(left >= 259, "{strategy:?}: {left} of 260");
        }
    }

    #[test]
    fn a_reserve_ends_when_a_program_is_back() {
        let whole = terms(Strategy::FixedWindow, 40, PERIOD, 40);
        let (mut value, mut reserved) = (Value::new(1, whole.raw(), START), ReservedUnits::default());
        for (programs, free) in [(1, 30), (2, 20), (0, 40), (4, 0), (0, 40)] {
            cut_off(&mut reserved, &mut value, (programs, 4, 0), START);
            assert_eq!(granted(&mut value.clone(), &whole, 99, START), free, "{programs}");
        }
    }

    /// A program that was cut off while there were fewer sharers has a larger share.
    #[test]
    fn programs_can_have_shares_of_different_sizes() {
        let whole = terms(Strategy::FixedWindow, 40, PERIOD, 40);
        let (mut value, mut reserved) = (Value::new(1, whole.raw(), START), ReservedUnits::default());
        for (programs, free) in
            [(&[(1, 4)][..], 30), (&[(1, 2), (2, 8)], 10), (&[(3, 8)], 25), (&[(1, 1)], 0), (&[], 40)]
        {
            reserved.update(&mut value, Absent { programs, elapsed: 0, since: 0 }, START);
            assert_eq!(granted(&mut value.clone(), &whole, 99, START), free, "{programs:?}");
        }
        let bucket = terms(Strategy::TokenBucket, 1_000, PERIOD, 1_000);
        let (mut value, mut reserved) = (used_up(&bucket, START), ReservedUnits::default());
        reserved.update(&mut value, Absent { programs: &[(1, 2), (1, 4)], elapsed: 0, since: 0 }, START);
        let elapsed = u128::from(PERIOD) * (part(2) + part(4));
        reserved.update(&mut value, Absent { programs: &[(1, 2), (1, 4)], elapsed, since: 0 }, START + PERIOD);
        // Of 1,000 units, the shares can have used 750.
        assert_eq!(value.full_at(), START + PERIOD + 750_000);
    }

    /// A leaky bucket and a bucket of one unit can only keep the rate free.
    #[test]
    fn a_small_bucket_does_not_starve() {
        for strategy in [Strategy::LeakyBucket, Strategy::Gcra] {
            let whole = terms(strategy, 10, PERIOD, 1);
            let (mut value, mut reserved) = (Value::new(1, whole.raw(), START), ReservedUnits::default());
            let mut count = 0;
            for step in 1..=1_000 {
                let now = START + step * 10_000;
                cut_off(&mut reserved, &mut value, (2, 4, 20_000), now);
                count += granted(&mut value, &whole, 1, now);
            }
            assert!((45..=52).contains(&count), "{strategy:?}: half of 100 units, not {count}");
        }
    }
}
