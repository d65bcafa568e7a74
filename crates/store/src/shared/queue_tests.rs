//! Tests requests that wait for slots, whose clients leave.

use tokio::{task::JoinHandle, time::sleep};

use super::*;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// A request with this patience. The task ends with the time at which it went, in milliseconds.
fn begin(limiter: &Arc<SharedLimiter>, patience: u64, start: Instant) -> JoinHandle<Option<u64>> {
    let limiter = Arc::clone(limiter);
    tokio::spawn(async move {
        request(&limiter, 1, MILLIS(patience)).await.ok()?;
        Some(u64::try_from(start.elapsed().as_millis()).expect("short"))
    })
}

fn limiter(world: &World, requests: u64) -> Arc<SharedLimiter> {
    SharedLimiter::new(world.client(), rule(1, quota(Strategy::Gcra, requests, 1, None), OnLoss::Closed))
}

#[tokio::test(start_paused = true)]
async fn the_requests_behind_a_client_that_leaves_move_forward() {
    let world = World::new();
    let limiter = limiter(&world, 2);
    let start = Instant::now();
    let mut all = Vec::new();
    for _ in 0..9 {
        all.push(begin(&limiter, 9_000, start));
        sleep(MILLIS(10)).await;
    }
    sleep(MILLIS(110)).await;
    for leaver in all.drain(2..7) {
        leaver.abort();
    }
    sleep(MILLIS(100)).await;
    all.push(begin(&limiter, 9_000, start));
    for (one, half) in all.into_iter().zip(0..) {
        let went = one.await.expect("no panic").expect("it has a slot");
        assert!((half * 500..half * 500 + 20).contains(&went), "{half}: {went}");
    }
}

/// Two clients wait, and others join the queue all the time and leave immediately.
#[tokio::test(start_paused = true)]
async fn clients_that_leave_take_no_slots() {
    let world = World::new();
    let limiter = limiter(&world, 10);
    let start = Instant::now();
    let leavers = (0..2).map(|index| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            sleep(MILLIS(index)).await;
            while start.elapsed() < Duration::from_secs(10) {
                let leaver = begin(&limiter, 1_000, start);
                sleep(MILLIS(50)).await;
                leaver.abort();
            }
        })
    });
    let leavers: Vec<_> = leavers.collect();
    let waiting = (0..2).map(|_| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let mut served = 0;
            while start.elapsed() < Duration::from_secs(10) {
                match begin(&limiter, 1_000, start).await.expect("no panic") {
                    Some(_) => served += 1,
                    None => sleep(MILLIS(10)).await,
                }
            }
            served
        })
    });
    let mut served = 0;
    for one in waiting.collect::<Vec<_>>() {
        served += one.await.expect("no panic");
    }
    for one in leavers {
        one.await.expect("no panic");
    }
    // A leaver is served if it comes first at a slot.
    assert!((80..=102).contains(&served), "{served} of 100");
}

#[tokio::test(start_paused = true)]
async fn free_slots_return_to_the_store() {
    let world = World::new();
    let [one, other] = [(); 2].map(|()| limiter(&world, 2));
    let start = Instant::now();
    let all: Vec<_> = (0..9).map(|_| begin(&one, 9_000, start)).collect();
    sleep(MILLIS(10)).await;
    all.iter().for_each(JoinHandle::abort);
    // The slots last until 4,000 ms. They end after a second, and a sweep returns their seats.
    sleep(MILLIS(2_490)).await;
    let went = begin(&other, 9_000, start).await.expect("no panic").expect("it has a slot");
    assert!(went < 3_000, "{went}");
    assert!(one.queues.is_empty());
}

