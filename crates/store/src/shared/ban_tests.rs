//! Bans of a rule that several programs share, with a paused clock.

use weir_seats::BanChange;

use super::*;

const LENGTH: Duration = Duration::from_secs(600);
const KEY: u128 = 7;

fn banning(stamp: u64, requests: u64) -> SharedRule {
    rule(stamp, quota(Strategy::TokenBucket, requests, 1, None), OnLoss::Open).with_ban(LENGTH)
}

/// Sends a request. Returns the rest of the ban if the key is banned.
async fn is_banned(limiter: &SharedLimiter) -> Option<Duration> {
    match request(limiter, 1, Duration::ZERO).await {
        Ok(()) => None,
        Err(refused) => refused.ban_rest,
    }
}

/// Waits for a condition, and looks for it at this interval. It must be true within a minute of the paused clock.
async fn until(millis: u64, mut condition: impl AsyncFnMut() -> bool) {
    let all = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("the condition within a minute");
}

async fn let_tasks_run() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_ban_is_in_force_in_all_programs_with_their_next_request() {
    let world = World::new();
    let programs: Vec<_> = (0..3).map(|_| SharedLimiter::new(world.client(), banning(1, 1_000))).collect();
    // The key is so busy that a program without a ban would hold seats.
    for _ in 0..1_000 {
        for program in &programs {
            assert_eq!(request(program, 1, Duration::ZERO).await, Ok(()));
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    programs[0].start_ban(KEY);
    let_tasks_run().await;
    for program in &programs {
        let rest = is_banned(program).await.expect("a ban");
        assert!(rest <= LENGTH && rest > LENGTH - Duration::from_millis(10), "{rest:?}");
    }
    // A banned key needs no question for each request.
    let trips = || programs.iter().map(|program| program.client().stats().trips).sum::<u64>();
    let before = trips();
    for _ in 0..500 {
        assert!(is_banned(&programs[1]).await.is_some());
    }
    assert_eq!(trips(), before);
    tokio::time::sleep(LENGTH).await;
    for program in &programs {
        assert_eq!(is_banned(program).await, None, "the ban has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ban_that_one_program_lifts_ends_in_all_programs() {
    let world = World::new();
    let programs: Vec<_> = (0..2).map(|_| SharedLimiter::new(world.client(), banning(1, 1_000))).collect();
    programs[0].start_ban(KEY);
    let_tasks_run().await;
    assert!(is_banned(&programs[1]).await.is_some());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!programs[0].is_lifted(KEY, Duration::from_secs(5)), "this only asks");
    let_tasks_run().await;
    assert!(!programs[0].is_lifted(KEY, Duration::from_secs(5)), "the ban is in force");
    assert_eq!(programs[1].lift_ban(KEY).await, Ok(true));
    assert_eq!(programs[1].lift_ban(KEY).await, Ok(false), "it is lifted already");
    assert_eq!(is_banned(&programs[1]).await, None);
    let mut waited = Duration::ZERO;
    while !programs[0].is_lifted(KEY, Duration::from_secs(5) + waited) && waited < LENGTH {
        tokio::time::sleep(Duration::from_millis(100)).await;
        waited += Duration::from_millis(100);
    }
    assert!(waited <= Duration::from_millis(1_200), "{waited:?}");
    assert_eq!(is_banned(&programs[0]).await, None);
}

/// The caller knows a ban of a key whose entry was evicted. Its next request waits for the store, because another program
/// can have lifted the ban. Without an answer, the ban stays in force.
#[tokio::test(start_paused = true)]
async fn a_request_of_an_evicted_key_asks_about_its_ban() {
    let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let program = SharedLimiter::new(world.client_while(&is_there), SharedRule { most_keys: 1, ..banning(1, 1_000) });
    let other = SharedLimiter::new(world.client(), banning(1, 1_000));
    let known = Duration::from_millis(100);
    let evict = || drop(program.claim(8, 1, Duration::ZERO));
    program.start_ban(KEY);
    tokio::time::sleep(known).await;
    evict();
    assert!(!program.is_lifted(KEY, known) && program.must_ask_about_ban(KEY));
    assert!(is_banned(&program).await.is_some_and(|rest| rest <= LENGTH - known), "the ban is in force");
    evict();
    is_there.store(false, Relaxed);
    program.client().forget_backend();
    assert!(!program.is_lifted(KEY, known));
    assert!(is_banned(&program).await.is_some(), "the store does not answer");
    is_there.store(true, Relaxed);
    assert_eq!(other.lift_ban(KEY).await, Ok(true));
    tokio::time::sleep(Duration::from_secs(2)).await;
    evict();
    assert!(!program.is_lifted(KEY, known) && program.must_ask_about_ban(KEY));
    assert_eq!(is_banned(&program).await, None, "the ban was lifted");
}

/// An answer from before the ban does not lift it.
#[tokio::test(start_paused = true)]
async fn an_old_answer_lifts_no_ban() {
    let world = World::new();
    let program = SharedLimiter::new(world.client(), banning(1, 1_000));
    assert_eq!(is_banned(&program).await, None);
    tokio::time::sleep(Duration::from_millis(10)).await;
    // The caller has started the ban, and reports it after this question.
    assert!(!program.is_lifted(KEY, Duration::from_millis(5)));
    assert!(program.is_lifted(KEY, Duration::from_secs(1)), "the answer is newer than the ban");
    program.start_ban(KEY);
    assert!(!program.is_lifted(KEY, Duration::from_secs(1)), "the store does not know the ban yet");
}

/// A new operator learns of a banned key, although its limits are at full credit.
#[tokio::test(start_paused = true)]
async fn a_ban_is_among_the_levels_that_a_program_reports() {
    let world = World::new();
    let program = SharedLimiter::new(world.client(), banning(1, 1_000));
    program.start_ban(KEY);
    let_tasks_run().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (questions, sent) = program.client().levels(10);
    let [question] = &questions[..] else { panic!("{questions:?}") };
    let ban = question.ban.expect("the part about the ban");
    assert!(sent.is_complete && ban.change == weir_wire::BanChange::Keep, "{question:?}");
    assert!(ban.seen > 0 && ban.for_micros == micros(LENGTH), "{question:?}");
    tokio::time::sleep(LENGTH).await;
    let (questions, sent) = program.client().levels(10);
    assert!(questions.is_empty() && sent.is_complete, "the ban has ended");
}

/// The question that starts the ban fails before the program has noticed the loss of the store.
#[tokio::test(start_paused = true)]
async fn a_ban_whose_report_failed_is_reported_again() {
    let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let cut_off = SharedLimiter::new(world.client_while(&is_there), banning(1, 1_000));
    let other = SharedLimiter::new(world.client(), banning(1, 1_000));
    assert_eq!((is_banned(&cut_off).await, is_banned(&other).await), (None, None));
    is_there.store(false, Relaxed);
    cut_off.client().forget_backend();
    assert!(cut_off.client().condition().reached, "the program must not know of the loss");
    cut_off.start_ban(KEY);
    until(1, async || !cut_off.client().condition().reached).await;
    is_there.store(true, Relaxed);
    until(100, async || is_banned(&other).await.is_some()).await;
}

/// The question that starts a ban is under way when the ban is lifted. Then it fails, or the store gets it after the lift.
#[tokio::test(start_paused = true)]
async fn a_lifted_ban_does_not_return_with_an_earlier_question() {
    for slow in [Duration::MAX, Duration::from_millis(100)] {
        let (world, is_first) = (World::new(), AtomicBool::new(true));
        let client = world.client_with(move |_, question| {
            let starts = question.ban.is_some_and(|ban| matches!(ban.change, BanChange::Start { .. }));
            Ok(if starts && is_first.swap(false, Relaxed) { slow } else { Duration::from_millis(1) })
        });
        let program = SharedLimiter::new(client, banning(1, 1_000));
        let other = SharedLimiter::new(world.client(), banning(1, 1_000));
        assert_eq!(is_banned(&program).await, None);
        program.start_ban(KEY);
        let_tasks_run().await;
        assert_eq!(program.lift_ban(KEY).await, Ok(false), "the store does not know it yet");
        assert_eq!(is_banned(&other).await, None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((is_banned(&program).await, is_banned(&other).await), (None, None), "{slow:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ban_reaches_a_store_that_was_lost() {
    let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let cut_off = SharedLimiter::new(world.client_while(&is_there), banning(1, 1_000));
    let other = SharedLimiter::new(world.client(), banning(1, 1_000));
    assert_eq!(is_banned(&cut_off).await, None);
    is_there.store(false, Relaxed);
    cut_off.client().forget_backend();
    until(20, async || {
        let _ = request(&cut_off, 1, Duration::ZERO).await;
        !cut_off.client().condition().reached
    })
    .await;
    cut_off.start_ban(KEY);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!cut_off.is_lifted(KEY, Duration::from_secs(100)));
    assert!(cut_off.lift_ban(KEY).await.is_err(), "the store must lift the ban, too");
    assert_eq!(is_banned(&other).await, None);
    is_there.store(true, Relaxed);
    until(100, async || is_banned(&other).await.is_some()).await;
    let rest = is_banned(&other).await.expect("a ban");
    assert!(rest < LENGTH - Duration::from_secs(100), "it began when the program started it: {rest:?}");
    assert!(rest > LENGTH - Duration::from_secs(110), "{rest:?}");
}

/// A program that knows the ban restores it in a store that has lost it, for example in a failover.
#[tokio::test(start_paused = true)]
async fn a_ban_that_the_store_lost_is_restored() {
    let (world, replica) = (World::new(), World::new());
    let (is_there, is_replica) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (there, moved) = (Arc::clone(&is_there), Arc::clone(&is_replica));
    let stores = [Arc::clone(&world.store), Arc::clone(&replica.store)];
    let client = StoreClient::start(world.parts(move || match there.load(Relaxed) {
        true => Ok(Backend::Memory(Arc::clone(&stores[usize::from(moved.load(Relaxed))]))),
        false => Err("gone".to_owned()),
    }));
    let program = SharedLimiter::new(client, banning(1, 1_000));
    let other = SharedLimiter::new(replica.client(), banning(1, 1_000));
    program.start_ban(KEY);
    let_tasks_run().await;
    assert!(is_banned(&program).await.is_some());
    is_there.store(false, Relaxed);
    program.client().forget_backend();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_banned(&program).await.is_some(), "a lost store ends no ban");
    until(100, async || {
        program.is_lifted(KEY, Duration::from_secs(2));
        !program.client().condition().reached
    })
    .await;
    is_replica.store(true, Relaxed);
    is_there.store(true, Relaxed);
    until(100, async || program.client().condition().reached).await;
    assert_eq!(is_banned(&other).await, None, "the replica has no ban");
    // After a question without an answer, the program waits before it asks again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!program.is_lifted(KEY, Duration::from_secs(9)), "this only asks");
    let_tasks_run().await;
    assert!(!program.is_lifted(KEY, Duration::from_secs(9)));
    let rest = is_banned(&other).await.expect("a ban");
    assert!(rest < LENGTH - Duration::from_secs(2), "{rest:?}");
}

/// A change of the length applies to bans in force. A rule without a ban ends them.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_rule_changes_bans_in_force() {
    let world = World::new();
    let programs: Vec<_> = (0..2).map(|_| SharedLimiter::new(world.client(), banning(1, 1_000))).collect();
    programs[0].start_ban(KEY);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(is_banned(&programs[1]).await.is_some());
    let shorter = |stamp| banning(stamp, 1_000).with_ban(Duration::from_secs(90));
    programs.iter().for_each(|program| program.retune(shorter(2)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(is_banned(&programs[1]).await, None);
    programs[0].start_ban(KEY);
    let_tasks_run().await;
    let without = rule(3, quota(Strategy::TokenBucket, 1_000, 1, None), OnLoss::Open);
    programs[0].retune(without);
    assert_eq!(request(&programs[0], 1, Duration::ZERO).await, Ok(()));
}
