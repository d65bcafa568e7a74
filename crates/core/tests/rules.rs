//! The behaviour of a rule, with and without a key, with made-up times.
#![cfg(not(loom))]

mod suite;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use weir_core::{Demand, InvalidTerms, KeyStats, Limiter, Position, Quota, RuleLimiter, Strategy, Terms, charge_rules};

use self::suite::{SECOND, START, STRATEGIES, after, at_once, drain_key as drain, quota};

/// Under miri, each iteration takes milliseconds.
const MANY: u32 = if cfg!(miri) { 20 } else { 1_000 };

fn per_second(requests: u64) -> Quota {
    Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None).expect("valid")
}

fn terms<const N: usize>(limits: [(&str, Quota); N]) -> Terms {
    Terms::new(limits).expect("valid")
}

fn keys(max: usize) -> Option<NonZeroUsize> {
    NonZeroUsize::new(max)
}

fn keyed<const N: usize>(limits: [(&str, Quota); N], max: usize) -> RuleLimiter {
    RuleLimiter::keyed(START, terms(limits), keys(max).expect("not zero"))
}

fn stats(rule: &RuleLimiter) -> KeyStats {
    rule.keys().expect("it is keyed")
}

/// Two known mistakes: all limits are checked before all are charged, and a limit is charged although the next one
/// refuses.
#[test]
fn all_limits_of_a_rule_are_charged_or_none() {
    let limits = [("wide", per_second(100)), ("narrow", per_second(2))];
    for rule in [RuleLimiter::unkeyed(START, terms(limits)), keyed(limits, 10)] {
        assert_eq!(drain(&rule, START, b"key"), 2);
        for _ in 0..MANY {
            let refused = rule.charge(|| START, b"key", 1).expect_err("the narrow limit is used up");
            assert_eq!((refused.limit, refused.retry_after()), (1, Some(Duration::from_millis(500))));
        }
        let rule = rule.retune(|| START, terms([("wide", per_second(100))]), rule.keys().and(keys(10)));
        assert_eq!(drain(&rule, START, b"key"), 98, "the refusals did not charge the wide limit");
    }
}

#[test]
fn the_tightest_limit_is_told() {
    let limits = [("a", per_second(10)), ("b", per_second(5)), ("c", per_second(5))];
    for rule in [RuleLimiter::unkeyed(START, terms(limits)), keyed(limits, 10)] {
        let admitted = rule.charge(|| START, b"key", 2).expect("all is free");
        assert_eq!((admitted.tightest.limit, admitted.tightest.standing.remaining()), (1, 3));
        let peeked = rule.peek(START, b"key", 3).expect("three are left");
        assert_eq!((peeked.limit, peeked.standing.remaining()), (1, 3));
        assert_eq!(rule.peek(START, b"key", 4).expect_err("three are left").limit, 1);
    }
}

#[test]
fn keys_are_counted_apart_and_overrides_have_their_own_numbers() {
    let with_gold = terms([("limit", per_second(2))])
        .with_override([b"gold".as_slice()], [("limit", per_second(5))])
        .expect("valid");
    let rule = RuleLimiter::keyed(START, with_gold, keys(10).expect("not zero"));
    assert_eq!(drain(&rule, START, b"ann"), 2);
    assert_eq!(drain(&rule, START, b"bob"), 2);
    assert_eq!(drain(&rule, START, b"gold"), 5);
    let refused = rule.charge(|| START, b"gold", 1).expect_err("used up");
    assert_eq!((refused.override_index, refused.standing.quota()), (Some(0), per_second(5)));
}

