use weir_api::RateLimitPolicyStatus;

use super::{super::Report, *};
use crate::world::ObjectKey;

fn report(name: &str, number: u64) -> Pending {
    let key = ObjectKey::new("shop", name);
    let status = RateLimitPolicyStatus::default();
    Pending::Policy(Box::new(Report {
        key,
        uid: "1".to_owned(),
        file: None,
        changed: None,
        number,
        status,
        version: None,
        term: crate::leader::Term::unbounded(),
    }))
}

fn target(name: &str) -> Target {
    Target::Policy(ObjectKey::new("shop", name))
}

fn taken(queue: &mut Queue, now: Instant) -> Option<(String, u64)> {
    queue.take(now).map(|pending| match pending {
        Pending::Policy(report) => (report.key.name.to_string(), report.number),
        Pending::Store(_) | Pending::File(_) => panic!("these tests have only policies"),
    })
}

fn some(name: &str, number: u64) -> Option<(String, u64)> {
    Some((name.to_owned(), number))
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_and_the_newest_next() {
    let (now, mut queue) = (Instant::now(), Queue::default());
    queue.put(now, report("a", 1));
    assert_eq!(taken(&mut queue, now), some("a", 1));
    queue.put(now, report("a", 2));
    queue.put(now, report("a", 3));
    assert_eq!(taken(&mut queue, now), None, "a status of this policy is being written");
    queue.put(now, report("b", 1));
    assert_eq!(taken(&mut queue, now), some("b", 1), "another policy does not wait");
    assert!(!queue.ended(now, &target("a")));
    assert_eq!(taken(&mut queue, now), some("a", 3));
    assert!(!queue.ended(now, &target("a")));
    assert!(!queue.ended(now, &target("b")));
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_retried_with_growing_pauses() {
    for (may_pass, longest) in [(true, Duration::from_secs(5)), (false, Duration::from_secs(60))] {
        let mut now = Instant::now();
        let mut queue = Queue::default();
        queue.put(now, report("a", 1));
        let mut pauses = Vec::new();
        for _ in 0..40 {
            let report = queue.take(now).expect("the status has its turn");
            queue.failed(now, report, may_pass, 1.0);
            let turn = queue.next_turn().expect("the status is tried again");
            pauses.push(turn - now);
            assert_eq!(taken(&mut queue, turn - Duration::from_nanos(1)), None, "too soon");
            now = turn;
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.is_sorted() && pauses[39] == longest, "{pauses:?}");
        assert_eq!(taken(&mut queue, now), some("a", 1));
        queue.ended(now, &target("a"));
        assert!(queue.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_status_takes_the_place_of_a_failed_one_but_not_its_turn() {
    let (now, mut queue) = (Instant::now(), Queue::default());
    queue.put(now, report("a", 1));
    let first = queue.take(now).unwrap();
    queue.put(now, report("a", 2));
    queue.failed(now, first, true, 1.0);
    queue.put(now, report("a", 3));
    assert_eq!(taken(&mut queue, now), None, "the new status waits for the turn of the failed one");
    assert_eq!(taken(&mut queue, now + FIRST_PAUSE), some("a", 3));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_for_a_deleted_policy() {
    let now = Instant::now();
    let key = target("a");
    let mut queue = Queue::default();
    assert!(queue.remove(&key), "an unknown policy has no write in progress");
    queue.put(now, report("a", 1));
    assert!(queue.remove(&key));
    assert!(queue.is_empty() && queue.take(now).is_none());

    queue.put(now, report("a", 1));
    let first = queue.take(now).unwrap();
    assert!(!queue.remove(&key), "a status is being written");
    assert!(queue.failed(now, first, true, 1.0), "the policy was deleted");
    assert!(queue.is_empty() && queue.next_turn().is_none());

    // A new policy of the same name waits for the write to end.
    queue.put(now, report("a", 1));
    let first = queue.take(now).unwrap();
    queue.remove(&key);
    queue.put(now, report("a", 7));
    assert!(queue.failed(now, first, true, 1.0));
    assert_eq!(taken(&mut queue, now + FIRST_PAUSE), some("a", 7));
}
