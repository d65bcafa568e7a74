//! Every interleaving of a few threads, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-core --release --test loom`
#![cfg(loom)]

use std::num::NonZeroUsize;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use weir_core::{Limiter, Quota, RuleLimiter, Strategy, Terms, Time, check_all};

/// So many a nanosecond-clocked second, with this burst.
fn bucket(requests: u64, burst: u64) -> Quota {
    Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), Some(burst)).expect("valid")
}

const NOW: Time = Time::from_nanos(1_000_000_000_000);

/// Charges one at a time until refused.
fn drain(limiter: &Limiter, now: Time) -> u64 {
    (0..100).take_while(|_| limiter.check(now, 1).is_ok()).count() as u64
}

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

#[test]
fn the_last_place_is_given_once() {
    loom::model(|| {
        for strategy in [Strategy::FixedWindow, Strategy::TokenBucket, Strategy::Gcra] {
            let quota = Quota::new(strategy, 1, Duration::from_secs(1), None).expect("valid");
            let limiter = Limiter::new(NOW, quota);
            let other = limiter.clone();
            let thread = thread::spawn(move || other.check(NOW, 1).is_ok());
            let here = limiter.check(NOW, 1).is_ok();
            assert!(here ^ thread.join().expect("no panic"), "{strategy:?}");
        }
    });
}

#[test]
fn three_threads_share_two_places() {
    model(3, || {
        let limiter = Limiter::new(NOW, bucket(2, 2));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let limiter = limiter.clone();
                thread::spawn(move || u64::from(limiter.check(NOW, 1).is_ok()))
            })
            .collect();
        let here = u64::from(limiter.check(NOW, 1).is_ok());
        let there: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert_eq!(here + there, 2);
    });
}

#[test]
fn threads_that_read_the_clock_in_any_order_share_what_the_latest_gives() {
    model(3, || {
        // One a second: at NOW + 1 s two in all.
        let limiter = Limiter::new(NOW, bucket(1, 1));
        let other = limiter.clone();
        let later = NOW.saturating_add(Duration::from_secs(1));
        let thread = thread::spawn(move || u64::from(other.check(later, 1).is_ok()));
        let here = drain(&limiter, NOW);
        let there = thread.join().expect("no panic");
        assert_eq!(there, 1, "a place was free at the later time");
        assert!(here <= 1);
        assert_eq!(drain(&limiter, later), 0);
    });
}

#[test]
fn a_retune_loses_no_charge_and_gives_none() {
    model(3, || {
        let limiter = Limiter::new(NOW, bucket(2, 2));
        let decider = limiter.clone();
        let thread =
            thread::spawn(move || u64::from(decider.check(NOW, 1).is_ok()) + u64::from(decider.check(NOW, 1).is_ok()));
        let retuned = limiter.retune(|| NOW, bucket(4, 4));
        let there = thread.join().expect("no panic");
        assert_eq!(there + drain(&retuned, NOW), 2, "two were free, before and after");
        assert_eq!(drain(&limiter, NOW), 0, "the old handle reaches the same state");
        let later = NOW.saturating_add(Duration::from_secs(1));
        assert_eq!(drain(&limiter, later), 4, "at the new rate");
    });
}

#[test]
fn two_retunes_at_once_both_come_into_force() {
    model(3, || {
        let limiter = Limiter::new(NOW, bucket(2, 2));
        let (one, other) = (limiter.clone(), limiter.clone());
        let retuner = thread::spawn(move || one.retune(|| NOW, bucket(4, 4)).quota());
        let decider = thread::spawn(move || u64::from(other.check(NOW, 1).is_ok()));
        let _ = limiter.retune(|| NOW, bucket(8, 8));
        let seen = retuner.join().expect("no panic");
        let there = decider.join().expect("no panic");
        assert!(seen == bucket(4, 4) || seen == bucket(8, 8));
        assert!(limiter.quota() == bucket(4, 4) || limiter.quota() == bucket(8, 8));
        // From 8 to 4 the share that is free counts: 2 of 8 are 1 of 4.
        let most = if limiter.quota() == bucket(8, 8) { 2 } else { 2 - there };
        let left = drain(&limiter, NOW);
        assert!(there == 1 && there + left <= 2 && left <= most, "{there} + {left}");
    });
}

#[test]
fn equal_retunes_touch_nothing() {
    model(3, || {
        let limiter = Limiter::new(NOW, bucket(2, 2));
        let other = limiter.clone();
        let thread = thread::spawn(move || u64::from(other.check(NOW, 1).is_ok()));
        let retuned = limiter.retune(|| NOW, bucket(2, 2));
        assert_eq!(thread.join().expect("no panic") + drain(&retuned, NOW), 2);
    });
}

