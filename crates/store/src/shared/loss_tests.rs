//! Tests with a store that pauses, answers some questions with errors, or fails again and again.

use std::sync::{OnceLock, Weak};

use tokio::time::sleep;
use weir_seats::{Key, Left, StoreError, Take};

use super::*;
use crate::{backend::faulty::Faulty, lock::lock};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

impl World {
    /// A client of the store, in which the answer to each question takes this time, or is this error.
    pub(super) fn client_with(
        &self,
        faults: impl Fn(&Key, &Take<'_>) -> Result<Duration, StoreError> + Send + Sync + 'static,
    ) -> Arc<StoreClient> {
        self.client_of(true, faults)
    }

    /// A client of a store that takes seats back or not.
    pub(super) fn client_of(
        &self,
        takes_back: bool,
        faults: impl Fn(&Key, &Take<'_>) -> Result<Duration, StoreError> + Send + Sync + 'static,
    ) -> Arc<StoreClient> {
        let (store, faults) = (Arc::clone(&self.store), Arc::new(faults));
        StoreClient::start(self.parts(move || {
            let faults = Arc::clone(&faults);
            let faults = Box::new(move |key: &Key, question: &Take<'_>| faults(key, question));
            Ok(Backend::Faulty(Faulty { store: Arc::clone(&store), faults, takes_back }))
        }))
    }
}

async fn request_of(limiter: &SharedLimiter, hash: u128) -> Result<(), Refused> {
    left_after(limiter, hash).await.map(drop)
}

/// Returns how many of these requests of a key are admitted.
async fn admitted_of_key(limiter: &SharedLimiter, hash: u128, requests: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u32::from(request_of(limiter, hash).await.is_ok());
    }
    admitted
}

/// What an admitted request leaves.
async fn left_after(limiter: &SharedLimiter, hash: u128) -> Result<Option<Left>, Refused> {
    let grant = match limiter.claim(hash, 1, Duration::ZERO) {
        Claim::Granted(grant) => grant,
        Claim::Refused(refused) => return Err(refused),
        Claim::AskStore => limiter.ask(hash, 1, Duration::ZERO).await?,
    };
    let left = grant.left();
    grant.settle();
    Ok(left)
}

/// A limiter whose store answers after one millisecond, except between two times.
async fn paused(pause: [u64; 2]) -> Arc<SharedLimiter> {
    let world = World::new();
    let start = world.start;
    let client = world.client_with(move |_, _| {
        let at = u64::try_from(start.elapsed().as_millis()).expect("short");
        Ok(MILLIS(if (pause[0]..pause[1]).contains(&at) { pause[1] - at } else { 1 }))
    });
    let limiter = limiter_of(client, quota(Strategy::FixedWindow, 1_000, 600, None), OnLoss::LocalShare);
    for index in 0..400 {
        request_of(&limiter, index % 10).await.expect("it is free");
        sleep(MILLIS(2)).await;
    }
    assert_eq!(limiter.client().deadline(), MILLIS(5));
    sleep((start + MILLIS(pause[0])).saturating_duration_since(Instant::now())).await;
    limiter
}

/// Ten clients have almost all of their quota, and the store pauses for 30 ms, which is longer than the deadline.
#[tokio::test(start_paused = true)]
async fn a_short_pause_refuses_nobody() {
    let limiter = paused([3_000, 3_030]).await;
    let begun = Instant::now();
    let all = (0..10).map(|hash| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { request_of(&limiter, hash).await })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.expect("no panic").expect("it is free");
    }
    assert!(limiter.client().condition().reached);
    assert!(begun.elapsed() < MILLIS(100));
}

/// The store pauses for longer than a request waits, but it does not count as lost.
#[tokio::test(start_paused = true)]
async fn one_missed_question_says_try_again_soon() {
    let limiter = paused([3_000, 3_400]).await;
    let begun = Instant::now();
    let refused = request_of(&limiter, 3).await.expect_err("no answer");
    assert!((MILLIS(245)..MILLIS(260)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
    sleep(Duration::from_secs(1)).await;
    request_of(&limiter, 3).await.expect("it is free");
}

/// While the store is lost, a client comes again after a second, and later ever more rarely: the store can return.
#[tokio::test(start_paused = true)]
async fn a_loss_says_try_again_soon() {
    let limiter = paused([3_000, 600_000]).await;
    for hash in 0..10 {
        let _ = request_of(&limiter, hash).await;
    }
    assert!(!limiter.client().condition().reached);
    for (seconds, most) in [(0, 3), (30, 34), (300, 60)] {
        sleep(Duration::from_secs(seconds)).await;
        let refused = request_of(&limiter, 3).await.expect_err("the share begins without credit");
        assert!(refused.retry_after.is_some_and(|after| after <= Duration::from_secs(most)), "{refused:?}");
    }
}

/// A connection ends, and the store is still there.
#[tokio::test(start_paused = true)]
async fn a_question_is_asked_again_over_another_connection() {
    let (world, ends) = (World::new(), Arc::new(AtomicBool::new(false)));
    let end = Arc::clone(&ends);
    let client = world.client_with(move |_, _| match end.swap(false, Relaxed) {
        true => Err(StoreError::Lost("reset".to_owned())),
        false => Ok(MILLIS(1)),
    });
    let limiter = limiter_of(client, quota(Strategy::FixedWindow, 5, 600, None), OnLoss::LocalShare);
    for _ in 0..5 {
        ends.store(true, Relaxed);
        request_of(&limiter, 7).await.expect("it is free");
    }
}

/// A client that has waited for exactly `Retry-After` is admitted.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_as_it_was_told_is_admitted() {
    for strategy in [Strategy::Gcra, Strategy::TokenBucket] {
        let world = World::new();
        let limiter = limiter_of(world.client(), quota(strategy, 30, 60, None), OnLoss::LocalShare);
        for hash in 0..20 {
            let wait = loop {
                match request_of(&limiter, hash).await {
                    Ok(()) => {}
                    Err(refused) => break refused.retry_after.expect("a time"),
                }
            };
            sleep(wait).await;
            request_of(&limiter, hash).await.expect("it has waited");
        }
    }
}

/// A key whose first request arrives during a loss gets its share of each window that began since the loss, and of the
/// refill since then.
#[tokio::test(start_paused = true)]
async fn a_new_key_has_its_share_since_the_loss() {
    for strategy in [Strategy::FixedWindow, Strategy::TokenBucket] {
        let (world, there) = (World::new(), Arc::new(AtomicBool::new(true)));
        let rule = rule(1, quota(strategy, 40, 3_600, None), OnLoss::LocalShare);
        let limiter = SharedLimiter::new(world.client_while(&there), SharedRule { most_keys: 1, ..rule });
        request_of(&limiter, 1).await.expect("it is free");
        reach(limiter.client(), &there, false).await;
        assert!(request_of(&limiter, 2).await.is_err(), "{strategy:?}: the store has given this window to others");
        sleep(Duration::from_secs(3_700)).await;
        // The table has room for one key, so it forgets that the share of key 3 was used.
        for (hash, expected) in [(3, 10), (4, 10), (3, 0)] {
            assert_eq!(admitted_of_key(&limiter, hash, 20).await, expected, "{strategy:?} {hash}");
        }
    }
}

/// A rule that admits all requests while the store is lost charges nothing in this time, and admits also the keys for
/// which the table has no room.
#[tokio::test(start_paused = true)]
async fn an_open_rule_charges_nothing_while_the_store_is_lost() {
    let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let client = world.client_while(&is_there);
    let keys = 2;
    let sets = [vec![(0, quota(Strategy::FixedWindow, 100, 900, None))]];
    let rule = SharedRule::new("shop/api.per-client", 1, &sets, OnLoss::Open, 4, keys).expect("a rule");
    let limiter = SharedLimiter::new(Arc::clone(&client), rule);
    request_of(&limiter, 7).await.expect("it is free");
    is_there.store(false, Relaxed);
    client.forget_backend();
    while request_of(&limiter, 7).await.is_err() || client.current_loss().is_none() {
        sleep(MILLIS(10)).await;
    }
    // The table forgets no key with units to report, so it has no room for the last keys.
    for hash in 0..100 {
        request_of(&limiter, hash).await.expect("all are admitted");
        limiter.owe(hash, 1_000);
        limiter.credit(hash, 1);
    }
    is_there.store(true, Relaxed);
    while client.current_loss().is_some() {
        sleep(MILLIS(10)).await;
    }
    request_of(&limiter, 7).await.expect("99 are free");
}

/// One server of several does not answer. A rule that fails open charges no key of this server: not before it notices
/// the loss, and not for a response that ends after the loss.
#[tokio::test(start_paused = true)]
async fn an_open_rule_charges_nothing_for_a_key_whose_server_is_away() {
    for fault in [Ok(Duration::MAX), Err(StoreError::Lost("refused".to_owned()))] {
        let (world, is_there) = (World::new(), Arc::new(AtomicBool::new(true)));
        let there = Arc::clone(&is_there);
        let client = world.client_with(move |key, _| match key.as_str().ends_with("7}") && !there.load(Relaxed) {
            true => fault.clone(),
            false => Ok(MILLIS(1)),
        });
        let debt = quota(Strategy::TokenBucketWithDebt, 100, 3_600, Some(100));
        let limiter = limiter_of(client, debt, OnLoss::Open);
        request_of(&limiter, 7).await.expect("it is free");
        is_there.store(false, Relaxed);
        for step in 0..500 {
            request_of(&limiter, 0x10 * step).await.expect("its server is there");
            request_of(&limiter, 7).await.expect("all are admitted");
            limiter.owe(7, 50);
            sleep(MILLIS(9)).await;
        }
        assert!(limiter.client().condition().reached);
        is_there.store(true, Relaxed);
        limiter.owe(7, 50);
        sleep(Duration::from_secs(5)).await;
        request_of(&limiter, 7).await.expect("the server is back, and the limit is almost unused");
        limiter.owe(7, 200);
        sleep(MILLIS(20)).await;
        request_of(&limiter, 7).await.expect_err("the store counts again");
    }
}

/// A store that is full or read-only answers, but it cannot count. It counts as lost all that time, and when it can
/// count again, it charges only what still counts.
#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_write_is_lost_until_it_can() {
    let (world, is_full) = (World::new(), Arc::new(AtomicBool::new(false)));
    let full = Arc::clone(&is_full);
    let limiters: Vec<_> = (0..3)
        .map(|_| {
            let full = Arc::clone(&full);
            let client = world.client_with(move |_, question| {
                let writes = question.requests > 0 || question.owed > 0;
                if writes && full.load(Relaxed) { Err(StoreError::Refused("OOM".to_owned())) } else { Ok(MILLIS(1)) }
            });
            limiter_of(client, quota(Strategy::TokenBucket, 100, 1, Some(20)), OnLoss::LocalShare)
        })
        .collect();
    let mut admitted = [0; 5];
    for (step, (fails, seconds)) in [(false, 5), (true, 5), (true, 35), (false, 8), (false, 5)].into_iter().enumerate()
    {
        is_full.store(fails, Relaxed);
        for _ in 0..seconds * 60 {
            for limiter in &limiters {
                assert!(step != 2 || !limiter.client().condition().reached);
                admitted[step] += usize::from(request_of(limiter, 7).await.is_ok());
            }
            sleep(MILLIS(15)).await;
        }
    }
    // Of 100 per second, the three programs have 25 each.
    assert!(admitted[2] >= 35 * 65, "{admitted:?}");
    assert!(admitted[3] >= 3 * 80 && admitted[4] >= 5 * 85, "{admitted:?}");
}

/// A store that comes and goes: a share continues, and what it admitted does not pile up.
#[tokio::test(start_paused = true)]
async fn what_shares_admitted_does_not_pile_up() {
    let (world, there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let rule = rule(1, quota(Strategy::TokenBucket, 100, 1, Some(20)), OnLoss::LocalShare);
    let limiter = SharedLimiter::new(world.client_while(&there), rule);
    request_of(&limiter, 7).await.expect("it is free");
    let mut admitted = 0;
    for _ in 0..10 {
        for is_there in [false, true] {
            reach(limiter.client(), &there, is_there).await;
            for _ in 0..if is_there { 0 } else { 100 } {
                admitted += u32::from(request_of(&limiter, 7).await.is_ok());
                sleep(MILLIS(10)).await;
            }
        }
    }
    assert!(admitted >= 200, "{admitted}: about 25 in each of ten seconds");
    sleep(MILLIS(300)).await;
    request_of(&limiter, 7).await.expect("the store has refilled");
}

/// A window begins during the first loss, and gives a share. Then the store is back for a moment, and answers about the
/// key. The next losses give nothing more in this window.
#[tokio::test(start_paused = true)]
async fn an_answer_ends_the_share_also_between_losses() {
    let (world, there) = (World::new(), Arc::new(AtomicBool::new(true)));
    let rule = rule(1, quota(Strategy::FixedWindow, 40, 3_600, None), OnLoss::LocalShare);
    let limiter = SharedLimiter::new(world.client_while(&there), rule);
    request_of(&limiter, 7).await.expect("it is free");
    let reaches = async |is_there: bool| {
        there.store(is_there, Relaxed);
        limiter.client().forget_backend();
        while limiter.client().condition().reached != is_there {
            // Questions about another key show that the store is lost before the next probe does.
            let _ = request_of(&limiter, 8).await;
            sleep(MILLIS(1)).await;
        }
    };
    reaches(false).await;
    sleep(MILLIS(3_700_000)).await;
    let mut admitted = Vec::new();
    for _ in 0..4 {
        admitted.push(admitted_of_key(&limiter, 7, 30).await);
        reaches(true).await;
        sleep(MILLIS(20)).await;
        request_of(&limiter, 7).await.expect("the store has units");
        reaches(false).await;
    }
    assert_eq!(admitted, [10, 0, 0, 0]);
}

/// One server of several does not answer. The keys of the others are counted together, and its own keys have their
/// shares.
#[tokio::test(start_paused = true)]
async fn a_key_whose_server_is_away_has_its_share() {
    let world = World::new();
    let client = world.client_with(|key, _| match key.as_str().ends_with("7}") {
        true => Err(StoreError::Lost("refused".to_owned())),
        false => Ok(MILLIS(1)),
    });
    let limiter = limiter_of(client, quota(Strategy::TokenBucket, 40, 1, Some(40)), OnLoss::LocalShare);
    let (mut admitted, mut lost) = ([0; 2], 0);
    for step in 0..3_000 {
        for (hash, admitted) in [7, 8].into_iter().zip(&mut admitted) {
            *admitted += u32::from(request_of(&limiter, hash).await.is_ok());
        }
        lost += u32::from(step > 100 && !limiter.client().condition().reached);
        sleep(MILLIS(9)).await;
    }
    assert_eq!(lost, 0);
    assert!((250..=330).contains(&admitted[0]), "{admitted:?}: a quarter of 40 per second, for about 30 seconds");
    assert!(admitted[1] > 1_100, "{admitted:?}");
}

/// What is known about a key during a loss is what the share decides.
#[tokio::test(start_paused = true)]
async fn what_is_known_during_a_loss_is_what_the_share_decides() {
    for strategy in [Strategy::FixedWindow, Strategy::TokenBucket, Strategy::SlidingWindowLog] {
        let (world, there) = (World::new(), Arc::new(AtomicBool::new(true)));
        let rule = rule(1, quota(strategy, 40, 3_600, None), OnLoss::LocalShare);
        let limiter = SharedLimiter::new(world.client_while(&there), rule);
        request_of(&limiter, 1).await.expect("it is free");
        assert!(limiter.known(1, 1).left.is_some_and(|left| left.units > 10), "{strategy:?}");
        reach(limiter.client(), &there, false).await;
        // A cost above this share of 10 is refused for now, and one above the limit forever.
        let claim = limiter.claim(1, 11, Duration::ZERO);
        let Claim::Refused(refused) = claim else { panic!("{strategy:?}: above the share") };
        let known = limiter.known(1, 11);
        let after = refused.retry_after.expect("a time");
        assert!((MILLIS(1_000)..=MILLIS(60_000)).contains(&after), "{strategy:?}: {refused:?}");
        assert_eq!((known.refused_for, known.never), (refused.retry_after, false), "{strategy:?}");
        assert_eq!((limiter.known(1, 41).never, limiter.known(1, 41).refused_for), (true, None), "{strategy:?}");
        for seconds in [0, 900, 3_700, 10] {
            sleep(Duration::from_secs(seconds)).await;
            for hash in [1, 2] {
                loop {
                    let known = limiter.known(hash, 1);
                    assert_eq!(known, limiter.known(hash, 1), "{strategy:?}: a look changes nothing");
                    let units = known.left.map_or(0, |left| left.units) + u64::from(known.seats);
                    match left_after(&limiter, hash).await {
                        Ok(left) => {
                            assert!(units > 0 && known.refused_for.is_none(), "{strategy:?}: {known:?}");
                            let now = limiter.known(hash, 1).left;
                            assert_eq!((left, left.map(|left| left.units + 1)), (now, Some(units)), "{strategy:?}");
                        }
                        Err(refused) => {
                            assert_eq!((units, known.refused_for), (0, refused.retry_after), "{strategy:?}: {known:?}");
                            assert_eq!(refused.left, known.left, "{strategy:?}");
                            break;
                        }
                    }
                }
            }
        }
    }
    let world = World::new();
    let full = Left { limit: 0, units: 3, full_in: Duration::ZERO };
    for (on_loss, left, refused_for) in
        [(OnLoss::Open, Some(full), None), (OnLoss::Closed, None, Some(Duration::from_secs(1)))]
    {
        let there = Arc::new(AtomicBool::new(on_loss == OnLoss::Open));
        let limiter = limiter_of(world.client_while(&there), quota(Strategy::Gcra, 3, 60, Some(3)), on_loss);
        // The last answer of the store does not matter.
        for _ in 0..3 {
            let _ = request_of(&limiter, 1).await;
        }
        reach(limiter.client(), &there, false).await;
        for hash in [1, 2] {
            let known = limiter.known(hash, 1);
            assert_eq!(known, KeyView { left, refused_for, is_lost: true, ..KeyView::default() }, "{on_loss:?}");
            assert_eq!(left_after(&limiter, hash).await.ok(), left.map(Some), "{on_loss:?}");
        }
    }
}

/// The store was lost, and has returned. Then one question about a key has no answer, although the key has had a share
/// during the loss. The store has given the limit to others in the meantime.
#[tokio::test(start_paused = true)]
async fn a_share_does_not_continue_after_the_store_has_returned() {
    let (world, loss) = (World::new(), Arc::new(Mutex::new("")));
    let lost = Arc::clone(&loss);
    let client = world.client_with(move |key, _| match key.as_str().ends_with(*lock(&lost)) {
        true => Ok(MILLIS(1)),
        false => Err(StoreError::Lost("refused".to_owned())),
    });
    let rule = || rule(1, quota(Strategy::TokenBucket, 40, 10, None), OnLoss::LocalShare);
    let (limiter, other) = (SharedLimiter::new(client, rule()), SharedLimiter::new(world.client(), rule()));
    let reaches = async |keys, is_there: bool| {
        *lock(&loss) = keys;
        while limiter.client().condition().reached != is_there {
            sleep(MILLIS(50)).await;
        }
    };
    reaches("none", false).await;
    assert!(request_of(&limiter, 7).await.is_err(), "the share begins without credit");
    sleep(Duration::from_secs(11)).await;
    request_of(&limiter, 7).await.expect("the share has refilled");
    sleep(Duration::from_secs(11)).await;
    reaches("", true).await;
    assert_eq!(admitted_of_key(&other, 7, 40).await, 40);
    *lock(&loss) = "8}";
    assert_eq!(admitted_of_key(&limiter, 7, 20).await, 0);
}

/// The store refuses the questions of two rules, and answers those of a third one. The status reports a refusal as long
/// as a rule in force has one.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_while_its_rule_is_in_force() {
    let (world, is_repaired) = (World::new(), Arc::new(AtomicBool::new(false)));
    let repaired = Arc::clone(&is_repaired);
    let client = world.client_with(move |key, _| match key.counters() {
        "shop/api.log" => Err(StoreError::Refused("OOM".to_owned())),
        "shop/api.bucket" if !repaired.load(Relaxed) => Err(StoreError::Refused("OOM".to_owned())),
        _ => Ok(MILLIS(1)),
    });
    let of = |name: &str, strategy| SharedRule {
        counters: format!("shop/api.{name}"),
        ..rule(1, quota(strategy, 5, 60, None), OnLoss::Open)
    };
    let limiter = |name| SharedLimiter::new(Arc::clone(&client), of(name, Strategy::TokenBucket));
    let mut limiters = Vec::from(["log", "other", "bucket"].map(limiter));
    let ask = async |limiters: &[Arc<SharedLimiter>]| {
        for _ in 0..50 {
            for limiter in limiters {
                let _ = request_of(limiter, 7).await;
            }
            sleep(MILLIS(100)).await;
        }
    };
    let reported = || client.condition().error.map(|error| error.contains(".log"));
    ask(&limiters).await;
    assert_eq!(reported(), Some(true));
    limiters[0].retune(of("log", Strategy::Gcra));
    assert_eq!(reported(), Some(false), "the changed rule has no refusal yet");
    is_repaired.store(true, Relaxed);
    ask(&limiters).await;
    assert_eq!(reported(), Some(true), "an answer ends the refusal of its rule alone");
    drop(limiters.remove(0));
    assert_eq!(reported(), None, "the rule has ended");
}

/// The store is lost, and its configuration gets the address of another server, which knows nothing. The limit admits what
/// refills, as with one store: what the share admitted counts, too.
#[tokio::test(start_paused = true)]
async fn other_servers_learn_what_the_earlier_ones_and_the_share_admitted() {
    let (first, second, is_there) = (World::new(), World::new(), Arc::new(AtomicBool::new(true)));
    let client = first.client_while(&is_there);
    let quota = quota(Strategy::TokenBucket, 100, 100, None);
    let limiter = limiter_of(Arc::clone(&client), quota, OnLoss::LocalShare);
    let admitted = async || admitted_of(&limiter, 200, 1).await;
    assert_eq!(admitted().await, 100);
    is_there.store(false, Relaxed);
    client.forget_backend();
    while client.condition().reached {
        let _ = limiter.ask(7, 1, Duration::ZERO).await;
        sleep(MILLIS(100)).await;
    }
    sleep(Duration::from_secs(40)).await;
    let by_share = admitted().await;
    assert!((8..=11).contains(&by_share), "a quarter of what has refilled: {by_share}");

    let store = Arc::clone(&second.store);
    client.change(Box::new(move || Ok(Backend::Memory(Arc::clone(&store)))));
    assert!(limiter.goes_on_with(&client, &rule(1, quota, OnLoss::LocalShare)));
    while !client.condition().reached {
        sleep(MILLIS(10)).await;
    }
    let all = by_share + admitted().await;
    let refilled = first.start.elapsed().as_secs_f64();
    assert!((refilled - 2.0..=refilled).contains(&f64::from(all)), "{all} of {refilled}");

    // Without a loss, too.
    client.change(Box::new(|| Ok(Backend::Memory(Arc::default()))));
    sleep(Duration::from_secs(10)).await;
    let all = all + admitted().await;
    let refilled = first.start.elapsed().as_secs_f64();
    assert!((refilled - 2.0..=refilled).contains(&f64::from(all)), "{all} of {refilled}");
}

/// The servers change while a question is on its way. It is repeated, and reaches the new ones without a level.
#[tokio::test(start_paused = true)]
async fn a_question_on_its_way_does_not_replace_the_level_for_other_servers() {
    let (first, second, is_due) = (World::new(), Arc::<MemoryStore>::default(), Arc::new(AtomicBool::new(false)));
    let changed = Arc::new(OnceLock::<Weak<StoreClient>>::new());
    let client = first.client_with({
        let (changed, is_due) = (Arc::clone(&changed), Arc::clone(&is_due));
        move |_, _| {
            if !is_due.swap(false, Relaxed) {
                return Ok(MILLIS(1));
            }
            let store = Arc::clone(&second);
            let client = changed.get().and_then(Weak::upgrade).expect("the client");
            client.change(Box::new(move || Ok(Backend::Memory(Arc::clone(&store)))));
            Err(StoreError::Lost("the server has stopped".to_owned()))
        }
    });
    changed.set(Arc::downgrade(&client)).expect("set once");
    let quota = quota(Strategy::TokenBucket, 100, 10_000, None);
    let limiter = limiter_of(client, quota, OnLoss::LocalShare);
    let mut admitted = 0;
    while request(&limiter, 1, Duration::ZERO).await.is_ok() {
        admitted += 1;
        is_due.fetch_or(admitted == 50, Relaxed);
    }
    // The new servers have admitted the one on its way in addition.
    assert!((90..=101).contains(&admitted), "{admitted}");
    assert!(!is_due.load(Relaxed), "no question was on its way");
}
