//! Several programs share one rule through the model in memory, with a paused clock. The tests of the agent use real
//! stores.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;
use weir_core::{Quota, Strategy};
use weir_seats::MemoryStore;

use super::{Claim, KeyView, OnLoss, Refused, SharedKeys, SharedLimiter, SharedRule, request::micros};
use crate::{
    backend::Backend,
    budget::KeyBudget,
    client::{StoreClient, StoreParts},
    tests::oracle::excess,
};

#[path = "ban_tests.rs"]
mod bans;
#[path = "budget_tests.rs"]
mod budgets;
#[path = "clock_tests.rs"]
mod clocks;
#[path = "loss_tests.rs"]
mod losses;
#[path = "queue_tests.rs"]
mod queues;
#[path = "reset_tests.rs"]
mod resets;
#[path = "return_tests.rs"]
mod returns;

const EPOCH: Duration = Duration::from_secs(1_790_000_000);

struct World {
    start: Instant,
    store: Arc<MemoryStore>,
    keys: Arc<KeyBudget>,
}

impl World {
    fn new() -> Self {
        Self { start: Instant::now(), store: Arc::default(), keys: Arc::default() }
    }

    /// A program whose rules have at most this many keys together.
    fn with_keys(most: usize) -> Self {
        Self { keys: Arc::new(KeyBudget::new(most)), ..Self::new() }
    }

    fn client(&self) -> Arc<StoreClient> {
        self.client_ahead(Duration::ZERO, &Arc::default())
    }

    /// A client whose clocks are ahead: the monotonic one by the first time, and the system's one by the second, in
    /// microseconds. The second clock is also that of the store.
    fn client_ahead(&self, ahead: Duration, wall_ahead: &Arc<AtomicU64>) -> Arc<StoreClient> {
        let (start, store, wall_ahead) = (self.start, Arc::clone(&self.store), Arc::clone(wall_ahead));
        let wall_clock = move || EPOCH + start.elapsed() + Duration::from_micros(wall_ahead.load(Relaxed));
        StoreClient::start(StoreParts {
            clock: Box::new(move || EPOCH + start.elapsed() + ahead),
            wall_clock: Box::new(wall_clock),
            ..self.parts(move || Ok(Backend::Memory(Arc::clone(&store))))
        })
    }

    /// A client that reaches the store only while this is true.
    fn client_while(&self, is_there: &Arc<AtomicBool>) -> Arc<StoreClient> {
        let (store, there) = (Arc::clone(&self.store), Arc::clone(is_there));
        StoreClient::start(self.parts(move || match there.load(Relaxed) {
            true => Ok(Backend::Memory(Arc::clone(&store))),
            false => Err("gone".to_owned()),
        }))
    }

    fn parts(&self, open: impl Fn() -> Result<Backend, String> + Send + Sync + 'static) -> StoreParts {
        let start = self.start;
        let parts = StoreParts::new("shop/limits", open, move || EPOCH + start.elapsed());
        StoreParts { keys: Arc::clone(&self.keys), ..parts }
    }

    fn now(&self) -> u64 {
        u64::try_from((EPOCH + self.start.elapsed()).as_micros()).expect("fits")
    }
}

fn rule(stamp: u64, quota: Quota, on_loss: OnLoss) -> SharedRule {
    SharedRule::new("shop/api.per-client", stamp, &[vec![(0, quota)]], on_loss, 4, 1_000).expect("a rule")
}

fn limiter_of(client: Arc<StoreClient>, quota: Quota, on_loss: OnLoss) -> Arc<SharedLimiter> {
    SharedLimiter::new(client, rule(1, quota, on_loss))
}

fn quota(strategy: Strategy, requests: u64, seconds: u64, burst: Option<u64>) -> Quota {
    Quota::new(strategy, requests, Duration::from_secs(seconds), burst).expect("a quota")
}

async fn request(limiter: &SharedLimiter, cost: u32, patience: Duration) -> Result<(), Refused> {
    match limiter.claim(7, cost, patience) {
        Claim::Granted(grant) => grant.settle(),
        Claim::Refused(refused) => return Err(refused),
        Claim::AskStore => limiter.ask(7, cost, patience).await?.settle(),
    }
    Ok(())
}