#[test]
fn peek_makes_no_entry_and_agrees_with_charge() {
    let rule = keyed([("limit", per_second(1))], 1);
    assert!(rule.peek(START, b"ann", 1).is_ok());
    assert_eq!(stats(&rule).tracked, 0);
    assert_eq!(drain(&rule, START, b"ann"), 1);
    assert!(rule.peek(START, b"ann", 1).is_err());
    assert!(rule.peek(START, b"bob", 1).is_ok(), "counted without a cell");
    assert_eq!(drain(&rule, START, b"bob"), 1);
    assert!(rule.peek(START, b"bob", 1).is_err());
    assert!(rule.peek(START, b"cid", 1).is_ok(), "counted separately");
    assert_eq!(stats(&rule).tracked, 1);
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn keys_are_bounded_idle_ones_make_room_and_others_are_counted_in_the_overflow() {
    for strategy in STRATEGIES {
        let (rule, most) = (keyed([("limit", quota(strategy, 2, SECOND))], 100), at_once(strategy, 2));
        for key in 0..100_u32 {
            assert_eq!(drain(&rule, START, &key.to_be_bytes()), most, "{strategy:?}: key {key} has its own count");
        }
        for key in 100..1_000_u32 {
            assert_eq!(drain(&rule, START, &key.to_be_bytes()), most, "{strategy:?}: key {key} has its own count, too");
        }
        let full = stats(&rule);
        assert_eq!((full.tracked, full.capacity, full.evicted), (100, 100, 0), "{strategy:?}");
        assert_eq!(full.overflowed, 900 * (most + 1), "{strategy:?}: all admissions, and one refusal of each");

        // All keys are idle two periods later, and a few searches find a cell for each new key.
        let later = after(2 * SECOND);
        for key in 2_000..2_100_u32 {
            assert_eq!(drain(&rule, later, &key.to_be_bytes()), most, "{strategy:?}: key {key} gets a cell");
        }
        let swept = stats(&rule);
        assert_eq!((swept.tracked, swept.overflowed, swept.evicted), (100, full.overflowed, 100), "{strategy:?}");
    }
}

/// A search without a result shortens later searches only for a short time, not until there is an idle key.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn few_idle_keys_among_many_are_found_after_a_flood() {
    let rule = keyed([("limit", per_second(2))], 200);
    let flood = |now, from: u32| (from..from + 1_000).map(|key| drain(&rule, now, &key.to_be_bytes())).sum::<u64>();
    for key in 0..200_u32 {
        assert_eq!(drain(&rule, START, &key.to_be_bytes()), 2, "key {key} has its own count");
    }
    assert_eq!(flood(START, 10_000), 2_000, "each in the overflow");
    let later = after(Duration::from_secs(1));
    for key in 10..200_u32 {
        assert_eq!(drain(&rule, later, &key.to_be_bytes()), 2, "key {key} still has a cell");
    }
    let before = stats(&rule);
    for key in 2_000..2_010_u32 {
        assert_eq!(drain(&rule, later, &key.to_be_bytes()), 2, "key {key} gets an idle cell");
    }
    let swept = stats(&rule);
    assert_eq!((swept.evicted, swept.overflowed), (before.evicted + 10, before.overflowed));
    assert_eq!(flood(later, 20_000), 2_000, "each in the overflow again");
}

#[test]
fn a_key_that_is_not_idle_is_never_forgotten() {
    let rule = keyed(
        [
            ("limit", per_second(10)),
            ("hourly", { Quota::new(Strategy::FixedWindow, 10, Duration::from_secs(3600), None).expect("valid") }),
        ],
        1,
    );
    assert_eq!(drain(&rule, START, b"ann"), 10);
    // The bucket is full again, but the hour is not over.
    let later = after(Duration::from_secs(60));
    for key in 0..MANY {
        let _ = rule.charge(|| later, &key.to_be_bytes(), 1);
    }
    assert_eq!(stats(&rule).evicted, 0);
    assert_eq!(drain(&rule, later, b"ann"), 0);
}

/// Callers look into the future to find the time at which a request can proceed. A key that will be idle then is not
/// idle now.
#[test]
fn a_look_into_the_future_forgets_nothing() {
    for strategy in Strategy::ALL {
        let hourly = Quota::new(strategy, 2, Duration::from_secs(3600), None).expect("valid");
        let rule = keyed([("limit", hourly), ("wide", per_second(1_000))], 4);
        let (names, mut admitted) = (0..24_u32, [0; 24]);
        for round in 0..6 {
            for key in names.clone() {
                let now = after(Duration::from_millis(round));
                match rule.charge(|| now, &key.to_be_bytes(), 1) {
                    Ok(_) => admitted[key as usize] += 1,
                    Err(refused) => {
                        let wait = refused.retry_after().expect("it fits");
                        assert!(wait <= Duration::from_secs(7200), "{strategy:?}: {wait:?}");
                    }
                }
                let [sooner, later] = [1, 3].map(|hours| now.saturating_add(Duration::from_secs(hours * 3600)));
                let _ = rule.peek(sooner, &key.to_be_bytes(), 1);
                assert!(rule.peek(later, &key.to_be_bytes(), 1).is_ok(), "{strategy:?}");
            }
        }
        let first = admitted[0];
        assert!(admitted.iter().all(|count| *count == first && (1..=2).contains(count)), "{strategy:?}: {admitted:?}");
    }
}

#[test]
fn a_late_reader_of_the_clock_finds_a_forgotten_key_no_fuller_than_it_was() {
    let rule = keyed([("limit", per_second(10))], 2);
    assert_eq!(drain(&rule, START, b"ann"), 10);
    assert_eq!(drain(&rule, START, b"bob"), 10);
    // Both keys are idle again, and the table forgets them for two other keys, which are then refunded.
    let later = after(Duration::from_secs(1));
    let charged = [b"cid", b"dan"].map(|key| (key, rule.charge(|| later, key, 1).expect("there is room").charge));
    assert_eq!(stats(&rule).evicted, 2);
    for (key, charge) in charged {
        rule.refund(key, charge, || later);
    }
    // A thread uses a time that it read before the keys were forgotten.
    let late = drain(&rule, after(Duration::from_millis(900)), b"ann");
    assert_eq!(late + drain(&rule, later, b"ann"), 10, "{late} by the late thread");
    assert_eq!(stats(&rule).overflowed, 0);
}

