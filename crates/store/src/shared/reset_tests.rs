use tokio::time::sleep;

use super::*;

/// Uses up a key of a limit of 5, and returns the number of admitted requests.
async fn drain(limiter: &SharedLimiter) -> u32 {
    admitted_of(limiter, 10, 1).await
}

/// The program that resets the key knows the new count immediately. The other program learns of the reset after a minute.
/// Both together admit one full credit for each reset.
#[tokio::test(start_paused = true)]
async fn a_reset_returns_the_full_credit_once_for_all_programs() {
    for strategy in Strategy::ALL {
        let burst = matches!(strategy, Strategy::Gcra | Strategy::LeakyBucket).then_some(5);
        let daily = quota(strategy, 5, 86_400, burst);
        let full = if strategy == Strategy::LeakyBucket { 1 } else { 5 };
        let world = World::new();
        let [one, other] = [(); 2].map(|()| SharedLimiter::new(world.client(), rule(1, daily, OnLoss::Open)));
        assert_eq!((drain(&one).await, drain(&other).await), (full, 0), "{strategy:?}");
        one.reset(7).await.expect("the store is there");
        assert_eq!((drain(&one).await, drain(&other).await), (full, 0), "{strategy:?}");
        one.owe(7, 5);
        sleep(Duration::from_secs(1)).await;
        one.reset(7).await.expect("the store is there");
        assert_eq!(drain(&other).await, 0, "{strategy:?}: it knows the refusal");
        sleep(Duration::from_secs(60)).await;
        assert_eq!((drain(&other).await, drain(&one).await), (full, 0), "{strategy:?}");
    }
}

/// A refused key costs one question a minute, even if its requests can wait for minutes. It costs one a second if
/// another program can have given units back.
#[tokio::test(start_paused = true)]
async fn a_refused_key_is_asked_about_once_a_minute_or_a_second() {
    let plain = rule(1, quota(Strategy::FixedWindow, 5, 86_400, None), OnLoss::Open);
    for (rule, takes_back, patience, expected) in [
        (plain.clone(), true, 0, 9..=9),
        (plain.clone(), true, 300, 9..=9),
        (plain.clone().with_returns(), false, 0, 9..=9),
        (plain.clone().with_returns(), true, 0, 590..=599),
        (plain.with_credits(), false, 0, 590..=599),
    ] {
        let questions = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&questions);
        let client = World::new().client_of(takes_back, move |key, _| {
            counted.fetch_add(u64::from(key.as_str() == "{shop/api.per-client.7}"), Relaxed);
            Ok(Duration::ZERO)
        });
        let told = format!("{rule:?}, takes back {takes_back}, {patience} s");
        let limiter = SharedLimiter::new(client, rule);
        assert_eq!(drain(&limiter).await, 5);
        let before = questions.load(Relaxed);
        for _ in 0..599 {
            request(&limiter, 1, Duration::from_secs(patience)).await.expect_err("used up until the next day");
            sleep(Duration::from_secs(1)).await;
        }
        let asked = questions.load(Relaxed) - before;
        assert!(expected.contains(&asked), "{told}: {asked} questions");
    }
}
