//! Every interleaving of a few threads on a limit with leases, explored by loom: `RUSTFLAGS="--cfg loom" cargo test -p
//! weir-core --release --test loom_leases`
#![cfg(loom)]

mod suite;

use std::time::Duration;

use loom::thread;
use weir_core::{Limiter, Strategy, Time};

use self::suite::{SECOND, drain, quota};

/// The start of a window.
const NOW: Time = Time::from_nanos(1_000_000_000_000);

/// A burst that is large enough for leases.
const BURST: u64 = 200;

/// The strategies with leases: the state of each is one level.
const LENDING: [Strategy; 4] =
    [Strategy::TokenBucket, Strategy::FixedWindow, Strategy::TokenBucketWithDebt, Strategy::Gcra];

fn model(test: impl Fn(Strategy) + Sync + Send + Copy + 'static) {
    for strategy in LENDING {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        // The remaining requests are charged one by one, which takes many branches.
        builder.max_branches = 100_000;
        builder.check(move || test(strategy));
    }
}

/// Returns a limiter with leases and this many remaining requests: one is in a slot, and the others are in the word.
fn lending(strategy: Strategy, left: u64) -> Limiter {
    let limiter = Limiter::new(NOW, quota(strategy, BURST, SECOND));
    let charge = limiter.charge(NOW, 1).expect("all is free").charge;
    limiter.charge(NOW, 1).expect("all is free");
    // This charge is not the latest charge, so it is given back to a slot.
    limiter.refund(charge, || NOW);
    if left < BURST - 1 {
        limiter.charge(NOW, BURST - 1 - left).expect("there is more");
    }
    assert_eq!(limiter.peek(NOW).remaining(), left);
    limiter
}

fn take(limiter: &Limiter, now: Time) -> u64 {
    u64::from(limiter.charge(now, 1).is_ok())
}

/// A thread fetches a lease while another thread fetches a lease. In the end, all leased admissions are used.
#[test]
fn all_are_admitted_and_no_more() {
    // Plenty of capacity; just enough for one lease; only the leased admission and two others.
    for left in [BURST - 1, 130, 3] {
        model(move |strategy| {
            let limiter = lending(strategy, left);
            let other = limiter.clone();
            let thread = thread::spawn(move || take(&other, NOW) + take(&other, NOW));
            let here = take(&limiter, NOW) + take(&limiter, NOW);
            let there = thread.join().expect("no panic");
            assert!(here + there >= 3.min(left), "{strategy:?}, {left}: requests were refused while there was room");
            assert_eq!(here + there + drain(&limiter, NOW), left, "{strategy:?}, {left}");
        });
    }
}

#[test]
fn three_threads_share_the_last_two() {
    model(|strategy| {
        let limiter = lending(strategy, 2);
        let threads = [limiter.clone(), limiter.clone()].map(|limiter| thread::spawn(move || take(&limiter, NOW)));
        let here = take(&limiter, NOW);
        let there: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert_eq!(here + there + drain(&limiter, NOW), 2, "{strategy:?}");
    });
}

/// A cost above one needs consecutive admissions.
#[test]
fn a_cost_is_met_whole_or_not_at_all() {
    model(|strategy| {
        let limiter = lending(strategy, 3);
        let other = limiter.clone();
        let thread = thread::spawn(move || 2 * u64::from(other.charge(NOW, 2).is_ok()));
        let here = 2 * u64::from(limiter.charge(NOW, 2).is_ok());
        let there = thread.join().expect("no panic");
        assert_eq!(here + there, 2, "{strategy:?}");
        assert_eq!(drain(&limiter, NOW), 1, "{strategy:?}");
    });
}

#[test]
fn as_time_goes_on_no_seat_is_taken_twice() {
    model(|strategy| {
        let limiter = lending(strategy, 3);
        let other = limiter.clone();
        // Two more requests have flowed in until `later`. In a window, none has.
        let later = NOW.saturating_add(Duration::from_millis(10));
        let flown = if strategy == Strategy::FixedWindow { 0 } else { 2 };
        let thread = thread::spawn(move || take(&other, NOW) + take(&other, NOW));
        let here = take(&limiter, later) + take(&limiter, later);
        let all = here + thread.join().expect("no panic") + drain(&limiter, later);
        // The floor can pass the admission in the slot.
        assert!(all <= 3 + flown && all >= 2 + flown, "{strategy:?}: {all}");
    });
}

#[test]
fn a_retune_takes_leases_back_and_gives_nothing() {
    for left in [BURST - 1, 3] {
        model(move |strategy| {
            let limiter = lending(strategy, left);
            let decider = limiter.clone();
            let thread = thread::spawn(move || take(&decider, NOW) + take(&decider, NOW));
            let retuned = limiter.retune(|| NOW, quota(Strategy::TokenBucket, 2 * BURST, SECOND));
            let there = thread.join().expect("no panic");
            let all = there + drain(&retuned, NOW);
            // Admissions that a thread was storing in a slot stay charged: at most one lease. If the new quota has no
            // debt, overdrawn requests must be paid back first.
            let debt = quota(strategy, BURST, SECOND).debt();
            assert!(all <= left && all + BURST / 16 >= left.saturating_sub(debt), "{strategy:?}: {all} of {left}");
            assert!(there >= 1 || debt > 0, "{strategy:?}");
        });
    }
}

#[test]
fn what_is_given_back_is_free_once() {
    model(|strategy| {
        let limiter = lending(strategy, 2);
        let other = limiter.clone();
        let thread = thread::spawn(move || {
            other.charge(NOW, 1).map_or(0, |admitted| {
                other.refund(admitted.charge, || NOW);
                0
            })
        });
        let here = take(&limiter, NOW) + take(&limiter, NOW);
        let there: u64 = thread.join().expect("no panic");
        let all = here + there + drain(&limiter, NOW);
        // If no slot has room for the refund, the request stays charged.
        assert!(all <= 2 && all >= 1, "{strategy:?}: {all}");
    });
}

#[test]
fn reservations_come_after_what_is_leased() {
    model(|strategy| {
        let limiter = lending(strategy, 1);
        let other = limiter.clone();
        let reserve =
            |limiter: &Limiter| limiter.reserve(NOW, 1, NOW.saturating_add(SECOND)).expect("within a second").at;
        let thread = thread::spawn(move || reserve(&other));
        let mut moments = [reserve(&limiter), thread.join().expect("no panic")];
        moments.sort_unstable();
        let next =
            if strategy == Strategy::FixedWindow { SECOND } else { SECOND / u32::try_from(BURST).expect("small") };
        assert_eq!(moments, [NOW, NOW.saturating_add(next)], "{strategy:?}");
    });
}

/// A credit while another thread takes a lease, or uses one.
#[test]
fn a_credit_gives_back_no_lease() {
    for left in [BURST - 1, BURST - 20] {
        model(move |strategy| {
            let limiter = lending(strategy, left);
            let other = limiter.clone();
            let thread = thread::spawn(move || take(&other, NOW) + take(&other, NOW));
            limiter.credit(BURST, || NOW);
            let there = thread.join().expect("no panic");
            assert_eq!(there, 2, "{strategy:?}: requests were refused while there was room");
            let here = drain(&limiter, NOW);
            assert!(here <= BURST && here >= left - 2, "{strategy:?}: {here} after {there}");
        });
    }
}