/// The same situation for a key without a cell.
#[test]
fn a_late_reader_of_the_clock_finds_the_overflow_no_fuller_than_it_was() {
    let rule = keyed([("limit", per_second(10))], 1);
    assert_eq!(drain(&rule, START, b"ann"), 10);
    assert_eq!(drain(&rule, START, b"bob"), 10, "in the overflow");
    let later = after(Duration::from_secs(1));
    let _ = rule.charge(|| later, b"ann", 1);
    let bob = rule.charge(|| later, b"bob", 10).expect("idle again, and forgotten").charge;
    rule.refund(b"bob", bob, || later);
    let late = drain(&rule, after(Duration::from_millis(900)), b"bob");
    assert_eq!(late + drain(&rule, later, b"bob"), 10, "{late} by the late thread");
}

#[test]
fn keys_with_an_override_always_find_room() {
    let with_gold = terms([("limit", per_second(1))])
        .with_override([b"gold".as_slice()], [("limit", per_second(5))])
        .expect("valid");
    let rule = RuleLimiter::keyed(START, with_gold, keys(1).expect("not zero"));
    assert_eq!(drain(&rule, START, b"ann"), 1);
    assert_eq!(drain(&rule, START, b"bob"), 1, "in the overflow");
    assert!(rule.peek(START, b"gold", 5).is_ok());
    assert_eq!(drain(&rule, START, b"gold"), 5);
}

#[test]
fn a_cost_above_the_burst_takes_no_room() {
    let rule = keyed([("limit", per_second(5))], 1);
    let refused = rule.charge(|| START, b"ann", 6).expect_err("more than the burst");
    assert_eq!(refused.retry_after(), None);
    assert_eq!(stats(&rule).tracked, 0);
}

/// R4: state stays with the name of a limit.
#[test]
fn a_retune_keeps_what_each_key_and_each_limit_consumed() {
    let rule = keyed([("a", per_second(10)), ("b", per_second(100))], 10);
    for _ in 0..5 {
        assert!(rule.charge(|| START, b"ann", 1).is_ok());
    }
    let changed = [("new", per_second(1_000)), ("b", per_second(50)), ("a", per_second(20))];
    let rule = rule.retune(|| START, terms(changed), keys(10));
    // Limit a had five requests left. Limit b had 95 of 100 left, and its new burst is 50.
    assert_eq!(rule.peek(START, b"ann", 1).map(|tightest| tightest.standing.remaining()).ok(), Some(5));
    let rule = rule.retune(|| START, terms([("b", per_second(50))]), keys(10));
    assert_eq!(drain(&rule, START, b"ann"), 50);
    assert_eq!(drain(&rule, START, b"bob"), 50);
    let rule = rule.retune(|| START, terms([("b", per_second(50)), ("a", per_second(20))]), keys(10));
    assert_eq!(drain(&rule, START, b"ann"), 0);
}

#[test]
fn equal_terms_touch_nothing() {
    let limits = [("limit", Quota::new(Strategy::Gcra, 3, Duration::from_secs(1), Some(7)).expect("valid"))];
    for rule in [RuleLimiter::unkeyed(START, terms(limits)), keyed(limits, 10)] {
        assert!(rule.charge(|| START, b"key", 3).is_ok());
        let later = after(Duration::from_nanos(123_456_789));
        let before = rule.peek(later, b"key", 1).expect("four are free").standing;
        let retuned = rule.retune(|| later, terms(limits), rule.keys().and(keys(10)));
        let standing = retuned.peek(later, b"key", 1).expect("four are free").standing;
        assert_eq!((standing.remaining(), standing.reset_after()), (before.remaining(), before.reset_after()));
    }
}

