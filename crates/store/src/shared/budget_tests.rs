//! Several rules of one program share a bound of their keys.

use tokio::{task::yield_now, time::sleep};
use weir_fuzz::Random;

use super::*;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// A hash of a key with this number. An odd factor spreads the hashes over a table.
fn hash(number: u64) -> u128 {
    u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

fn named(name: &str, most_keys: usize) -> SharedRule {
    let limits = [vec![(0, quota(Strategy::TokenBucket, 10_000, 60, Some(1_000)))]];
    SharedRule::new(name, 1, &limits, OnLoss::Closed, 4, most_keys).expect("a rule")
}

async fn request_of(limiter: &SharedLimiter, hash: u128) -> Result<(), Refused> {
    match limiter.claim(hash, 1, Duration::ZERO) {
        Claim::Granted(grant) => grant.settle(),
        Claim::Refused(refused) => return Err(refused),
        Claim::AskStore => limiter.ask(hash, 1, Duration::ZERO).await?.settle(),
    }
    // The task of the key ends.
    yield_now().await;
    Ok(())
}

/// The keys of each rule.
fn counts(limiters: &[Arc<SharedLimiter>]) -> Vec<usize> {
    limiters.iter().map(|limiter| limiter.table.len()).collect()
}

/// Rules with random bounds and floods of random sizes. There are never more keys than the bound, no rule
/// has more keys than its own bound, and only the rule with the most keys loses keys to another rule.
#[tokio::test(start_paused = true)]
async fn the_rule_with_the_most_keys_makes_room() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let most = 50 + random.below(200);
        let world = World::with_keys(most);
        let client = world.client();
        let bounds: Vec<_> = (0..1 + random.below(8)).map(|_| 1 + random.below(most)).collect();
        let limiter = |(index, &bound): (usize, &usize)| {
            SharedLimiter::new(Arc::clone(&client), named(&format!("shop/api.{index}"), bound))
        };
        let limiters: Vec<_> = bounds.iter().enumerate().map(limiter).collect();
        for _ in 0..1_000 {
            // Rules with a small index have more requests.
            let last = random.below(bounds.len());
            let index = random.below(1 + last);
            let mut grown = counts(&limiters);
            request_of(&limiters[index], hash(random.number() % 500)).await.expect("it is free");
            grown[index] += 1;
            let after = counts(&limiters);
            assert!(after.iter().zip(&bounds).all(|(keys, bound)| keys <= bound), "{seed}: {after:?} {bounds:?}");
            let all: usize = after.iter().sum();
            assert_eq!(world.keys.tracked(), all, "{seed}");
            assert!(all <= most, "{seed}: {after:?}");
            let largest = grown.iter().max().copied().unwrap_or_default();
            for (rule, (&grown, &after)) in grown.iter().zip(&after).enumerate() {
                assert!(after == grown || grown == largest || rule == index, "{seed}: {rule} {grown} {after}");
                assert!(after + 1 >= grown, "{seed}: {rule} {grown} {after}");
            }
        }
        drop(limiters);
        assert_eq!(world.keys.tracked(), 0, "{seed}: rules that end have no keys");
    }
}

/// A flood of keys over many rules takes neither the level nor the seats of another rule's keys.
#[tokio::test(start_paused = true)]
async fn a_flood_of_many_rules_leaves_a_small_rule_alone() {
    let world = World::with_keys(2_000);
    let client = world.client();
    let of = |name: &str| SharedLimiter::new(Arc::clone(&client), named(name, 1_500));
    let small = of("shop/api.small");
    for round in 0..40 {
        for _ in 0..20 {
            for key in 0..5 {
                request_of(&small, hash(key)).await.expect("it is free");
            }
        }
        sleep(MILLIS(if round < 20 { 20 } else { 1 })).await;
    }
    let seats = small.known(hash(0), 1).seats;
    assert!(seats > 0, "a hot key has seats");
    let mut random = Random::new(1);
    let mut random_hash = || (u128::from(random.number()) << 64) | u128::from(random.number());
    let flooded: Vec<_> = (0..10).map(|index| of(&format!("shop/api.{index}"))).collect();
    for number in 0..1_000 {
        for limiter in &flooded {
            request_of(limiter, random_hash()).await.expect("it is free");
            assert!(world.keys.tracked() <= 2_000, "{number}");
        }
    }
    for key in 0..5 {
        assert!(small.known(hash(key), 1).left.is_some(), "{key}");
    }
    assert_eq!(small.known(hash(0), 1).seats, seats);
    assert_eq!((small.keys().tracked, small.keys().evicted), (5, 0));
    assert!(counts(&flooded).iter().all(|keys| (199..=200).contains(keys)), "{:?}", counts(&flooded));
}