/// All clients arrive and leave at random. The oracle counts the admissions of each interval.
#[tokio::test(start_paused = true)]
async fn slots_that_change_hands_admit_no_more_than_the_limit() {
    const RATE: u64 = 20;
    for seed in 0..20 {
        let mut random = weir_fuzz::Random::new(seed);
        let world = World::new();
        let programs = [(); 2].map(|()| limiter(&world, RATE));
        let start = Instant::now();
        let mut waiting: Vec<JoinHandle<Option<u64>>> = Vec::new();
        let mut all = Vec::new();
        for _ in 0..400 {
            match random.below(3) {
                0 if !waiting.is_empty() => {
                    let leaver = waiting.swap_remove(random.below(waiting.len()));
                    leaver.abort();
                    all.push(leaver);
                }
                _ => waiting.push(begin(&programs[random.below(2)], random.below(2_000) as u64, start)),
            }
            sleep(MILLIS(random.below(40) as u64)).await;
        }
        all.extend(waiting);
        let mut went = Vec::new();
        for one in all {
            went.extend(one.await.ok().flatten());
        }
        went.sort_unstable();
        for (first, &from) in went.iter().enumerate() {
            for (count, &until) in (1..).zip(&went[first..]) {
                // One request at each end, and a millisecond of rounding at each end.
                assert!(count <= 2 + (until - from + 2) * RATE / 1_000, "seed {seed}: {count} in {from}..{until}");
            }
        }
        assert!(went.len() > 80, "seed {seed}: {}", went.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_limit_ends_free_slots() {
    let world = World::new();
    let limiter = limiter(&world, 2);
    let start = Instant::now();
    let all: Vec<_> = (0..9).map(|_| begin(&limiter, 9_000, start)).collect();
    sleep(MILLIS(10)).await;
    all.iter().for_each(JoinHandle::abort);
    sleep(MILLIS(10)).await;
    limiter.retune(rule(2, quota(Strategy::Gcra, 1_000, 1, None), OnLoss::Closed));
    let went = begin(&limiter, 9_000, start).await.expect("no panic").expect("it has a slot");
    assert!(went < 100, "{went}");
}

/// The last waiting request goes, and free slots are left behind it.
#[tokio::test(start_paused = true)]
async fn free_slots_last_for_a_second() {
    let world = World::new();
    let limiter = limiter(&world, 10);
    let start = Instant::now();
    let mut all: Vec<_> = (0..11).map(|_| begin(&limiter, 1_000, start)).collect();
    sleep(MILLIS(50)).await;
    all.drain(2..).for_each(|leaver| leaver.abort());
    sleep(MILLIS(60)).await;
    for hundred in 2..8 {
        all.push(begin(&limiter, 1_000, start));
        sleep(MILLIS(if hundred == 7 { 0 } else { 5 })).await;
    }
    for (one, tenth) in all.into_iter().zip(0..) {
        let went = one.await.expect("no panic").expect("it has a slot");
        assert!((tenth * 100..tenth * 100 + 20).contains(&went), "{tenth}: {went}");
    }
}

/// Another server answers, or the store's clock is set, while requests wait.
#[tokio::test(start_paused = true)]
async fn a_store_whose_clock_jumps_releases_no_slot_early() {
    for jump in [3_000_000, -3_000_000] {
        let world = World::new();
        let limiter = limiter(&world, 10);
        let start = Instant::now();
        let all: Vec<_> = (0..40).map(|_| begin(&limiter, 4_500, start)).collect();
        sleep(MILLIS(250)).await;
        limiter.client().learn_time(world.now().saturating_add_signed(jump));
        for (one, tenth) in all.into_iter().zip(0..) {
            let went = one.await.expect("no panic").expect("it has a slot");
            assert!((tenth * 100..tenth * 100 + 20).contains(&went), "{jump} {tenth}: {went}");
        }
    }
}

/// Another program may have banned the key, so each new request asks.
#[tokio::test(start_paused = true)]
async fn a_rule_with_a_ban_gives_no_free_slot() {
    let world = World::new();
    let rule = rule(1, quota(Strategy::Gcra, 2, 1, None), OnLoss::Closed).with_ban(Duration::from_secs(60));
    let [one, other] = [(); 2].map(|()| SharedLimiter::new(world.client(), rule.clone()));
    let start = Instant::now();
    let mut all: Vec<_> = (0..9).map(|_| begin(&one, 9_000, start)).collect();
    sleep(MILLIS(10)).await;
    all.drain(2..).for_each(|leaver| leaver.abort());
    other.start_ban(7);
    sleep(MILLIS(100)).await;
    assert_eq!(begin(&one, 9_000, start).await.expect("no panic"), None, "the key is banned");
}