/// Layers, and requests that wait, have a handle from before the change.
#[test]
fn an_old_handle_has_the_limits_that_were_added_and_not_those_that_were_removed() {
    let hourly = Quota::new(Strategy::FixedWindow, 5, Duration::from_hours(1), None).expect("valid");
    let (wide, soon) = (("wide", per_second(100)), after(Duration::from_secs(60)));
    for old in [RuleLimiter::unkeyed(START, terms([wide])), keyed([wide], 10)] {
        let max_keys = old.keys().and(keys(10));
        let new = old.retune(|| START, terms([("hourly", hourly), wide]), max_keys);
        let charge = old.charge(|| START, b"key", 1).expect("five are free").charge;
        assert_eq!(new.peek(START, b"key", 1).expect("four are free").standing.remaining(), 4);
        old.refund(b"key", charge, || START);
        assert_eq!(drain(&old, START, b"key"), 5);
        assert_eq!(old.peek(START, b"key", 1).expect_err("used up").limit, 0);
        assert_eq!(old.enqueue(START, b"key", 1, Some(soon)).expect_err("used up").limit, 0);
        assert_eq!(old.charge_ahead(|| START, b"key", 1, soon).expect_err("used up").limit, 0);
        assert!(old.opens(START, b"key", 1).expect("the next hour") > soon);
        old.credit(b"key", 2, || START);
        assert_eq!(drain(&new, START, b"key"), 2);
        old.charge_incurred(|| START, b"key", 5);
        let newest = new.retune(|| START, terms([wide]), max_keys);
        assert_eq!((drain(&old, START, b"key"), drain(&newest, START, b"key")), (90, 0));
    }
}

/// In a limiter, in a cell, in the overflow, and for a key with an override: after a used-up window or log, and after a
/// debt beyond the limit. Other keys stay as they are.
#[test]
fn a_reset_returns_one_key_to_its_full_credit() {
    for strategy in STRATEGIES {
        let own = quota(strategy, 6, Duration::from_secs(60));
        let all = terms([("own", own)]).with_override([b"override".as_slice()], [("own", own)]).expect("a known name");
        for (rule, keys) in [
            (RuleLimiter::unkeyed(START, terms([("own", own)])), &[b"".as_slice()][..]),
            (RuleLimiter::keyed(START, all, NonZeroUsize::MIN), &[b"cell".as_slice(), b"overflow", b"override"]),
        ] {
            // The second half of the next window, in which a sliding window still counts the previous one.
            for now in [START, after(Duration::from_secs(70))] {
                for &key in keys {
                    drain(&rule, now, key);
                    rule.charge_incurred(|| now, key, 100);
                }
            }
            let now = after(Duration::from_secs(70));
            for (index, &key) in keys.iter().enumerate() {
                assert!(keys[index..].iter().all(|key| drain(&rule, now, key) == 0), "{strategy:?}");
                rule.reset(key, || now);
                assert_eq!(drain(&rule, now, key), at_once(strategy, 6), "{strategy:?}, {key:?}");
            }
            rule.reset(b"unknown", || now);
        }
    }
}

/// A charge is given back to the limits that were charged, even if the limits of the handle are in another order.
#[test]
fn a_handle_gives_no_charge_back_to_other_limits() {
    let (one, two) = (("one", per_second(10)), ("two", per_second(20)));
    let first = RuleLimiter::unkeyed(START, terms([one, two]));
    let before = first.charge(|| START, b"", 4).expect("it is free").charge;
    let second = first.retune(|| START, terms([two]), None);
    second.refund(b"", before, || START);
    let after = second.charge(|| START, b"", 4).expect("it is free").charge;
    first.refund(b"", after, || START);
    assert_eq!(first.peek(START, b"", 1).expect("some are free").standing.remaining(), 16);
    let later = first.charge(|| START, b"", 4).expect("it is free").charge;
    let third = second.retune(|| START, terms([one, two]), None);
    first.refund(b"", later, || START);
    let left = third.retune(|| START, terms([two]), None).peek(START, b"", 1).expect("some are free");
    assert_eq!(left.standing.remaining(), 12, "an older handle does not find the limits any more");
}

#[test]
fn a_changed_override_keeps_what_its_keys_consumed() {
    let plain = terms([("limit", per_second(10))]);
    let gold = |requests| {
        let terms = terms([("limit", per_second(10))]);
        terms.with_override([b"gold".as_slice()], [("limit", per_second(requests))]).expect("valid")
    };
    let rule = RuleLimiter::keyed(START, gold(100), keys(10).expect("not zero"));
    assert_eq!(drain(&rule, START, b"gold"), 100);
    for changed in [gold(1_000), plain, gold(50)] {
        let rule = rule.retune(|| START, changed, keys(10));
        assert_eq!(drain(&rule, START, b"gold"), 0);
    }
}

#[test]
fn a_smaller_bound_forgets_nobody_who_is_not_idle() {
    let rule = keyed([("limit", per_second(1))], 4);
    for key in 0..4_u8 {
        assert_eq!(drain(&rule, START, &[key]), 1);
    }
    let rule = rule.retune(|| START, terms([("limit", per_second(1))]), keys(2));
    for key in 0..4_u8 {
        assert_eq!(drain(&rule, START, &[key]), 0);
    }
    assert_eq!(stats(&rule).capacity, 2);
    let later = after(Duration::from_secs(1));
    for key in 10..14_u8 {
        let _ = rule.charge(|| later, &[key], 1);
    }
    assert_eq!(stats(&rule).tracked, 2, "after keys were idle, the new bound applies");
}

