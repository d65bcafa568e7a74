//! Every interleaving of a few threads on a table of keys, explored by loom: `RUSTFLAGS="--cfg loom" cargo test -p
//! weir-core --release --test loom_keyed`
#![cfg(loom)]

mod suite;

use loom::thread;
use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};

use self::suite::{SECOND, at_once, drain_key as drain, keys, model, model_each, quota, terms};

/// The start of a window.
const NOW: Time = Time::from_nanos(1_000_000_000_000);

/// A time at which all requests charged at `NOW` are free again, with every strategy.
const LATER: Time = Time::from_nanos(1_002_000_000_000);

fn keyed(quota: Quota, max_keys: usize) -> RuleLimiter {
    RuleLimiter::keyed(NOW, terms(quota), keys(max_keys))
}

fn take(rule: &RuleLimiter, now: Time, key: &[u8]) -> u64 {
    u64::from(rule.charge(|| now, key, 1).is_ok())
}

fn tracked(rule: &RuleLimiter) -> u64 {
    rule.keys().expect("keyed").tracked
}

#[test]
fn a_new_key_comes_in_once() {
    model_each(3, |strategy| {
        let rule = keyed(quota(strategy, 1, SECOND), 2);
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, NOW, b"key"));
        let here = take(&rule, NOW, b"key");
        assert_eq!(here + thread.join().expect("no panic"), 1, "{strategy:?}");
        assert_eq!(tracked(&rule), 1);
    });
}

#[test]
fn two_keys_do_not_share_the_last_room() {
    model(3, || {
        let rule = keyed(quota(Strategy::TokenBucket, 1, SECOND), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, NOW, b"ann"));
        assert_eq!(take(&rule, NOW, b"bob"), 1, "in the cell or in the overflow");
        assert_eq!(thread.join().expect("no panic"), 1);
        let keys = rule.keys().expect("keyed");
        assert_eq!((keys.tracked, keys.overflowed), (1, 1));
    });
}

/// Each region has its own lock, and all regions share one capacity. The keys' regions are random, but some of these
/// keys are in different regions.
#[test]
fn two_keys_of_different_regions_do_not_share_the_last_room() {
    for key in [b"bob", b"cid", b"dan", b"eve", b"fay"] {
        model(3, || {
            let rule = keyed(quota(Strategy::TokenBucket, 1, SECOND), 4);
            for key in [b"one", b"two", b"six"] {
                assert_eq!(take(&rule, NOW, key), 1);
            }
            let other = rule.clone();
            let thread = thread::spawn(move || take(&other, NOW, b"ann"));
            assert_eq!(take(&rule, NOW, key), 1, "in the cell or in the overflow");
            assert_eq!(thread.join().expect("no panic"), 1);
            let keys = rule.keys().expect("keyed");
            assert_eq!((keys.tracked, keys.overflowed), (4, 1));
        });
    }
}

/// An idle key is charged while another key takes its cell. The charge stays with the key in the cell or in the
/// overflow, and is not forgotten.
#[test]
fn a_charge_is_not_forgotten_with_the_key() {
    model_each(3, |strategy| {
        let rule = keyed(quota(strategy, 1, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"ann"), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, LATER, b"bob"));
        let ann = take(&rule, LATER, b"ann");
        let bob = thread.join().expect("no panic");
        // One of the keys has the cell, the other is in the overflow, and both have used up their limits.
        let rest = drain(&rule, LATER, b"ann") + drain(&rule, LATER, b"bob");
        assert_eq!((ann, bob, rest), (1, 1, 0), "{strategy:?}");
        assert_eq!(tracked(&rule), 1);
    });
}

