use super::*;

const UNIX: u64 = 1_700_000_000_000_000;

fn seconds(seconds: f64) -> Moment {
    Duration::from_secs_f64(seconds)
}

fn candidate() -> Election {
    let timing = LeaseTiming::new(seconds(8.0), seconds(2.0)).unwrap();
    Election::new("a".to_owned(), timing, 1)
}

fn record(version: u32, holder: Option<&str>) -> Record {
    Record {
        version: version.to_string(),
        holder: holder.map(str::to_owned),
        lease: seconds(8.0),
        transitions: 3,
        sequences_below: 0,
    }
}

fn claim(election: &mut Election, at: f64) -> LeaseClaim {
    match election.next(seconds(at), UNIX) {
        Step::Claim(claim) => claim,
        step => panic!("{step:?} at {at}"),
    }
}

/// Stores the claim of this time under this version, a tenth of a second later.
fn win(election: &mut Election, at: f64, version: u32) -> LeaseClaim {
    let claim = claim(election, at);
    let stored = Record { sequences_below: claim.sequences_below, ..record(version, Some("a")) };
    election.claimed(seconds(at), seconds(at + 0.1), &claim, ClaimResult::Stored(stored));
    claim
}

fn leads(election: &Election, at: f64) -> bool {
    election.tenure(seconds(at)).is_some()
}

fn wakes(election: &mut Election, at: f64) -> f64 {
    match election.next(seconds(at), UNIX) {
        Step::Wait(until) => until.as_secs_f64(),
        step => panic!("{step:?} at {at}"),
    }
}

#[test]
fn a_lease_that_never_existed_is_created_at_once() {
    let mut election = candidate();
    assert_eq!(election.next(seconds(1.0), UNIX), Step::Read);
    election.read(seconds(1.0), Ok(None));
    let claim = win(&mut election, 1.0, 1);
    assert_eq!((claim.version.as_deref(), claim.holder.as_deref(), claim.transitions), (None, Some("a"), 0));
    assert!(claim.acquires && leads(&election, 1.1));
    let tenure = election.tenure(seconds(1.1)).unwrap();
    assert_eq!((tenure.since, tenure.until, tenure.first_sequence), (seconds(1.0), seconds(7.0), UNIX));
    assert_eq!(tenure.sequences_below, UNIX + 8_000_000);
}

/// The garbage collector deletes each Lease whose owner was deleted.
#[test]
fn a_lease_that_is_deleted_again_and_again_is_created_twice_a_second() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(None));
    win(&mut election, 1.0, 1);
    election.shown(seconds(1.2), None);
    assert_eq!(election.next(seconds(1.2), UNIX), Step::Read);
    election.read(seconds(1.2), Ok(None));
    win(&mut election, 1.2, 2);
    let mut at = 1.2;
    for version in [3, 4] {
        election.shown(seconds(at + 0.2), None);
        let until = wakes(&mut election, at + 0.2);
        assert!((until - at - 0.6).abs() < 0.01, "{until} after {at}");
        at = until + 0.001;
        assert_eq!(election.next(seconds(at), UNIX), Step::Read);
        election.read(seconds(at), Ok(None));
        win(&mut election, at, version);
        assert!(leads(&election, at + 0.1));
    }
}

#[test]
fn a_held_lease_is_waited_for_from_its_last_renewal() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(Some(record(5, Some("b")))));
    assert!((9.0..=9.2).contains(&wakes(&mut election, 1.0)));
    // A renewal restarts the wait. The same version again does not.
    election.shown(seconds(3.0), Some(record(6, Some("b"))));
    election.shown(seconds(5.0), Some(record(6, Some("b"))));
    election.read(seconds(6.0), Ok(Some(record(6, Some("b")))));
    let until = wakes(&mut election, 6.0);
    assert!((11.0..=11.2).contains(&until), "{until}");
    let claim = win(&mut election, 11.2, 7);
    assert_eq!((claim.version.as_deref(), claim.acquires, claim.transitions), (Some("6"), true, 4));
    assert!(leads(&election, 11.3));
}