#[test]
fn charges_are_given_back() {
    let limits = [("a", per_second(10)), ("b", per_second(5))];
    for rule in [RuleLimiter::unkeyed(START, terms(limits)), keyed(limits, 1)] {
        let admitted = rule.charge(|| START, b"key", 5).expect("all is free");
        assert_eq!(drain(&rule, START, b"key"), 0);
        rule.refund(b"key", admitted.charge, || START);
        assert_eq!(drain(&rule, START, b"key"), 5);
    }
    let rule = keyed(limits, 1);
    assert_eq!(drain(&rule, START, b"ann"), 5);
    let overflow = rule.charge(|| START, b"bob", 5).expect("the overflow is free");
    rule.refund(b"bob", overflow.charge, || START);
    assert_eq!(drain(&rule, START, b"cid"), 5, "the refund goes to the overflow");
}

/// A refund finds the right cell among many, because the charge stores the index of its cell.
#[test]
fn each_of_many_keys_is_given_back_its_own() {
    let rule = keyed([("limit", per_second(10))], MANY as usize);
    let keys = || (0..MANY).map(u32::to_le_bytes);
    for key in keys() {
        rule.charge(|| START, &key, 1).expect("it is new");
    }
    for key in keys() {
        let known = rule.charge(|| START, &key, 5).expect("there is room");
        rule.refund(&key, known.charge, || START);
    }
    for key in keys() {
        assert_eq!(drain(&rule, START, &key), 9, "{key:?}");
    }
}

#[test]
fn a_place_is_reserved_in_all_limits_or_in_none() {
    let paced = Quota::new(Strategy::LeakyBucket, 10, Duration::from_secs(1), Some(4)).expect("valid");
    let limits = [
        ("paced", paced),
        ("hourly", Quota::new(Strategy::FixedWindow, 3, Duration::from_hours(1), None).expect("valid")),
    ];
    let late = after(Duration::from_secs(10));
    for rule in [RuleLimiter::unkeyed(START, terms(limits)), keyed(limits, 10)] {
        let reserve = |latest| rule.charge_ahead(|| START, b"key", 1, latest);
        assert_eq!(reserve(START).map(|place| place.at).ok(), Some(START));
        let second = reserve(late).expect("there is a queue");
        assert_eq!((second.at, second.tightest.limit), (after(Duration::from_millis(100)), 0));
        assert_eq!(reserve(after(Duration::from_millis(199))).expect_err("the third turn is at 200 ms").limit, 0);
        let third = reserve(late).expect("there is a queue");
        assert_eq!(third.at, after(Duration::from_millis(200)));
        // The hourly limit refuses, so the reservation in the other limit is given back immediately.
        assert_eq!(reserve(late).expect_err("the limit is three an hour").limit, 1);
        rule.refund(b"key", third.charge, || START);
        assert_eq!(reserve(late).map(|place| place.at).ok(), Some(after(Duration::from_millis(200))));
    }
}

/// After a change of the limit, a request can pass earlier reservations. Until they count no more, the key is not idle.
#[test]
fn a_key_with_reservations_of_another_limit_is_not_idle() {
    let log = |requests, millis| {
        let quota = Quota::new(Strategy::SlidingWindowLog, requests, Duration::from_millis(millis), None);
        [("log", quota.expect("valid"))]
    };
    let rule = keyed(log(10, 10_000), 1);
    let goes = after(Duration::from_secs(10));
    rule.charge(|| START, b"ann", 10).expect("all is free");
    let ahead = rule.charge_ahead(|| START, b"ann", 5, goes).expect("it is free in 10 s");
    assert_eq!(ahead.at, goes);
    let rule = rule.retune(|| START, terms(log(100, 1)), keys(1));
    rule.charge(|| after(Duration::from_millis(1)), b"ann", 1).expect("it passes the reservation");
    let later = after(Duration::from_secs(1));
    assert_eq!(rule.peek(later, b"ann", 1).expect("free").standing.reset_after(), Duration::from_micros(9_001_000));
    rule.charge(|| later, b"bob", 1).expect("in the overflow");
    assert_eq!(stats(&rule).evicted, 0);
    // Five go at this time, and the entry behind them opens after them.
    assert_eq!(drain(&rule, goes, b"ann"), 94);
}