/// The limit would admit both keys in one cell. Charged words must not count as idle, and no charge may stay in another
/// key's words.
#[test]
fn a_charge_stays_with_its_key_where_another_would_fit_next_to_it() {
    for strategy in [Strategy::TokenBucket, Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog] {
        model(3, move || {
            let rule = keyed(quota(strategy, 2, SECOND), 1);
            assert_eq!(take(&rule, NOW, b"ann"), 1);
            let other = rule.clone();
            let thread = thread::spawn(move || take(&other, LATER, b"bob"));
            let ann = take(&rule, LATER, b"ann");
            assert_eq!((ann, thread.join().expect("no panic")), (1, 1), "{strategy:?}");
            // Each key gets two requests, in the cell or in the overflow.
            let (ann, bob) = (drain(&rule, LATER, b"ann"), drain(&rule, LATER, b"bob"));
            // A log takes back only the latest charge, so ann's wrong charge in bob's cell can stay.
            let most = if strategy == Strategy::SlidingWindowLog { bob.min(1) } else { 1 };
            assert_eq!((ann, bob), (1, most), "{strategy:?}");
        });
    }
}

/// Several limits: the key is removed from its cell after the first limit was charged.
#[test]
fn no_limit_forgets_a_charge_with_the_key() {
    model(2, || {
        let quota = |strategy| quota(strategy, 1, SECOND);
        let limits = [("a", quota(Strategy::TokenBucket)), ("b", quota(Strategy::SlidingWindowCounter))];
        let rule = RuleLimiter::keyed(NOW, Terms::new(limits).expect("valid"), keys(1));
        assert_eq!(take(&rule, NOW, b"ann"), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, LATER, b"bob"));
        let ann = take(&rule, LATER, b"ann");
        let bob = thread.join().expect("no panic");
        let rest = drain(&rule, LATER, b"ann") + drain(&rule, LATER, b"bob");
        assert!(ann + bob >= 1 && ann + bob + rest <= 2, "{ann} + {bob} + {rest}");
    });
}

/// Two keys arrive when one cell is idle, and the idle key is charged.
#[test]
fn one_cell_is_taken_once() {
    model(2, || {
        let rule = keyed(quota(Strategy::TokenBucket, 1, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"ann"), 1);
        let newcomers = [b"bob", b"cid"].map(|key| {
            let rule = rule.clone();
            thread::spawn(move || take(&rule, LATER, key))
        });
        let ann = take(&rule, LATER, b"ann");
        let newcomers: u64 = newcomers.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        let rest: u64 = [b"ann", b"bob", b"cid", b"dan"].map(|key| drain(&rule, LATER, key)).iter().sum();
        // One key is in the cell, and three keys are in the overflow.
        assert_eq!(ann + newcomers + rest, 4, "{ann} + {newcomers} + {rest}");
        assert_eq!(tracked(&rule), 1);
    });
}

/// A refund of a forgotten key must not go to the key that took its cell.
#[test]
fn a_refund_finds_its_own_key_or_nothing() {
    model_each(3, |strategy| {
        let rule = keyed(quota(strategy, 1, SECOND), 1);
        let charge = rule.charge(|| NOW, b"ann", 1).expect("all is free").charge;
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, LATER, b"bob"));
        rule.refund(b"ann", charge, || LATER);
        let bob = thread.join().expect("no panic");
        let rest: u64 = [b"bob", b"cid"].map(|key| drain(&rule, LATER, key)).iter().sum();
        // Each key is in the cell or in the overflow.
        assert_eq!((bob, rest), (1, 1), "{strategy:?}");
    });
}

/// A credit of a forgotten key must not go to the key that took its cell.
#[test]
fn a_credit_finds_its_own_key_or_nothing() {
    model_each(3, |strategy| {
        let rule = keyed(quota(strategy, 1, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"ann"), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, LATER, b"bob"));
        rule.credit(b"ann", 1, || LATER);
        let bob = thread.join().expect("no panic");
        let rest: u64 = [b"bob", b"cid"].map(|key| drain(&rule, LATER, key)).iter().sum();
        // Each key is in the cell or in the overflow.
        assert_eq!((bob, rest), (1, 1), "{strategy:?}");
    });
}