#[test]
fn a_refund_while_time_goes_on_gives_nothing_that_was_lost() {
    model(3, || {
        let second = 1_000_000_000;
        let clock = Arc::new(AtomicU64::new(NOW.as_nanos()));
        let read = |clock: &AtomicU64| Time::from_nanos(clock.load(Ordering::Acquire));
        let limiter = Limiter::new(NOW, bucket(1, 1));
        let charged = limiter.check(NOW, 1).expect("all is free").charge;
        let (other, ticking) = (limiter.clone(), Arc::clone(&clock));
        // A second later the bucket is full again, whether the charge is given back or not.
        let thread = thread::spawn(move || {
            ticking.store(NOW.as_nanos() + second, Ordering::Release);
            u64::from(other.check(read(&ticking), 1).is_ok())
        });
        limiter.refund(charged, || read(&clock));
        let there = thread.join().expect("no panic");
        assert_eq!(there + drain(&limiter, read(&clock)), 1);
    });
}

#[test]
fn a_refund_and_a_retune_do_not_add_up() {
    model(3, || {
        let limiter = Limiter::new(NOW, bucket(2, 2));
        let charged = limiter.check(NOW, 2).expect("all is free").charge;
        let other = limiter.clone();
        let thread = thread::spawn(move || drop(other.retune(|| NOW, bucket(4, 4))));
        limiter.refund(charged, || NOW);
        thread.join().expect("no panic");
        let left = drain(&limiter, NOW);
        assert!(left == 0 || left == 2, "given back before the retune, or not at all: {left}");
    });
}

#[test]
fn all_limits_are_charged_or_none() {
    model(3, || {
        let limiters = [Limiter::new(NOW, bucket(3, 3)), Limiter::new(NOW, bucket(1, 1))];
        let others = limiters.clone();
        let thread = thread::spawn(move || u64::from(check_all(&others, || NOW, 1).is_ok()));
        let here = u64::from(check_all(&limiters, || NOW, 1).is_ok());
        let admitted = here + thread.join().expect("no panic");
        assert_eq!(admitted, 1);
        assert_eq!(limiters[0].peek(NOW).remaining(), 2, "the loser's charge is given back");
        assert_eq!(limiters[1].peek(NOW).remaining(), 0);
    });
}

fn keyed(quota: Quota, max_keys: usize) -> RuleLimiter {
    let terms = Terms::new([("limit", quota)]).expect("valid");
    RuleLimiter::keyed(NOW, terms, NonZeroUsize::new(max_keys).expect("not zero"))
}

#[test]
fn a_new_key_comes_in_once() {
    model(2, || {
        let rule = keyed(bucket(1, 1), 2);
        let other = rule.clone();
        let thread = thread::spawn(move || u64::from(other.charge(|| NOW, b"key", 1).is_ok()));
        let here = u64::from(rule.charge(|| NOW, b"key", 1).is_ok());
        assert_eq!(here + thread.join().expect("no panic"), 1);
        assert_eq!(rule.keys().expect("keyed").tracked, 1);
    });
}

#[test]
fn two_keys_do_not_share_the_last_room() {
    model(2, || {
        let rule = keyed(bucket(1, 1), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || other.charge(|| NOW, b"ann", 1).is_ok());
        assert!(rule.charge(|| NOW, b"bob", 1).is_ok(), "by its own levels or by the overflow's");
        assert!(thread.join().expect("no panic"));
        let keys = rule.keys().expect("keyed");
        assert_eq!((keys.tracked, keys.overflowed), (1, 1));
    });
}

#[test]
fn a_keyed_retune_loses_no_charge_and_gives_none() {
    model(2, || {
        let rule = keyed(bucket(2, 2), 1);
        let other = rule.clone();
        let thread = thread::spawn(move || u64::from(other.charge(|| NOW, b"key", 1).is_ok()));
        let rule = rule.retune(|| NOW, Terms::new([("limit", bucket(4, 4))]).expect("valid"), NonZeroUsize::new(1));
        assert_eq!(thread.join().expect("no panic"), 1);
        let left = (0..9).take_while(|_| rule.charge(|| NOW, b"key", 1).is_ok()).count();
        // A key that came in after the change starts with the new burst.
        assert!(left == 1 || left == 3, "{left}");
    });
}