#[test]
fn a_place_to_come_is_given_back_to_a_log_with_other_limits() {
    let log = Quota::new(Strategy::SlidingWindowLog, 1, Duration::from_secs(1), None).expect("valid");
    let limits = [("wide", per_second(100)), ("log", log)];
    let late = after(Duration::from_secs(10));
    for rule in [RuleLimiter::unkeyed(START, terms(limits)), keyed(limits, 10)] {
        let reserve = || rule.charge_ahead(|| START, b"key", 1, late).expect("there is room in time");
        assert_eq!(reserve().at, START);
        let second = reserve();
        assert_eq!(second.at, after(Duration::from_secs(1)));
        rule.refund(b"key", second.charge, || START);
        assert_eq!(reserve().at, after(Duration::from_secs(1)), "not a second later");
    }
}

/// A change keeps the usage: a charge from before the change cannot be given back, and a later charge can.
#[test]
fn a_charge_of_several_limits_is_given_back_to_the_terms_that_it_was_made_under() {
    let limits = |narrow| [("wide", per_second(100)), ("narrow", per_second(narrow))];
    for rule in [RuleLimiter::unkeyed(START, terms(limits(2))), keyed(limits(2), 10)] {
        let before = rule.charge(|| START, b"key", 1).expect("two are free").charge;
        let rule = rule.retune(|| START, terms(limits(4)), rule.keys().and(keys(10)));
        let after = rule.charge(|| START, b"key", 1).expect("one is free").charge;
        rule.refund(b"key", before, || START);
        assert_eq!(drain(&rule, START, b"key"), 0);
        rule.refund(b"key", after, || START);
        assert_eq!(drain(&rule, START, b"key"), 1);
    }
}

#[test]
fn several_rules_are_charged_or_none() {
    let (shared, by_key) =
        (RuleLimiter::unkeyed(START, terms([("limit", per_second(10))])), { keyed([("limit", per_second(2))], 10) });
    let demands: [(_, &[u8]); 2] = [(&shared, b""), (&by_key, b"ann")];
    let demands = demands.map(|(rule, key)| Demand { rule, key, cost: 1, latest: None });
    let mut charged = Vec::new();
    for _ in 0..2 {
        charge_rules(demands.into_iter(), || START, &mut charged).expect("both are free");
        assert_eq!(charged.len(), 2);
    }
    for _ in 0..100 {
        assert_eq!(charge_rules(demands.into_iter(), || START, &mut charged).expect_err("the key is used up").index, 1);
        assert!(charged.is_empty());
    }
    assert_eq!(drain(&shared, START, &[]), 8);
}

#[test]
fn one_rule_in_two_demands_is_charged_twice_or_not_at_all() {
    // The check before the charges does not include the first charge. So the second charge is refused, and the first
    // charge is given back.
    let rule = RuleLimiter::unkeyed(START, terms([("limit", per_second(1))]));
    let demands = [Demand { rule: &rule, key: &[], cost: 1, latest: None }; 2];
    assert_eq!(charge_rules(demands.into_iter(), || START, &mut Vec::new()).expect_err("one is free").index, 1);
    assert_eq!(drain(&rule, START, &[]), 1);
}

#[test]
fn each_of_several_rules_is_charged_its_own_cost() {
    let rules = [10, 10].map(|requests| RuleLimiter::unkeyed(START, terms([("limit", per_second(requests))])));
    let [one, other] = &rules;
    let demands = [(one, 3), (other, 4)].map(|(rule, cost)| Demand { rule, key: &[], cost, latest: None });
    charge_rules(demands.into_iter(), || START, &mut Vec::new()).expect("both are free");
    assert_eq!(rules.each_ref().map(|rule| drain(rule, START, &[])), [7, 6]);
}

#[test]
fn a_rule_that_may_admit_later_is_charged_for_its_moment_or_nothing_is() {
    let (now_only, patient) = (
        RuleLimiter::unkeyed(START, terms([("limit", per_second(10))])),
        RuleLimiter::unkeyed(START, terms([("limit", per_second(1))])),
    );
    let ask = |latest| {
        let demands = [(&now_only, None), (&patient, Some(latest))];
        let demands = demands.map(|(rule, latest)| Demand { rule, key: &[], cost: 1, latest });
        let mut charged = Vec::new();
        let outcome = charge_rules(demands.into_iter(), || START, &mut charged).map_err(|refused| refused.index);
        outcome.map(|()| charged.iter().map(|one| one.at).collect::<Vec<_>>())
    };
    let second = after(Duration::from_secs(1));
    assert_eq!(ask(second), Ok(vec![None, None]));
    assert_eq!(ask(second), Ok(vec![None, Some(second)]));
    // The first rule is charged before the second one refuses, and the charge is given back.
    assert_eq!(ask(second), Err(1));
    assert_eq!(drain(&now_only, START, &[]), 8);
}

