use std::{future::poll_fn, num::NonZeroUsize, time::Duration};

use tokio::time::advance;
use weir_core::{Quota, RuleLimiter, Strategy, Terms};

use super::{KeyExtractor, KeyedAdmit, NoKey, WithoutKey, buffer::with_buffer};
use crate::{Admit, MonotonicClock, QueueTicket, Reserve, Turn};

const TENTH: Duration = Duration::from_millis(100);

/// Uses the request as the key; the request "-" has no key.
fn word(request: &&'static str, key: &mut Vec<u8>) -> Result<(), NoKey> {
    key.extend_from_slice(request.as_bytes());
    if *request == "-" { Err(NoKey) } else { Ok(()) }
}

type ByWord = KeyedAdmit<fn(&&'static str, &mut Vec<u8>) -> Result<(), NoKey>>;

/// A limit of one request per tenth of a second for each key.
fn admit(without_key: WithoutKey) -> ByWord {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None).unwrap();
    let terms = Terms::new([("each", quota)]).unwrap();
    let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100).unwrap());
    KeyedAdmit::new(rule, clock, word, without_key)
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_and_clones_share_them() {
    let admit = admit(WithoutKey::Admit);
    let clone = admit.clone();
    assert_eq!(admit.admit(&"ann").unwrap().unwrap().standing.remaining(), 0);
    assert!(clone.admit(&"ann").is_err());
    assert!(clone.admit(&"bob").is_ok());
    assert_eq!(admit.admit(&"bob").unwrap_err().retry_after(), Some(TENTH));
    advance(TENTH).await;
    assert!(admit.admit(&"ann").is_ok());
}

#[test]
fn requests_without_a_key_share_one_if_they_are_to() {
    let admit = admit(WithoutKey::Share);
    assert!(admit.admit(&"-").unwrap().is_some());
    assert!(admit.admit(&"").is_err(), "an empty key counts as no key");
    assert!(admit.admit(&"ann").is_ok());
    // The extractor wrote "-" before it returned `NoKey`: these bytes are not used as a key.
    assert_eq!(admit.rule.keys().unwrap().tracked, 2);
}

#[test]
fn requests_without_a_key_are_let_through_if_they_are_to() {
    let admit = admit(WithoutKey::Admit);
    for request in ["-", "", "-", ""] {
        assert!(admit.admit(&request).unwrap().is_none());
    }
    assert_eq!(admit.rule.keys().unwrap().tracked, 0);
}

#[test]
fn a_key_of_two_needs_both() {
    let pair = (word, |request: &&'static str, key: &mut Vec<u8>| word(&request.trim_start_matches('a'), key));
    let mut key = Vec::new();
    assert_eq!(pair.extract(&"abc", &mut key), Ok(()));
    assert_eq!(key, b"\0\0\0\0\0\0\0\x03abcbc");
    assert_eq!(pair.extract(&"aaa", &mut key), Err(NoKey));
    assert_eq!(pair.extract(&"", &mut key), Err(NoKey));
    assert_eq!(pair.extract(&"-", &mut key), Err(NoKey));
}

#[test]
fn a_thread_lends_the_same_buffer_again_and_never_keeps_a_huge_one() {
    let place = |buffer: &mut Vec<u8>| {
        assert!(buffer.is_empty());
        buffer.extend_from_slice(b"a key");
        buffer.as_ptr()
    };
    let first = with_buffer(place);
    assert_eq!(with_buffer(place), first);
    // A nested call while the buffer is in use.
    with_buffer(|outer| {
        outer.extend_from_slice(b"outer");
        with_buffer(|inner| assert!(inner.is_empty()));
        assert_eq!(outer, b"outer");
    });
    with_buffer(|buffer| buffer.reserve(1 << 20));
    with_buffer(|buffer| assert!(buffer.capacity() < 1 << 20));
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_line_and_a_place_given_back_is_the_next_ones() {
    let admit = admit(WithoutKey::Share);
    assert!(matches!(admit.reserve(&"ann", Duration::ZERO), Ok(Turn::Now(Some(_)))));
    assert!(matches!(admit.reserve(&"bob", Duration::ZERO), Ok(Turn::Now(Some(_)))));
    let Ok(Turn::Later(first)) = admit.reserve(&"ann", TENTH) else { panic!("its turn is later") };
    assert_eq!(admit.reserve(&"ann", TENTH).unwrap_err().retry_after(), Some(2 * TENTH));
    drop(first);
    let Ok(Turn::Later(mut used)) = admit.reserve(&"ann", TENTH) else { panic!("its turn is later") };
    let start = tokio::time::Instant::now();
    assert!(poll_fn(|context| used.poll_turn(&(), context)).await.unwrap().is_some());
    assert_eq!(start.elapsed(), TENTH);
    drop(used);
    assert!(matches!(admit.reserve(&"ann", TENTH), Ok(Turn::Later(_))), "an admitted request stays charged");
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_key_wait_together_or_not_at_all() {
    let shared = admit(WithoutKey::Share);
    assert!(matches!(shared.reserve(&"-", TENTH), Ok(Turn::Now(Some(_)))));
    assert!(matches!(shared.reserve(&"-", TENTH), Ok(Turn::Later(_))));
    let free = admit(WithoutKey::Admit);
    for _ in 0..3 {
        assert!(matches!(free.reserve(&"-", Duration::ZERO), Ok(Turn::Now(None))));
    }
}