#[test]
fn a_retune_loses_no_charge_and_gives_no_burst() {
    model_each(2, |strategy| {
        let rule = keyed(quota(strategy, 2, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"key"), 1);
        // A window keeps its count. A bucket keeps its remaining tokens, and can be overdrawn by a larger debt.
        let most = match strategy {
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 4,
            Strategy::TokenBucketWithDebt => 3,
            _ => at_once(strategy, 2),
        };
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, NOW, b"key"));
        let retuned = rule.retune(|| NOW, terms(quota(strategy, 4, SECOND)), Some(keys(1)));
        let there = thread.join().expect("no panic");
        assert_eq!(1 + there + drain(&retuned, NOW, b"key"), most, "{strategy:?}");
        assert_eq!(drain(&rule, NOW, b"key"), 0, "{strategy:?}: the old handle reaches the same words");
        assert_eq!(tracked(&retuned), 1);
    });
}

/// The key enters once, under the old terms or under the new terms.
#[test]
fn a_key_that_comes_in_during_a_retune_comes_in_once() {
    model(3, || {
        let rule = keyed(quota(Strategy::TokenBucket, 1, SECOND), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || drain(&other, NOW, b"key"));
        let rule = rule.retune(|| NOW, terms(quota(Strategy::TokenBucket, 2, SECOND)), Some(keys(1)));
        let there = thread.join().expect("no panic");
        let all = there + drain(&rule, NOW, b"key");
        // The old terms leave one request free, the new terms two.
        assert!(all == 1 || all == 2, "{all}");
        assert_eq!((tracked(&rule), rule.keys().expect("keyed").overflowed), (1, 0));
    });
}

/// A key is forgotten, and another key takes its cell, while both move to the successor.
#[test]
fn a_key_that_is_forgotten_during_a_retune_takes_no_charge_with_it() {
    model(2, || {
        let rule = keyed(quota(Strategy::TokenBucket, 1, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"ann"), 1);
        let (one, other) = (rule.clone(), rule.clone());
        let bob = thread::spawn(move || take(&one, LATER, b"bob"));
        let ann = thread::spawn(move || take(&other, LATER, b"ann"));
        // A key that enters under the new terms gets one request, too.
        let rule = rule.retune(|| LATER, terms(quota(Strategy::TokenBucket, 1, SECOND)), Some(keys(2)));
        let (ann, bob) = (ann.join().expect("no panic"), bob.join().expect("no panic"));
        let rest = [b"ann", b"bob"].map(|key| drain(&rule, LATER, key));
        assert_eq!((ann + rest[0], bob + rest[1]), (1, 1), "{ann} and {bob}, then {rest:?}");
        assert!(tracked(&rule) <= 2);
    });
}

/// A key without a cell is charged while it moves to the successor.
#[test]
fn the_overflow_goes_through_a_retune() {
    model_each(2, |strategy| {
        let rule = keyed(quota(strategy, 2, SECOND), 1);
        assert_eq!((take(&rule, NOW, b"ann"), take(&rule, NOW, b"bob")), (1, 1));
        let (other, before) = (rule.clone(), at_once(strategy, 2));
        let thread = thread::spawn(move || take(&other, NOW, b"bob"));
        let retuned = rule.retune(|| NOW, terms(quota(strategy, 4, SECOND)), Some(keys(1)));
        let there = thread.join().expect("no panic");
        let all = 1 + there + drain(&retuned, NOW, b"bob");
        match strategy {
            Strategy::FixedWindow | Strategy::SlidingWindowCounter => {
                assert_eq!(all, 4, "{strategy:?}: a higher limit helps")
            }
            // The words of a key in the overflow do not contain the requests that a full log omitted.
            Strategy::SlidingWindowLog => assert!(all == 4 || all == 2, "{all}"),
            _ => {
                let more_debt = quota(strategy, 4, SECOND).debt() - quota(strategy, 2, SECOND).debt();
                assert_eq!(all, before + more_debt, "{strategy:?}: a bucket keeps its tokens");
            }
        }
        assert_eq!(drain(&rule, NOW, b"bob"), 0, "{strategy:?}: the old handle reaches the same words");
        assert_eq!(tracked(&retuned), 1);
    });
}

