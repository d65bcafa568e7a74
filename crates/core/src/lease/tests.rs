//! Leases without threads: which admissions each step takes, keeps and loses.

use super::*;
use crate::{Quota, Strategy};

const START: Time = Time::from_nanos(1_700_000_000_000_000_000);

fn after(millis: u64) -> Time {
    Time::from_nanos(START.as_nanos() + millis * 1_000_000)
}

/// Returns two slots of a bucket of 1,000 per second. The first slot has a lease that the floor passes within 62 ms.
fn leased() -> (Supply, AtomicU64, Leases) {
    let quota = Quota::new(Strategy::TokenBucket, 1000, std::time::Duration::from_secs(1), None).expect("valid");
    let (supply, word) = (Supply::new(quota, START), AtomicU64::new(0));
    let slot = || Slot { state: AtomicU64::new(0), end: AtomicU64::new(0), since: AtomicU64::new(0) };
    let leases = Leases { slots: [slot(), slot()].into() };
    fetch(&leases, 0, &supply, &word, START);
    assert_eq!(requests(&leases), [61, 0]);
    (supply, word, leases)
}

fn fetch(leases: &Leases, own: usize, supply: &Supply, word: &AtomicU64, now: Time) {
    assert!(leases.fetch(own, supply, word, now, 1).is_ok());
}

fn requests(leases: &Leases) -> [u64; 2] {
    [0, 1].map(|slot| leases.slots[slot].state.load(Ordering::SeqCst) & LEFT)
}

#[test]
fn a_lease_is_its_owners_until_half_its_time_has_passed() {
    for millis in [0, 1, 15, 30] {
        let (supply, word, leases) = leased();
        fetch(&leases, 1, &supply, &word, after(millis));
        let [first, second] = requests(&leases);
        assert!(first == 61 && second > 50, "after {millis} ms: {first}, {second}");
    }
}

/// The word restarts below leased admissions and reaches them again.
#[test]
fn what_was_leased_before_the_clock_was_set_back_is_not_there_twice() {
    const DAYS: u64 = 10 * 86_400_000;
    let quota = Quota::new(Strategy::TokenBucket, 1000, std::time::Duration::from_secs(1), None).expect("valid");
    let (supply, word) = (Supply::new(quota, START), AtomicU64::new(0));
    let slot = || Slot { state: AtomicU64::new(0), end: AtomicU64::new(0), since: AtomicU64::new(0) };
    let leases = Leases { slots: [slot(), slot()].into() };
    fetch(&leases, 1, &supply, &word, after(DAYS));
    let lent = requests(&leases)[1];
    let take = |now| leases.fetch(0, &supply, &word, now, 1).is_ok();
    let (now, later) = (after(0), after(DAYS));
    assert!(lent > 50 && !take(now), "no admission is left until the clock has advanced");
    let got = (0..2000).filter(|_| take(later)).count();
    assert_eq!(got, 1000);
}

#[test]
fn a_closed_slot_admits_no_cost() {
    let (supply, _, leases) = leased();
    let (slot, floor) = (&leases.slots[0], supply.floor(START));
    let take = |cost| slot.take_at_once(&supply, floor, cost, |units| supply.whole_or_less(units));
    assert!(matches!(take(61), Attempt::Taken { .. }));
    assert_eq!(take(1), Attempt::TooFew);
    let (supply, _, leases) = leased();
    let (slot, floor) = (&leases.slots[0], supply.floor(START));
    leases.seal();
    for cost in [1, 2, 61, 1 << 31, (1 << 32) - 61, 1 << 63, u64::MAX] {
        let attempt = slot.take_at_once(&supply, floor, cost, |units| supply.whole_or_less(units));
        assert_eq!(attempt, Attempt::TooFew, "{cost}");
        assert!(slot.take(&supply, floor, cost).is_err(), "{cost}");
    }
    assert_eq!(leases.left(&supply, floor), 61 * supply.unit());
}

/// This includes admissions of an earlier lease that the floor has passed: they would count as admissions of the new
/// lease.
#[test]
fn while_a_slot_is_filled_it_meets_no_cost() {
    let (supply, _, leases) = leased();
    let (slot, floor) = (&leases.slots[0], supply.floor(after(100)));
    let take = || slot.take_at_once(&supply, floor, 1, |units| supply.whole_or_less(units));
    let filling = slot.begin(floor).expect("the whole lease is lost");
    let end = floor + 100 * supply.unit();
    slot.end.store(end, Ordering::SeqCst);
    assert_eq!(take(), Attempt::TooFew);
    slot.fill(filling, end, 10);
    assert_eq!(take(), Attempt::Taken { end: end - 9 * supply.unit() });
}

