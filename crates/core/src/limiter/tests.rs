//! The states of a limiter that a handle from before many retunes keeps in memory.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::Limiter;
use crate::{Quota, Strategy, Time};

const NOW: Time = Time::from_nanos(1_700_000_000_000_000_000);
const RETUNES: u64 = 10_000;

fn quota(strategy: Strategy, requests: u64) -> Quota {
    Quota::new(strategy, requests, Duration::from_secs(1), None).expect("valid")
}

/// Retunes `RETUNES` times through the handle that `pick` returns for the newest one. Returns the newest handle, and
/// the largest number of states that were in memory.
fn retune_often(old: &Limiter, strategy: Strategy, mut pick: impl FnMut(&Limiter) -> Limiter) -> (Limiter, usize) {
    let (mut newest, mut most) = (old.clone(), 0);
    let mut states = vec![Arc::downgrade(&old.state)];
    for round in 1..=RETUNES {
        newest = pick(&newest).retune(|| NOW, quota(strategy, 20_000 + round % 2));
        states.push(Arc::downgrade(&newest.state));
        states.retain(|state| Weak::strong_count(state) > 0);
        most = most.max(states.len());
    }
    (newest, most)
}

#[test]
fn an_old_handle_that_decides_keeps_no_states_in_between() {
    for strategy in [Strategy::TokenBucket, Strategy::FixedWindow, Strategy::SlidingWindowCounter] {
        let old = Limiter::new(NOW, quota(strategy, 20_000));
        let (newest, most) = retune_often(&old, strategy, |newest| {
            assert!(old.charge(NOW, 1).is_ok(), "{strategy:?}");
            newest.clone()
        });
        assert!(most <= 2, "{strategy:?}: {most} states");
        assert_eq!(newest.peek(NOW).remaining(), 20_000 - RETUNES, "{strategy:?}: every charge is counted");
        assert_eq!(old.peek(NOW).remaining(), 20_000 - RETUNES, "{strategy:?}: the old handle reaches the same state");
        drop(newest);
        let charged = old.charge(NOW, 1).expect("there is room").charge;
        assert_eq!(charged.retunes, RETUNES, "{strategy:?}: the old handle keeps the newest state in memory");
    }
}

#[test]
fn an_old_handle_that_is_idle_or_retunes_keeps_no_states_in_between() {
    let old = Limiter::new(NOW, quota(Strategy::TokenBucket, 20_000));
    let (newest, most) = retune_often(&old, Strategy::TokenBucket, Limiter::clone);
    assert!(most <= 2, "{most} states");
    assert!(Arc::ptr_eq(&old.state.follow(), &newest.state), "one step");
    let (_, most) = retune_often(&old, Strategy::TokenBucket, |_| old.clone());
    assert!(most <= 3, "{most} states: the caller still has the handle of the previous retune");
}

#[test]
fn handles_of_several_retunes_all_reach_the_newest_state_in_one_step() {
    let first = Limiter::new(NOW, quota(Strategy::TokenBucket, 10));
    let next = |handle: &Limiter, requests| handle.retune(|| NOW, quota(Strategy::TokenBucket, requests));
    let second = next(&first, 11);
    let third = next(&first, 12);
    let charged = second.charge(NOW, 1).expect("there is room").charge;
    let newest = next(&second, 13);
    for handle in [&first, &second, &third] {
        assert!(Arc::ptr_eq(&handle.state.follow(), &newest.state));
    }
    // The state of this charge is skipped, so the charge stays.
    let left = newest.peek(NOW).remaining();
    first.refund(charged, || NOW);
    assert_eq!(newest.peek(NOW).remaining(), left);
    let charged = first.charge(NOW, 1).expect("there is room").charge;
    second.refund(charged, || NOW);
    assert_eq!(newest.peek(NOW).remaining(), left);
}

#[test]
fn the_states_of_many_handles_are_freed() {
    let mut handles = vec![Limiter::new(NOW, quota(Strategy::Gcra, 10))];
    for round in 1..=1_000 {
        let newest = handles[handles.len() - 1].retune(|| NOW, quota(Strategy::Gcra, 10 + round % 2));
        handles.push(newest);
    }
    let states: Vec<_> = handles.iter().map(|handle| Arc::downgrade(&handle.state)).collect();
    drop(handles);
    assert!(states.iter().all(|state| state.strong_count() == 0));
}