#[test]
fn a_clock_that_was_years_ahead_locks_no_key_out() {
    let rule = keyed([("limit", per_second(1))], 1);
    let ahead = after(Duration::from_hours(24 * 3650));
    for key in [b"ann", b"bob", b"cid"] {
        let _ = rule.charge(|| ahead, key, 1);
    }
    for key in [b"ann", b"bob"] {
        assert_eq!(drain(&rule, START, key), 0, "used requests are not free again");
    }
    let later = after(Duration::from_secs(1));
    for key in [b"ann", b"bob"] {
        assert_eq!(drain(&rule, later, key), 1, "time continues from there");
    }
}

#[test]
fn invalid_terms_say_what_to_fix() {
    let one = || ("a", per_second(1));
    assert_eq!(Terms::new::<&str>([]), Err(InvalidTerms::NoLimit));
    assert_eq!(Terms::new([one(), one()]), Err(InvalidTerms::NameTwice("a".into())));
    assert_eq!(Terms::new((0..9).map(|n| (n.to_string(), per_second(1)))), Err(InvalidTerms::TooManyLimits));
    let over = |keys: &[&'static [u8]], name| terms([one()]).with_override(keys.to_vec(), [(name, per_second(2))]);
    assert_eq!(over(&[b"k"], "b"), Err(InvalidTerms::UnknownName("b".into())));
    assert_eq!(over(&[b"k", b"k"], "a"), Err(InvalidTerms::KeyTwice));
    assert!(over(&[b"k"], "a").is_ok());
}

/// A key without a cell waits as long as a key with a cell.
#[test]
fn the_turn_of_a_key_in_the_overflow_is_predicted() {
    for strategy in Strategy::ALL {
        let quota = Quota::new(strategy, 4, Duration::from_secs(3_600), None).expect("valid");
        let rule = keyed([("limit", quota)], 1);
        for (key, place) in [(b"cell".as_slice(), "cell"), (b"overflow", "overflow")] {
            drain(&rule, START, key);
            let refused = rule.peek(START, key, 1).expect_err("it is used up");
            let opens = rule.opens(START, key, 1).expect("some time").duration_since(START);
            assert_eq!(Some(opens), refused.retry_after(), "{strategy:?}, {place}");
            let latest = START.saturating_add(opens).saturating_sub(Duration::from_secs(1));
            assert!(rule.enqueue(START, key, 1, Some(latest)).is_err(), "{strategy:?}, {place}: too long");
        }
    }
}

/// With and without a key, in the overflow, and with an override.
fn everywhere(limits: [(&'static str, Quota); 2]) -> [(RuleLimiter, &'static str); 4] {
    let full = keyed(limits, 1);
    full.charge(|| START, b"another", 1).expect("it is free");
    let small =
        limits.map(|(name, quota)| (name, Quota::new(quota.strategy(), 1, quota.period(), None).expect("valid")));
    let overridden = terms(small).with_override([b"key".as_slice()], limits).expect("valid");
    let overridden = RuleLimiter::keyed(START, overridden, keys(9).expect("not zero"));
    let unkeyed = RuleLimiter::unkeyed(START, terms(limits));
    [(unkeyed, "no key"), (keyed(limits, 9), "cell"), (full, "overflow"), (overridden, "override")]
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_refund_wakes_those_who_wait_and_brings_their_turns_forward() {
    let paced = Quota::new(Strategy::Gcra, 1, Duration::from_secs(10), None).expect("valid");
    let latest = Some(after(Duration::from_secs(15)));
    for (rule, place) in everywhere([("paced", paced), ("wide", per_second(100))]) {
        let charge = rule.charge(|| START, b"key", 1).expect("it is free").charge;
        let first = rule.enqueue(START, b"key", 1, latest).expect("its turn is after 10 s");
        assert!(rule.enqueue(START, b"key", 1, latest).is_err(), "{place}: its turn is after 20 s");
        let woken = Arc::new(Woken::default());
        assert_eq!(first.position(START, &Waker::from(Arc::clone(&woken))), Position::Head, "{place}");
        rule.refund(b"key", charge, || START);
        assert!(woken.0.load(Ordering::Relaxed), "{place}");
        assert!(rule.enqueue(START, b"key", 1, latest).is_ok(), "{place}: its turn is after 10 s");
    }
}

/// A small limit does not reduce the charge of a large one, and no limit owes more than flows in during twelve hours.
#[test]
fn each_limit_is_charged_an_incurred_cost_for_itself() {
    const HALF_A_DAY: Duration = Duration::from_hours(12);
    let quota = |requests, period, burst| {
        Quota::new(Strategy::TokenBucketWithDebt, requests, period, Some(burst)).expect("valid")
    };
    let second = ("second", quota(10, Duration::from_secs(1), 10));
    let day = ("day", quota(1_000_000, 2 * HALF_A_DAY, 1_000_000));
    for limits in [[second, day], [day, second]] {
        for (rule, place) in everywhere(limits) {
            rule.charge_incurred(|| START, b"key", 500_000);
            let refused = rule.charge(|| START, b"key", 1).expect_err("the small limit owes the most");
            assert_eq!(limits[refused.limit].0, "second", "{place}");
            let forgiven = refused.retry_after().expect("it fits the burst").abs_diff(HALF_A_DAY);
            assert!(forgiven <= Duration::from_secs(1), "{place}: {refused:?}");
            // Without the small limit, the large limit admits what its cost left.
            rule.charge_incurred(|| START, b"key", 400_000);
            let only_day = rule.retune(|| START, terms([day]), rule.keys().and(keys(9)));
            assert_eq!(drain(&only_day, START, b"key"), 100_000, "{place}");
        }
    }
}

/// With every strategy, an incurred cost can use up a limit, and a later request is refused only for a time.
#[test]
fn an_incurred_cost_uses_up_limits_of_all_strategies() {
    for strategy in Strategy::ALL {
        let quota = |requests, burst| Quota::new(strategy, requests, Duration::from_secs(60), burst).expect("valid");
        let debt = (strategy == Strategy::TokenBucketWithDebt).then_some(3);
        let limits = [("small", quota(4, debt)), ("large", quota(40, debt))];
        for (rule, place) in everywhere(limits) {
            rule.charge_incurred(|| START, b"key", 0);
            rule.charge_incurred(|| START, b"key", 30);
            for _ in 0..3 {
                rule.charge_incurred(|| START, b"key", 1_000_000);
                let refused = rule.charge(|| START, b"key", 1).expect_err("used up");
                assert!(refused.retry_after().is_some(), "{strategy:?}, {place}");
            }
            let idle = after(2 * Duration::from_hours(24) * 366);
            assert!(rule.charge(|| idle, b"key", 1).is_ok(), "{strategy:?}, {place}");
        }
    }
}

/// A reservation in a later window, or of several requests in a log, leaves a trace when it is given back.
#[test]
fn a_cost_that_a_later_limit_can_never_admit_reserves_nothing() {
    for strategy in [Strategy::FixedWindow, Strategy::SlidingWindowLog] {
        let minute = Duration::from_secs(60);
        let wide = Quota::new(strategy, 100, minute, None).expect("valid");
        for (rule, place) in everywhere([("wide", wide), ("narrow", per_second(10))]) {
            for second in 0..30 {
                rule.charge(|| after(Duration::from_secs(second)), b"key", 2).expect("there is room");
            }
            let now = after(Duration::from_secs(30));
            let refused = rule.charge_ahead(|| now, b"key", 70, after(60 * minute)).expect_err("too much");
            assert_eq!((refused.limit, refused.retry_after()), (1, None), "{strategy:?}, {place}");
            assert!(rule.charge(|| now, b"key", 2).is_ok(), "{strategy:?}, {place}: nothing was charged");
        }
    }
}

/// The same for two rules.
#[test]
fn a_cost_that_a_later_rule_can_never_admit_reserves_nothing() {
    let minute = Duration::from_secs(60);
    let wide = Quota::new(Strategy::FixedWindow, 100, minute, None).expect("valid");
    let [wide, narrow] = [wide, per_second(10)].map(|quota| RuleLimiter::unkeyed(START, terms([("limit", quota)])));
    wide.charge(|| START, b"", 60).expect("there is room");
    let latest = Some(after(60 * minute));
    let demands = [&wide, &narrow].map(|rule| Demand { rule, key: b"", cost: 70, latest });
    let refused = charge_rules(demands.into_iter(), || START, &mut Vec::new()).expect_err("too much");
    assert_eq!((refused.index, refused.refused.retry_after()), (1, None));
    assert!(wide.charge(|| START, b"", 40).is_ok(), "nothing was charged");
}

#[test]
fn a_latest_before_now_counts_as_now() {
    for strategy in STRATEGIES {
        let quota = quota(strategy, 2, Duration::from_secs(1));
        let limiter = Limiter::new(START, quota);
        let now = after(Duration::from_secs(1));
        assert_eq!(limiter.reserve(now, 1, START).expect("there is room").at, now, "{strategy:?}");
        for (rule, place) in everywhere([("one", quota), ("other", quota)]) {
            for _ in 0..at_once(strategy, 2) {
                let charged = rule.charge_ahead(|| now, b"key", 1, START).expect("there is room");
                assert_eq!(charged.at, now, "{strategy:?}, {place}");
            }
            assert!(rule.charge_ahead(|| now, b"key", 1, START).is_err(), "{strategy:?}, {place}");
        }
    }
}