/// Exactly the admissions above the floor are available.
#[test]
fn only_admissions_above_the_floor_are_taken() {
    for millis in [0, 1, 2, 30, 60, 61] {
        let (supply, _, leases) = leased();
        let now = after(millis);
        let slot = &leases.slots[0];
        let take = || slot.take_at_once(&supply, supply.floor(now), 1, |units| supply.whole_or_less(units));
        let taken = (0..100).map_while(|_| take().end()).collect::<Vec<_>>();
        let end = slot.end.load(Ordering::SeqCst);
        assert_eq!(taken.len() as u64, 61_u64.min(62 - millis), "after {millis} ms");
        assert_eq!(taken.last(), Some(&end), "after {millis} ms");
        assert!(taken.iter().all(|mark| mark - supply.unit() >= supply.floor(now)), "after {millis} ms");
    }
}

#[test]
fn an_old_lease_is_taken_over_once() {
    let (supply, word, leases) = leased();
    fetch(&leases, 1, &supply, &word, after(32));
    assert_eq!(requests(&leases), [0, 29]);
    fetch(&leases, 0, &supply, &word, after(33));
    let [first, second] = requests(&leases);
    assert!(first > 50 && second == 29, "{first}, {second}");
}

/// Returns a random number below `below`.
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// Returns the number of requests that the word alone admits, and the number that leases admit. Each burst or quiet
/// period takes up to `longest` ms, has a random one of these percentages of the limit, and uses some of the slots.
fn admitted(quota: Quota, slots: u64, percents: [u64; 4], longest: u64) -> (u64, u64) {
    let supply = Supply::new(quota, START);
    let (alone, word) = (AtomicU64::new(0), AtomicU64::new(0));
    let slot = |_| Slot { state: AtomicU64::new(0), end: AtomicU64::new(0), since: AtomicU64::new(0) };
    let leases = Leases { slots: (0..slots).map(slot).collect() };
    let index = |number| usize::try_from(number).expect("few");
    let (mut state, mut elapsed, mut asked, mut by_word, mut by_leases) = (slots + longest, 0, 0, 0, 0);
    while asked < 20_000 {
        let percent = percents[index(random(&mut state, 4))];
        let nanos = (1 + random(&mut state, longest)) * 1_000_000;
        let threads = 1 + random(&mut state, slots);
        let requests = (quota.requests() * percent * nanos / 100_000_000_000).max(1);
        for _ in 0..requests {
            elapsed += nanos / requests;
            let now = Time::from_nanos(START.as_nanos() + elapsed);
            let (own, floor) = (index(random(&mut state, threads)), supply.floor(now));
            by_word += u64::from(level::charge(&supply, &alone, now, 1).is_ok());
            let taken = leases.slots[own].take(&supply, floor, 1).expect("not closed").is_some();
            by_leases += u64::from(taken || leases.fetch(own, &supply, &word, now, 1).is_ok());
            assert!(by_leases <= by_word, "{quota:?}, {slots} slots: {by_leases} of {by_word}");
        }
        asked += requests;
    }
    (by_word, by_leases)
}

/// For 144 patterns of traffic, measures which part of the admissions leases lose, in hundredths of a percent. The
/// random numbers are the same in every run.
#[test]
fn under_bursts_and_quiet_periods_leases_lose_a_thousandth() {
    let (mut all, mut lost, mut worst) = (0, 0, 0);
    for (requests, burst) in [(1000, 1000), (1000, 5000), (100_000, 10_000), (10_000, 100_000)] {
        let period = std::time::Duration::from_secs(1);
        let quota = Quota::new(Strategy::TokenBucket, requests, period, Some(burst)).expect("valid");
        for slots in [2, 4, 15] {
            for percents in [[0, 50, 100, 1000], [0, 0, 500, 500], [10, 97, 97, 2000], [30, 70, 90, 300]] {
                for longest in [5, 60, 600] {
                    let (by_word, by_leases) = admitted(quota, slots, percents, longest);
                    (all, lost) = (all + by_word, lost + by_word - by_leases);
                    worst = worst.max((by_word - by_leases) * 10_000 / by_word);
                }
            }
        }
    }
    let mean = lost * 10_000 / all;
    assert!(mean <= 8 && worst <= 130, "{mean} on average, {worst} at worst");
}