#[test]
fn a_holders_lease_duration_is_bounded_on_both_sides() {
    for (says, waits) in [(0.0, 8.0), (1.0, 8.0), (30.0, 30.0), (86_400.0, 300.0)] {
        let mut election = candidate();
        election.read(seconds(1.0), Ok(Some(Record { lease: seconds(says), ..record(5, Some("b")) })));
        let until = wakes(&mut election, 1.0) - 1.0;
        assert!((waits..=waits + 0.2).contains(&until), "{says} gave {until}");
    }
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(Some(record(5, Some("b")))));
    election.shown(seconds(2.0), Some(Record { lease: seconds(1.0), ..record(6, None) }));
    assert_eq!(claim(&mut election, 2.0).version.as_deref(), Some("6"));
}

#[test]
fn a_leader_renews_and_keeps_its_term_and_its_sequences() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(None));
    win(&mut election, 1.0, 1);
    let renew_at = wakes(&mut election, 1.2);
    assert!((2.8..=3.0).contains(&renew_at), "{renew_at}");
    let claim = win(&mut election, 3.0, 2);
    assert_eq!(
        (claim.version.as_deref(), claim.acquires, claim.sequences_below),
        (Some("1"), false, UNIX + 10_000_000)
    );
    let tenure = election.tenure(seconds(8.9)).unwrap();
    assert_eq!((tenure.since, tenure.until, tenure.first_sequence), (seconds(1.0), seconds(9.0), UNIX));
}

#[test]
fn a_leader_that_cannot_renew_stops_before_another_begins() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(None));
    win(&mut election, 1.0, 1);
    let mut at = 3.0;
    while at < 6.9 {
        match election.next(seconds(at), UNIX) {
            Step::Claim(claim) => election.claimed(seconds(at), seconds(at), &claim, ClaimResult::Unknown),
            Step::Read => election.read(seconds(at), Err(())),
            Step::Wait(until) => at = until.as_secs_f64(),
            Step::Exit(restored) => panic!("{restored}"),
        }
    }
    assert!((at - 7.0).abs() < 1e-6, "the candidate woke at {at}, not at the end of its term");
    assert!(leads(&election, 6.999) && !leads(&election, 7.0));
    // The candidate takes the Lease that still has its name, but in a new term, beyond the sequences reserved before.
    let reserved = UNIX + 60_000_000;
    let mut read = None;
    while read.is_none() {
        match election.next(seconds(at), UNIX) {
            Step::Wait(until) => at = until.as_secs_f64(),
            step => read = Some(step),
        }
    }
    assert_eq!(read, Some(Step::Read));
    election.read(seconds(at), Ok(Some(Record { sequences_below: reserved, ..record(4, Some("a")) })));
    assert!(!leads(&election, at), "a read alone must not begin a term");
    let claim = win(&mut election, at, 5);
    assert!(!claim.acquires && claim.version.as_deref() == Some("4"));
    assert_eq!(election.tenure(seconds(at + 0.1)).unwrap().first_sequence, reserved);
}

#[test]
fn a_late_response_does_not_revive_a_term() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(None));
    win(&mut election, 1.0, 1);
    let renewal = claim(&mut election, 3.0);
    election.claimed(seconds(3.0), seconds(7.5), &renewal, ClaimResult::Stored(record(2, Some("a"))));
    assert!(!leads(&election, 7.5));
    assert!(win(&mut election, 7.5, 3).first_sequence.is_some());
    assert!(leads(&election, 7.6));
}

#[test]
fn only_a_read_ends_a_term_early() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(None));
    win(&mut election, 1.0, 9);
    // The watch is late: it shows the state before the claim.
    election.shown(seconds(1.2), Some(record(8, None)));
    assert_eq!(election.next(seconds(1.2), UNIX), Step::Read);
    assert!(leads(&election, 1.2));
    election.read(seconds(1.3), Ok(Some(record(9, Some("a")))));
    assert!(leads(&election, 1.3) && wakes(&mut election, 1.3) > 2.7);
    // Someone wrote another name by hand.
    election.shown(seconds(1.4), Some(record(10, Some("b"))));
    election.read(seconds(1.5), Ok(Some(record(10, Some("b")))));
    assert!(!leads(&election, 1.5) && wakes(&mut election, 1.5) > 9.4);
}