/// A key of the flooded rule that is used again and again stays, wherever it is in the table.
#[tokio::test(start_paused = true)]
async fn a_flood_evicts_keys_that_were_not_used_for_long() {
    let world = World::new();
    let limiter = SharedLimiter::new(world.client(), named("shop/api.per-client", 500));
    let is_hot = |number: u64| number < 20;
    let mut lost = 0;
    for number in 0..10_000 {
        for hot in (0..20).filter(|_| number % 50 == 0) {
            lost += u32::from(number > 0 && limiter.known(hash(hot), 1).left.is_none());
            request_of(&limiter, hash(hot)).await.expect("it is free");
        }
        if !is_hot(number) {
            request_of(&limiter, hash(number)).await.expect("it is free");
        }
        sleep(MILLIS(1)).await;
    }
    // The oldest of sixteen keys is never one of the youngest tenth.
    assert_eq!(lost, 0);
}

/// Requests that wait hold their keys. They can take some more room, and a rule with few keys still gets some of it.
#[tokio::test(start_paused = true)]
async fn keys_that_cannot_be_forgotten_leave_room_for_a_small_rule() {
    let world = World::with_keys(1_600);
    let slow = world.client_with(|_, _| Ok(Duration::from_secs(3_600)));
    let flooded = SharedLimiter::new(Arc::clone(&slow), named("shop/api.flooded", 1_500));
    let other = SharedLimiter::new(slow, named("shop/api.other", 1_500));
    let small = SharedLimiter::new(world.client(), named("shop/api.small", 1_500));
    let mut waiting = Vec::new();
    for number in 0..2_000 {
        for limiter in [&flooded, &other] {
            waiting.push(limiter.ask(hash(number), 1, Duration::ZERO));
            assert!(world.keys.tracked() <= 1_600 + 100);
        }
    }
    assert_eq!(world.keys.tracked(), 1_700, "all of them wait");
    assert_eq!(flooded.keys().overflowed + other.keys().overflowed, 4_000 - 1_700);
    for key in 0..100 {
        request_of(&small, hash(key)).await.expect("it has room");
        assert!(world.keys.tracked() <= 1_600 + 200);
    }
    assert_eq!(small.keys().tracked, 33, "a third of the extra room");
    drop(waiting);
}

/// An explicit bound of a rule that is larger than the common bound raises the common one.
#[tokio::test(start_paused = true)]
async fn a_rule_can_have_a_larger_bound_than_all_rules() {
    let world = World::with_keys(100);
    let client = world.client();
    let large = SharedLimiter::new(Arc::clone(&client), named("shop/api.large", 300));
    let other = SharedLimiter::new(client, named("shop/api.other", 50));
    let flood = async |limiter: &SharedLimiter| {
        for number in 0..400 {
            request_of(limiter, hash(number)).await.expect("it is free");
        }
    };
    flood(&large).await;
    assert_eq!(large.keys().tracked, 300);
    flood(&other).await;
    assert_eq!((large.keys().tracked, other.keys().tracked), (250, 50));
    large.retune(named("shop/api.large", 60));
    flood(&other).await;
    assert_eq!(other.keys().tracked, 50);
    flood(&large).await;
    assert!(world.keys.tracked() <= 100, "{}", world.keys.tracked());
}

/// Keys beyond a lowered bound do not keep out a rule without keys.
#[tokio::test(start_paused = true)]
async fn a_lowered_bound_leaves_room_for_a_new_rule() {
    for is_removed in [false, true] {
        let world = World::with_keys(100);
        let client = world.client();
        let of = |name: &str, most_keys| SharedLimiter::new(Arc::clone(&client), named(name, most_keys));
        let (largest, large) = (of("shop/api.largest", 300), of("shop/api.large", 200));
        for number in 0..200 {
            request_of(&large, hash(number)).await.expect("it is free");
        }
        assert_eq!(world.keys.tracked(), 200);
        if is_removed {
            drop(largest);
            large.retune(named("shop/api.large", 60));
        } else {
            large.retune(named("shop/api.large", 60));
            drop(largest);
        }
        let new = of("shop/api.new", 50);
        request_of(&new, hash(0)).await.expect("it has room");
        assert!(world.keys.tracked() <= 100, "{}", world.keys.tracked());
    }
}

/// Threads that add keys to several rules at the same time count them exactly.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_keep_the_count() {
    let world = World::with_keys(200);
    let client = world.client();
    let of = |index| SharedLimiter::new(Arc::clone(&client), named(&format!("shop/api.{index}"), 150));
    let limiters: Vec<_> = (0..4).map(of).collect();
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (limiters, keys) = (limiters.clone(), Arc::clone(&world.keys));
            tokio::spawn(async move {
                let mut random = Random::new(task);
                for _ in 0..2_000 {
                    let limiter = &limiters[random.below(4)];
                    drop(limiter.claim(hash(random.number() % 1_000), 1, Duration::ZERO));
                    assert!(keys.tracked() <= 200 + 2 * 12 + 4);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(world.keys.tracked(), counts(&limiters).iter().sum::<usize>());
    assert!(world.keys.tracked() <= 204);
}
