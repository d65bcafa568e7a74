use std::{
    num::NonZeroUsize,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::*;

const START: Time = Time::from_nanos(1_700_000_000_000_000_000);

fn at(millis: u64) -> Time {
    START.saturating_add(Duration::from_millis(millis))
}

fn ban(after: usize, within: u64, length: u64, max_keys: usize) -> Ban {
    let number = |number| NonZeroUsize::new(number).expect("not zero");
    let terms = LoweredBan {
        after: number(after),
        within: Duration::from_millis(within),
        length: Duration::from_millis(length),
        max_keys: number(max_keys),
    };
    Ban::from_lowered(None, terms, START)
}

#[test]
fn a_full_table_bans_no_other_key_and_has_room_when_entries_are_old() {
    let (ban, statistics) = (ban(2, 1_000, 5_000, 2), Statistics::default());
    let refuse = |key: &[u8], millis| ban.refused(key, at(millis), &statistics).map(|banned| banned.rest.as_millis());
    assert_eq!((refuse(b"ann", 0), refuse(b"ann", 1), refuse(b"bob", 2)), (None, Some(5_000), None));
    for turn in 0..5 {
        assert_eq!(refuse(b"eve", 3 + turn), None, "there is no place for a third key");
    }
    assert_eq!((ban.rest(b"eve", at(9)), ban.table.keys()), (None, (2, 1)));
    assert_eq!((statistics.read().ban_overflow, statistics.read().bans_started), (5, 1));
    // The refusal of bob is old after a second, and the ban of ann after five.
    assert_eq!((refuse(b"eve", 1_002), refuse(b"eve", 1_003)), (None, Some(5_000)), "eve has the place of bob");
    assert_eq!(refuse(b"joe", 5_000), None, "all places are taken");
    assert_eq!((refuse(b"joe", 5_003), refuse(b"joe", 5_004)), (None, Some(5_000)), "joe has the place of ann");
    assert_eq!((ban.table.keys(), statistics.read().ban_overflow), ((2, 2), 6));
    assert_eq!(ban.banned_keys(at(6_002)), 2);
    ban.learn(b"sue", Duration::from_secs(1), at(6_003));
    assert!(ban.rest(b"sue", at(6_003)).is_some(), "a ban of the store takes the place of eve");
    assert_eq!(ban.banned_keys(at(10_004)), 0);
    assert_eq!(ban.table.keys(), (0, 0), "nothing stays");
}

/// The search in a large table has a bound: it finds an old entry after several refusals.
#[test]
fn a_large_full_table_is_searched_in_parts() {
    const KEYS: usize = 20_000;
    let (ban, statistics) = (ban(2, 100_000, 100_000, KEYS), Statistics::default());
    for key in 1..KEYS {
        assert_eq!(ban.refused(&key.to_be_bytes(), at(1_000), &statistics), None);
    }
    assert_eq!(ban.refused(b"old", at(0), &statistics), None);
    let overflow = |key: &[u8], millis| {
        ban.refused(key, at(millis), &statistics);
        statistics.read().ban_overflow
    };
    let found = (1..=100).find(|turn| overflow(b"eve", 100_000) < *turn).expect("one place is free");
    assert!(found <= 1 + (KEYS + 256).div_ceil(1024) as u64, "{found}");
    // After a round without an old entry, there is a pause.
    let before = statistics.read().ban_overflow;
    for turn in 1..=100 {
        assert_eq!(overflow(b"joe", 100_001), before + turn);
    }
}

/// A scrape searches a part of a large table, and the next one continues.
#[test]
fn the_bans_of_a_large_table_are_counted_in_parts() {
    const KEYS: usize = 60_000;
    let (ban, statistics) = (ban(1, 1_000, 5_000, KEYS), Statistics::default());
    for key in 0..KEYS {
        assert!(ban.refused(&key.to_be_bytes(), at(0), &statistics).is_some());
    }
    assert_eq!(ban.count(at(4_999)), KEYS as u64);
    let mut rest = KEYS as u64;
    for scrapes in 1.. {
        let before = std::mem::replace(&mut rest, ban.count(at(5_000)));
        // The last searched shard has about 234 keys.
        assert!(before - rest <= 16 * 1024 + 1_000, "{before}, {rest}");
        if rest == 0 {
            assert_eq!(scrapes, 4);
            break;
        }
    }
    assert_eq!(ban.table.keys(), (0, 0));
}

/// A scrape at any time removes only what no longer has an effect.
#[test]
fn old_entries_are_removed_without_an_effect() {
    let (ban, statistics) = (ban(2, 1_000, 5_000, 9), Statistics::default());
    assert_eq!(ban.refused(b"ann", at(0), &statistics), None);
    assert_eq!((ban.banned_keys(at(999)), ban.table.keys()), (0, (1, 0)));
    assert!(ban.refused(b"ann", at(999), &statistics).is_some(), "999 ms are within the window");
    assert_eq!(ban.refused(b"bob", at(0), &statistics), None);
    assert_eq!(ban.refused(b"bob", at(1_000), &statistics), None, "one second is not within the window");
    assert_eq!((ban.banned_keys(at(5_998)), ban.table.keys()), (1, (1, 1)));
    assert!(ban.is_active());
    assert_eq!(ban.rest(b"ann", at(5_999)), None);
    assert!(!ban.is_active());
    assert_eq!(ban.table.keys(), (0, 0));
}

/// A longer `within` does not bring back a refusal that was too old before, with and without a scrape.
#[test]
fn a_refusal_that_is_too_old_does_not_count_after_a_change() {
    for scrapes in [false, true] {
        let (before, statistics) = (ban(3, 300, 5_000, 9), Statistics::default());
        assert_eq!(before.refused(b"ann", at(0), &statistics), None);
        if scrapes {
            before.banned_keys(at(300));
        }
        assert_eq!(before.refused(b"ann", at(300), &statistics), None);
        let terms = ban(3, 1_000, 5_000, 9).lowered;
        let after = Ban::from_lowered(Some(&before), terms, at(300));
        assert_eq!(after.refused(b"ann", at(301), &statistics), None, "scrapes: {scrapes}");
        assert!(after.refused(b"ann", at(302), &statistics).is_some(), "scrapes: {scrapes}");
    }
}

/// Threads refuse one key at the same time: all refusals before the last one that is needed ban nothing, and exactly one
/// refusal starts the ban.
#[test]
fn threads_ban_a_key_exactly_once_and_never_early() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 200;
    let after = THREADS / 2;
    let (ban, statistics) = (ban(after, 1_000, 5_000, 10_000), Statistics::default());
    let (not_banned, later, barrier) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    barrier.wait();
                    let key = round.to_be_bytes();
                    let banned = ban.refused(&key, at(round as u64), &statistics);
                    not_banned.fetch_add(usize::from(banned.is_none()), Relaxed);
                    later.fetch_add(usize::from(banned.is_some_and(|banned| !banned.begins)), Relaxed);
                    assert!(banned.is_none() || ban.rest(&key, at(round as u64)).is_some());
                }
            });
        }
    });
    assert_eq!(not_banned.load(Relaxed), ROUNDS * (after - 1));
    let started = statistics.read().bans_started;
    assert_eq!((started, later.load(Relaxed)), (ROUNDS as u64, ROUNDS * (THREADS - after)));
    assert_eq!((ban.banned_keys(at(ROUNDS as u64)), ban.table.keys()), (ROUNDS as u64, (ROUNDS, ROUNDS)));
    // The bans end while threads ask for them.
    let end = at(ROUNDS as u64 + 5_000);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..ROUNDS).for_each(|round| assert_eq!(ban.rest(&round.to_be_bytes(), end), None)));
        }
    });
    assert_eq!((ban.is_active(), ban.table.keys()), (false, (0, 0)));
}

/// Threads that refuse, lift and look for old entries at the same time keep the numbers of keys.
#[test]
fn the_numbers_of_keys_are_those_of_the_entries() {
    let (ban, statistics) = (ban(2, 3, 5, 50), Statistics::default());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (ban, statistics) = (&ban, &statistics);
            scope.spawn(move || {
                for turn in 0..2_000_u64 {
                    let key = ((turn * 7 + thread) % 90).to_be_bytes();
                    match (turn + thread) % 50 {
                        0 => drop(ban.banned_keys(at(turn / 20))),
                        1 => drop(ban.lift(at(turn / 20), |other| other[7] % 2 == 0)),
                        _ => drop(ban.refused(&key, at(turn / 20), statistics)),
                    }
                    let _ = ban.rest(&key, at(turn / 20));
                    assert!(ban.table.keys().0 <= 50);
                }
            });
        }
    });
    ban.banned_keys(at(1_000_000));
    assert_eq!(ban.table.keys(), (0, 0));
}