/// A key without a cell gets an override while it and another key are charged.
#[test]
fn an_override_takes_the_count_out_of_the_overflow() {
    model(2, || {
        let plain = || terms(quota(Strategy::TokenBucket, 2, SECOND));
        let gold = plain().with_override([b"bob".as_slice()], [("limit", quota(Strategy::TokenBucket, 4, SECOND))]);
        let rule = keyed(quota(Strategy::TokenBucket, 2, SECOND), 1);
        assert_eq!((take(&rule, NOW, b"ann"), take(&rule, NOW, b"bob")), (1, 1));
        let other = rule.clone();
        let thread = thread::spawn(move || (take(&other, NOW, b"bob"), take(&other, NOW, b"cid")));
        let rule = rule.retune(|| NOW, gold.expect("valid"), Some(keys(1)));
        let (bob, cid) = thread.join().expect("no panic");
        assert_eq!(cid, 1);
        assert_eq!(bob + drain(&rule, NOW, b"bob"), 1, "{bob}");
    });
}

/// A key in the overflow is charged and refunded by two threads.
#[test]
fn keys_in_the_overflow_are_charged_and_refunded_one_after_the_other() {
    model(3, || {
        let rule = keyed(quota(Strategy::TokenBucket, 1, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"ann"), 1);
        let charge = rule.charge(|| NOW, b"bob", 1).expect("all is free").charge;
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, NOW, b"bob"));
        rule.refund(b"bob", charge, || NOW);
        let there = thread.join().expect("no panic");
        assert_eq!(there + drain(&rule, NOW, b"bob"), 1, "{there}");
        assert_eq!(tracked(&rule), 1);
    });
}

/// The first handle decides while the second retune leads it to the newest table: for a key with a cell, and for a key
/// without one.
#[test]
fn a_handle_from_before_two_retunes_loses_no_charge() {
    for key in [b"ann", b"bob"] {
        model(2, move || {
            let limit = |requests| terms(quota(Strategy::FixedWindow, requests, SECOND));
            let first = keyed(quota(Strategy::FixedWindow, 3, SECOND), 1);
            assert_eq!((take(&first, NOW, b"ann"), take(&first, NOW, b"bob")), (1, 1));
            let second = first.retune(|| NOW, limit(4), Some(keys(1)));
            let decider = first.clone();
            let thread = thread::spawn(move || take(&decider, NOW, key));
            let newest = second.retune(|| NOW, limit(5), Some(keys(1)));
            drop(second);
            let here = take(&newest, NOW, key);
            assert_eq!(here + thread.join().expect("no panic"), 2);
            assert_eq!(drain(&first, NOW, key), 2, "the first handle reaches the newest words");
            assert_eq!((drain(&newest, NOW, key), tracked(&newest)), (0, 1));
        });
    }
}

/// A key gets an override and loses the override again, while it is charged.
#[test]
fn an_override_takes_the_count_with_it() {
    model(2, || {
        let plain = || terms(quota(Strategy::TokenBucket, 2, SECOND));
        let gold = plain().with_override([b"key".as_slice()], [("limit", quota(Strategy::TokenBucket, 4, SECOND))]);
        let rule = keyed(quota(Strategy::TokenBucket, 2, SECOND), 1);
        assert_eq!(take(&rule, NOW, b"key"), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || take(&other, NOW, b"key"));
        let rule = rule.retune(|| NOW, gold.expect("valid"), Some(keys(1)));
        let rule = rule.retune(|| NOW, plain(), Some(keys(1)));
        let there = thread.join().expect("no panic");
        assert!(there + drain(&rule, NOW, b"key") <= 1, "{there}");
        assert_eq!(tracked(&rule), 1);
    });
}