/// Returns how many of these requests are admitted, without a wait.
async fn admitted_of(limiter: &SharedLimiter, requests: u32, cost: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u32::from(request(limiter, cost, Duration::ZERO).await.is_ok());
    }
    admitted
}

/// Makes the store reachable or not, and waits until the client knows it. No request asks the store meanwhile, so its probes
/// show this.
async fn reach(client: &StoreClient, is_there: &AtomicBool, reached: bool) {
    is_there.store(reached, Relaxed);
    client.forget_backend();
    while client.condition().reached != reached {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn five_in_fifteen_minutes_are_five_over_ten_programs() {
    for strategy in [Strategy::TokenBucket, Strategy::FixedWindow, Strategy::SlidingWindowLog] {
        let world = World::new();
        let quota = quota(strategy, 5, 900, None);
        let programs: Vec<_> = (0..10).map(|_| limiter_of(world.client(), quota, OnLoss::Closed)).collect();
        let mut admitted = 0;
        for _ in 0..10 {
            for program in &programs {
                admitted += u32::from(request(program, 1, Duration::ZERO).await.is_ok());
            }
        }
        assert_eq!(admitted, 5, "{strategy:?}");
        // Five round trips admit requests. Each of the ten programs makes one more round trip, which is refused, and
        // two probes.
        let trips: u64 = programs.iter().map(|program| program.client().stats().trips).sum();
        assert!(trips <= 5 + 10 + 2 * 10, "{strategy:?}: {trips} trips");
    }
}

/// A limit that refills slowly loses no units to seats of a program whose clients have left.
#[tokio::test(start_paused = true)]
async fn a_hundred_a_day_are_a_hundred_over_two_programs() {
    for strategy in [Strategy::TokenBucket, Strategy::Gcra, Strategy::FixedWindow, Strategy::SlidingWindowCounter] {
        let world = World::new();
        let burst = (strategy == Strategy::Gcra).then_some(100);
        let rule = rule(1, quota(strategy, 100, 86_400, burst), OnLoss::Closed);
        let mut admitted = 0;
        for program in [(); 2].map(|()| SharedLimiter::new(world.client(), rule.clone())) {
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                admitted += u32::from(request(&program, 1, Duration::ZERO).await.is_ok());
            }
        }
        assert_eq!(admitted, 100, "{strategy:?}");
    }
}

/// A program that was refused asks again within two seconds, and so it learns that another program gave units back.
#[tokio::test(start_paused = true)]
async fn units_that_one_program_gives_back_serve_another() {
    for strategy in [Strategy::TokenBucket, Strategy::FixedWindow, Strategy::SlidingWindowLog] {
        let world = World::new();
        let rule = rule(1, quota(strategy, 5, 900, None), OnLoss::Closed).with_credits();
        let [one, other] = [(); 2].map(|()| SharedLimiter::new(world.client(), rule.clone()));
        assert_eq!(admitted_of(&one, 5, 1).await, 5);
        assert!(request(&other, 1, Duration::ZERO).await.is_err(), "{strategy:?}");
        one.credit(7, 2);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(admitted_of(&other, 3, 1).await, 2, "{strategy:?}");
        let trips = other.client().stats().trips;
        assert!(request(&other, 1, Duration::ZERO).await.is_err(), "{strategy:?}");
        assert_eq!(other.client().stats().trips, trips, "{strategy:?}: a refused key is not asked for immediately");
    }
}

/// Units that are given back while the store is lost are reported once, when it returns.
#[tokio::test(start_paused = true)]
async fn units_are_given_back_to_a_store_that_was_lost() {
    let (world, there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let rule = rule(1, quota(Strategy::FixedWindow, 5, 86_400, None), OnLoss::Closed).with_credits();
    let one = SharedLimiter::new(world.client_while(&there), rule.clone());
    let other = SharedLimiter::new(world.client(), rule);
    request(&one, 5, Duration::ZERO).await.expect("it is free");
    reach(one.client(), &there, false).await;
    one.credit(7, 2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(request(&other, 1, Duration::ZERO).await.is_err(), "nothing can have been reported");
    there.store(true, Relaxed);
    let mut admitted = 0;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        admitted += u32::from(request(&other, 1, Duration::ZERO).await.is_ok());
    }
    assert_eq!(admitted, 2);
}

/// A question carries at most 2^20 units. The rest comes with the next question.
#[tokio::test(start_paused = true)]
async fn all_units_that_are_given_back_together_arrive() {
    let world = World::new();
    let limit = 3_000_000;
    let rule = rule(1, quota(Strategy::FixedWindow, limit, 86_400, None), OnLoss::Closed).with_credits();
    let [one, other] = [(); 2].map(|()| SharedLimiter::new(world.client(), rule.clone()));
    assert_eq!(admitted_of(&one, 3, 1_000_000).await, 3);
    (0..20).for_each(|_| one.credit(7, 100_000));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(admitted_of(&other, 30, 100_000).await, 20);
}

/// Several programs send more requests than the limit allows. The oracle checks all admissions. Together, the programs
/// admit at least 95 % of what the limit allows.
#[tokio::test(start_paused = true)]
async fn programs_with_seats_admit_what_one_would() {
    let world = World::new();
    let quota = quota(Strategy::TokenBucket, 1_000, 1, Some(1_000));
    let admissions: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
    let programs: Vec<_> = (0..5).map(|_| limiter_of(world.client(), quota, OnLoss::Closed)).collect();
    for _ in 0..4_000 {
        for program in &programs {
            if request(program, 1, Duration::ZERO).await.is_ok() {
                admissions.lock().expect("no panic").push((world.now(), 1));
            }
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let admissions = admissions.lock().expect("no panic");
    assert_eq!(excess(quota, &admissions), [""; 0]);
    let possible = 1_000 + 1_000 * u64::try_from(world.start.elapsed().as_millis()).expect("fits") / 1_000;
    assert!(admissions.len() as u64 * 100 >= possible * 95, "{} of {possible}", admissions.len());
    let trips: u64 = programs.iter().map(|program| program.client().stats().trips).sum();
    println!("{} admitted of {possible} with {trips} trips for 20000 requests", admissions.len());
    assert!(programs.iter().all(|program| program.client().stats().prefetched > 0));
}

/// A program that ends has used some of its seats. The others get the rest immediately.
#[tokio::test(start_paused = true)]
async fn a_program_that_ends_leaves_its_seats_to_others() {
    for strategy in [Strategy::TokenBucket, Strategy::FixedWindow] {
        let world = World::new();
        let rule = rule(1, quota(strategy, 1_000, 86_400, None), OnLoss::Closed);
        let [one, other] = [(); 2].map(|()| SharedLimiter::new(world.client(), rule.clone()));
        for _ in 0..100 {
            request(&one, 1, Duration::ZERO).await.expect("it is free");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let seats = one.known(7, 1).seats;
        assert!(seats > 0, "{strategy:?}");
        // This client disconnects while its question is on the way, and the answer brings more seats.
        drop(one.ask(7, seats + 100, Duration::ZERO));
        one.client().close(Duration::from_secs(1)).await;
        assert_eq!(one.known(7, 1).seats, 0, "{strategy:?}");
        assert_eq!(admitted_of(&other, 1_000, 1).await, 900, "{strategy:?}");
        assert_eq!(one.client().stats().lost, 0, "{strategy:?}");
    }
}

/// The end of a program does not wait for a store that does not answer.
#[tokio::test(start_paused = true)]
async fn a_program_ends_without_its_store() {
    let world = World::new();
    let is_there = Arc::new(AtomicBool::new(true));
    let client = world.client_while(&is_there);
    let limiter = limiter_of(Arc::clone(&client), quota(Strategy::TokenBucket, 1_000, 60, None), OnLoss::Closed);
    assert_eq!(admitted_of(&limiter, 100, 1).await, 100);
    is_there.store(false, Relaxed);
    client.forget_backend();
    let begun = Instant::now();
    client.close(Duration::from_millis(500)).await;
    assert!(begun.elapsed() <= Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_go_leaves_its_seat_to_another() {
    let world = World::new();
    let limiter = limiter_of(world.client(), quota(Strategy::FixedWindow, 1, 900, None), OnLoss::Closed);
    let granted = limiter.ask(7, 1, Duration::ZERO).await.expect("one is free");
    assert!(request(&limiter, 1, Duration::ZERO).await.is_err());
    drop(granted);
    assert!(request(&limiter, 1, Duration::ZERO).await.is_ok());
    assert!(request(&limiter, 1, Duration::ZERO).await.is_err());
    // Another case: a client disconnects while its request waits.
    let limiter =
        SharedLimiter::new(world.client(), SharedRule { counters: "other".into(), ..(*limiter.rule()).clone() });
    drop(limiter.ask(7, 1, Duration::ZERO));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(request(&limiter, 1, Duration::ZERO).await.is_ok());
    assert!(request(&limiter, 1, Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn requests_with_patience_get_their_slots() {
    let world = World::new();
    for (strategy, seconds) in [(Strategy::LeakyBucket, 3), (Strategy::Gcra, 3), (Strategy::FixedWindow, 0)] {
        let burst = if strategy == Strategy::LeakyBucket { Some(5) } else { None };
        let quota = quota(strategy, 1, 1, burst);
        let counters = format!("{strategy:?}");
        let rule = SharedRule { counters, ..rule(1, quota, OnLoss::Closed) };
        let limiter = SharedLimiter::new(world.client(), rule);
        // Waits for the start of a second, so that each strategy begins at the start of a window.
        let rest = 1_000_000 - world.now() % 1_000_000;
        tokio::time::sleep(Duration::from_micros(rest)).await;
        let begun = Instant::now();
        let all = (0..6).map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(
                async move { request(&limiter, 1, Duration::from_millis(3_500)).await.map(|()| Instant::now()) },
            )
        });
        let all: Vec<_> = all.collect();
        let mut times = VecDeque::new();
        for one in all {
            times.extend(one.await.expect("no panic"));
        }
        let times: Vec<_> = times.into_iter().map(|time| (time - begun).as_millis()).collect();
        assert_eq!(times.len(), 4, "{strategy:?}: {times:?}");
        for (index, &time) in (0..).zip(&times) {
            let near = index * 1_000..index * 1_000 + 120;
            assert!(seconds == 0 || near.contains(&time), "{strategy:?}: {times:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_became_known_later_is_charged() {
    let world = World::new();
    let bucket = quota(Strategy::TokenBucketWithDebt, 10, 1, Some(10));
    let limiter = limiter_of(world.client(), bucket, OnLoss::Closed);
    assert!(request(&limiter, 1, Duration::ZERO).await.is_ok());
    limiter.owe(7, 49);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(request(&limiter, 1, Duration::ZERO).await.is_err(), "50 of 10 + 30 are used");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(request(&limiter, 1, Duration::ZERO).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_change_counts_at_once() {
    let world = World::new();
    let window = |requests| quota(Strategy::FixedWindow, requests, 900, None);
    let limiter = limiter_of(world.client(), window(3), OnLoss::Closed);
    let mut admitted = 0;
    for (stamp, requests, expected) in [(1, 3, 3), (2, 8, 8), (3, 5, 8), (4, 9, 9)] {
        limiter.retune(rule(stamp, window(requests), OnLoss::Closed));
        admitted += admitted_of(&limiter, 20, 1).await;
        assert_eq!(admitted, expected, "with {requests}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_store_decides_as_the_rule_says() {
    for (on_loss, expected) in [(OnLoss::Open, 40), (OnLoss::Closed, 0), (OnLoss::LocalShare, 10)] {
        let world = World::new();
        let is_there = Arc::new(AtomicBool::new(true));
        let client = world.client_while(&is_there);
        let limiter = limiter_of(client, quota(Strategy::TokenBucket, 40, 1, Some(40)), on_loss);
        assert!(request(&limiter, 1, Duration::ZERO).await.is_ok());
        reach(limiter.client(), &is_there, false).await;
        let condition = limiter.client().condition();
        assert_eq!((condition.reached, condition.error.as_deref()), (false, Some("the store is lost: gone")));
        let mut admitted = 0;
        for _ in 0..40 {
            admitted += u32::from(request(&limiter, 1, Duration::ZERO).await.is_ok());
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        // A share has refilled since the first missed answer, half a second before.
        let refilled = if on_loss == OnLoss::LocalShare { 6 } else { 0 };
        let near = expected - expected / 10..=expected + refilled + 2;
        assert!(near.contains(&admitted), "{on_loss:?}: {admitted}, not about {expected}");
        reach(limiter.client(), &is_there, true).await;
    }
}

/// The limit refills while the store is lost. So when the store returns, it charges only what still counts, not all that
/// the shares admitted since.
#[tokio::test(start_paused = true)]
async fn a_long_loss_does_not_use_up_the_limit_afterwards() {
    for strategy in [Strategy::TokenBucket, Strategy::Gcra, Strategy::FixedWindow, Strategy::SlidingWindowCounter] {
        let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
        let quota = quota(strategy, 100, 1, (strategy == Strategy::Gcra).then_some(100));
        let limiters: Vec<_> =
            (0..4).map(|_| limiter_of(world.client_while(&is_there), quota, OnLoss::LocalShare)).collect();
        let mut admissions = Vec::new();
        for (there, seconds) in [(true, 3), (false, 60), (true, 10)] {
            is_there.store(there, Relaxed);
            if !there {
                limiters.iter().for_each(|limiter| limiter.client().forget_backend());
            }
            let end = world.start.elapsed() + Duration::from_secs(seconds);
            let before = admissions.len();
            while world.start.elapsed() < end {
                for limiter in &limiters {
                    if request(limiter, 1, Duration::ZERO).await.is_ok() {
                        admissions.push((world.now(), 1));
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let (admitted, possible) = (admissions.len() - before, 100 * usize::try_from(seconds).expect("small"));
            assert!(admitted * 100 >= possible * 80, "{strategy:?}, there: {there}: {admitted} of {possible}");
        }
        // While some programs have returned and others have not, the others admit their shares in addition to the
        // limit. Before and after that, the limit is exact.
        let [lost, settled] = [(3, 63), (69, 73)].map(|(from, to): (u64, u64)| {
            let range = micros(EPOCH + Duration::from_secs(from))..micros(EPOCH + Duration::from_secs(to));
            admissions.iter().copied().filter(|(at, _)| range.contains(at)).collect::<Vec<_>>()
        });
        assert_eq!(excess(quota, &lost).first(), None, "{strategy:?}");
        assert_eq!(excess(quota, &settled).first(), None, "{strategy:?}");
    }
}

/// The store returns for a moment, in which the program does not report what its share admitted. It does so later.
#[tokio::test(start_paused = true)]
async fn what_a_share_admitted_is_reported_after_the_next_loss() {
    let loss = Loss::of(quota(Strategy::FixedWindow, 40, 3_600, None)).await;
    assert_eq!(loss.admitted(1).await, 10);
    loss.set(true).await;
    loss.set(false).await;
    assert_eq!(loss.admitted(1).await, 0, "the second share begins without credit");
    loss.set(true).await;
    assert_eq!(loss.admitted(1).await, 30);
}

/// A store that is lost in one hour and returns in it, with the limiter of one of four programs.
struct Loss {
    limiter: Arc<SharedLimiter>,
    is_there: Arc<AtomicBool>,
}

impl Loss {
    fn rule(quota: Quota, sharers: u32) -> SharedRule {
        let rule = SharedRule::new("shop/api.per-client", 1, &[vec![(0, quota)]], OnLoss::LocalShare, sharers, 10_000);
        rule.expect("a rule")
    }

    /// Loses the store, and waits for the next hour, in which the share has its credit.
    async fn of(quota: Quota) -> Self {
        let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
        let limiter = SharedLimiter::new(world.client_while(&is_there), Self::rule(quota, 4));
        let loss = Self { limiter, is_there };
        assert!(request(&loss.limiter, 1, Duration::ZERO).await.is_ok());
        loss.set(false).await;
        assert!(request(&loss.limiter, 1, Duration::ZERO).await.is_err(), "the share begins without credit");
        tokio::time::sleep(Duration::from_secs(3_610)).await;
        loss
    }

    async fn set(&self, there: bool) {
        reach(self.limiter.client(), &self.is_there, there).await;
    }

    /// Returns how many of 50 requests are admitted.
    async fn admitted(&self, cost: u32) -> u32 {
        admitted_of(&self.limiter, 50, cost).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_loss_keeps_what_the_share_admitted() {
    let quota = quota(Strategy::FixedWindow, 40, 3_600, None);
    let loss = Loss::of(quota).await;
    assert_eq!(loss.admitted(1).await, 10);
    loss.limiter.retune(Loss::rule(quota, 8));
    assert_eq!(loss.admitted(1).await, 0, "the next share begins without credit");
    loss.set(true).await;
    assert_eq!(loss.admitted(1).await, 30);
}

/// What a share admitted before a change counts as if there had been no change: until the limit has refilled.
#[tokio::test(start_paused = true)]
async fn changes_during_a_loss_charge_no_more_than_one_share() {
    let bucket = quota(Strategy::TokenBucket, 40, 3_600, None);
    let loss = Loss::of(bucket).await;
    for most_keys in 1_001..1_007 {
        assert_eq!(loss.admitted(1).await, 10);
        loss.limiter.retune(SharedRule { most_keys, ..Loss::rule(bucket, 4) });
        assert_eq!(loss.admitted(1).await, 0, "the next share begins without credit");
        tokio::time::sleep(Duration::from_secs(3_610)).await;
    }
    assert_eq!(loss.admitted(1).await, 10);
    loss.set(true).await;
    assert_eq!(loss.admitted(1).await, 30);
}

#[tokio::test(start_paused = true)]
async fn what_becomes_known_later_is_charged_to_the_share() {
    let loss = Loss::of(quota(Strategy::FixedWindow, 1_000, 3_600, None)).await;
    let mut admitted = 0;
    for _ in 0..50 {
        if request(&loss.limiter, 1, Duration::ZERO).await.is_ok() {
            admitted += 1;
            loss.limiter.owe(7, 99);
        }
    }
    // The share has 250 units, and the third request exceeds it.
    assert_eq!(admitted, 3);
    loss.set(true).await;
    assert_eq!(loss.admitted(100).await, 7);
}

#[tokio::test(start_paused = true)]
async fn a_share_of_more_units_than_a_question_can_have_is_reported_whole() {
    let loss = Loss::of(quota(Strategy::FixedWindow, 10_000_000, 3_600, None)).await;
    assert_eq!(loss.admitted(500_000).await, 5);
    loss.set(true).await;
    assert_eq!(loss.admitted(500_000).await, 15);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_requests_sleep_still_reports() {
    let world = World::new();
    let programs =
        [(); 2].map(|()| limiter_of(world.client(), quota(Strategy::FixedWindow, 10, 3_600, None), OnLoss::Closed));
    assert_eq!(admitted_of(&programs[0], 10, 1).await, 10);
    let waiting = Arc::clone(&programs[0]);
    let sleeps = tokio::spawn(async move { request(&waiting, 1, Duration::from_secs(7_200)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    programs[0].credit(7, 1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(request(&programs[1], 1, Duration::ZERO).await.is_ok() || sleeps.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_no_question_can_have_is_never_admitted() {
    let world = World::new();
    let huge = quota(Strategy::FixedWindow, 1_000_000_000, 3_600, None);
    for on_loss in [OnLoss::Open, OnLoss::LocalShare] {
        let limiter = limiter_of(world.client(), huge, on_loss);
        assert!(request(&limiter, 1 << 20, Duration::ZERO).await.is_ok());
        let refused = request(&limiter, (1 << 20) + 1, Duration::ZERO).await.expect_err("too much");
        assert_eq!(refused.retry_after, None);
    }
}

/// A cost of 0 charges nothing and is never refused, whether the limit is used up or the store is lost.
#[tokio::test(start_paused = true)]
async fn a_cost_of_0_is_never_refused() {
    for strategy in Strategy::ALL {
        let (world, there) = (World::new(), Arc::new(AtomicBool::new(true)));
        let limiter = limiter_of(world.client_while(&there), quota(strategy, 2, 900, None), OnLoss::Closed);
        while request(&limiter, 1, Duration::ZERO).await.is_ok() {}
        for is_there in [true, false] {
            reach(limiter.client(), &there, is_there).await;
            for patience in [Duration::ZERO, Duration::from_secs(1)] {
                request(&limiter, 0, patience).await.unwrap_or_else(|refused| panic!("{strategy:?}: {refused:?}"));
                limiter.ask(7, 0, patience).await.expect("never refused").settle();
            }
            assert!(request(&limiter, 1, Duration::ZERO).await.is_err(), "{strategy:?}");
        }
    }
}

/// A question can report a part of what is owed. The store decides when it knows all of it.
#[tokio::test(start_paused = true)]
async fn a_debt_of_several_questions_comes_before_requests() {
    let world = World::new();
    let limit = quota(Strategy::FixedWindow, 3_000_000, 900, None);
    let limiter = limiter_of(world.client(), limit, OnLoss::Closed);
    request(&limiter, 1, Duration::ZERO).await.expect("it is free");
    limiter.owe(7, 4_000_000);
    request(&limiter, 1, Duration::ZERO).await.expect_err("the limit is used up");
}

/// Seats last 100 ms here. Units that the faster limit gives in this time are few for a limit of 100,000 per hour, too.
#[test]
fn each_limit_bounds_the_seats_by_itself() {
    let fast = (0, quota(Strategy::TokenBucket, 100, 1, Some(100)));
    let slow = (1, quota(Strategy::TokenBucket, 100_000, 3600, Some(100_000)));
    // By hand: 100 ms refill 10 units of the fast limit, and a thirty-second of the slow limit is 3,125.
    for (limits, expected) in [(vec![fast], 10), (vec![slow], 3_125), (vec![fast, slow], 10)] {
        let rule = SharedRule::new("shop/api.per-client", 1, &[limits], OnLoss::Closed, 4, 2).expect("a rule");
        assert_eq!(rule.set(0).wanted(1e6, Duration::ZERO), expected);
    }
}

/// A request that is refused because too many wait takes no place of another key.
#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_wait_evicts_no_key() {
    let world = World::new();
    let sets = [vec![(0, quota(Strategy::FixedWindow, 10, 900, None))]];
    let rule = SharedRule::new("shop/api.per-client", 1, &sets, OnLoss::Closed, 4, 2).expect("a rule");
    let limiter = SharedLimiter::new(world.client(), rule);
    for hash in [1, 2] {
        limiter.ask(hash, 1, Duration::ZERO).await.expect("it is free").settle();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    limiter.waiting.store(super::MOST_WAITING, Relaxed);
    assert!(limiter.ask(3, 1, Duration::ZERO).await.is_err());
    assert_eq!(limiter.keys(), SharedKeys { tracked: 2, capacity: 2, evicted: 0, overflowed: 1 });
    assert!([1, 2].into_iter().all(|hash| limiter.known(hash, 1).left.is_some()), "a key was evicted");
}

/// The limits of a key and their stamp are always of the same generation, for any change of the overrides.
#[tokio::test(start_paused = true)]
async fn overrides_belong_to_keys() {
    let world = World::new();
    let of = |requests| vec![(0, quota(Strategy::TokenBucket, requests, 1, Some(requests)))];
    let rule = |stamp, sets: &[Vec<_>], overrides: &[(u128, usize)]| {
        let rule = SharedRule::new("shop/api.per-client", stamp, sets, OnLoss::Closed, 4, 100).expect("a rule");
        rule.with_overrides(overrides.iter().copied())
    };
    let limiter = SharedLimiter::new(world.client(), rule(1, &[of(10), of(1), of(100)], &[(1, 1), (7, 2)]));
    assert_eq!(admitted_of(&limiter, 60, 1).await, 60);
    limiter.retune(rule(2, &[of(10), of(100)], &[(7, 1)]));
    limiter.owe(7, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(admitted_of(&limiter, 60, 1).await, 60);
    limiter.retune(rule(3, &[of(10)], &[]));
    assert!(admitted_of(&limiter, 60, 1).await <= 20);
}