#[test]
fn a_deleted_lease_is_recreated_by_its_leader_at_once_and_by_others_after_its_time() {
    let mut leader = candidate();
    leader.read(seconds(1.0), Ok(None));
    win(&mut leader, 1.0, 1);
    leader.shown(seconds(2.0), None);
    assert_eq!(leader.next(seconds(2.0), UNIX), Step::Read);
    leader.read(seconds(2.0), Ok(None));
    let claim = win(&mut leader, 2.0, 7);
    assert!(claim.version.is_none() && claim.first_sequence.is_none() && leads(&leader, 2.1));

    let mut standby = candidate();
    standby.read(seconds(1.0), Ok(Some(record(1, Some("b")))));
    standby.shown(seconds(2.0), None);
    assert!(wakes(&mut standby, 2.0) >= 10.0);
    standby.shown(seconds(2.2), Some(record(7, Some("b"))));
    assert!(wakes(&mut standby, 2.2) >= 10.2);
}

#[test]
fn conflicts_are_read_at_once_and_failures_retried_with_growing_pauses() {
    let mut election = candidate();
    election.read(seconds(1.0), Ok(Some(record(5, None))));
    let lost = claim(&mut election, 1.0);
    election.claimed(seconds(1.0), seconds(1.1), &lost, ClaimResult::Conflict);
    assert_eq!(election.next(seconds(1.1), UNIX), Step::Read);
    let mut at = 1.1;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        election.read(seconds(at), Err(()));
        let until = wakes(&mut election, at);
        pauses.push(until - at);
        at = until;
    }
    assert!(pauses[0] <= 0.1 && pauses[7] <= 2.0 && pauses[7] >= 1.0, "{pauses:?}");
    assert!(pauses[3] > pauses[0], "{pauses:?}");
}

#[test]
fn sequences_begin_above_the_reserved_ones_with_any_clock() {
    for (reserved, first) in [
        (0, UNIX),
        (UNIX - 1, UNIX),
        (UNIX + 3_600_000_000, UNIX + 3_600_000_000),
        // No operator reserves decades, so a person wrote this value. It must not use up all sequences.
        (u64::MAX, UNIX),
    ] {
        let mut election = candidate();
        election.read(seconds(1.0), Ok(Some(Record { sequences_below: reserved, ..record(5, None) })));
        win(&mut election, 1.0, 6);
        assert_eq!(election.tenure(seconds(1.1)).unwrap().first_sequence, first, "{reserved}");
    }
}

#[test]
fn a_lease_is_released_with_its_reservation() {
    let mut election = candidate();
    assert_eq!(election.release(), None);
    election.read(seconds(1.0), Ok(Some(record(5, Some("b")))));
    assert_eq!(election.release(), None);
    let mut election = candidate();
    election.read(seconds(1.0), Ok(None));
    win(&mut election, 1.0, 6);
    let release = election.release().unwrap();
    assert_eq!((release.version.as_deref(), release.holder), (Some("6"), None));
    assert_eq!(release.sequences_below, UNIX + 8_000_000);
    assert!(!leads(&election, 1.1));
}

#[test]
fn an_older_version_in_an_answer_ends_the_process() {
    let exits = |election: &mut Election, at: f64| matches!(election.next(seconds(at), UNIX), Step::Exit(_));

    let mut leader = candidate();
    leader.read(seconds(1.0), Ok(None));
    win(&mut leader, 1.0, 500);
    let renewal = claim(&mut leader, 3.0);
    leader.claimed(seconds(3.0), seconds(3.1), &renewal, ClaimResult::Conflict);
    assert_eq!(leader.next(seconds(3.1), UNIX), Step::Read);
    leader.read(seconds(3.2), Ok(Some(record(100, Some("a")))));
    assert!(exits(&mut leader, 3.2) && !leads(&leader, 3.2));

    // The backup had no Lease, so the leader creates it again.
    let mut leader = candidate();
    leader.read(seconds(1.0), Ok(None));
    win(&mut leader, 1.0, 500);
    leader.shown(seconds(2.0), None);
    leader.read(seconds(2.0), Ok(None));
    win(&mut leader, 2.0, 100);
    assert!(exits(&mut leader, 2.1) && !leads(&leader, 2.1));

    // A watch can be late, so a standby reads the Lease after it.
    for (read, ends) in [(500, false), (101, true)] {
        let mut standby = candidate();
        standby.read(seconds(1.0), Ok(Some(record(500, Some("b")))));
        standby.shown(seconds(3.0), Some(record(100, Some("b"))));
        assert_eq!(standby.next(seconds(3.0), UNIX), Step::Read);
        standby.read(seconds(3.1), Ok(Some(record(read, Some("b")))));
        assert_eq!(exits(&mut standby, 3.1), ends, "{read}");
    }
}
