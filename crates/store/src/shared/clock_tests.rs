//! Tests with clocks that are set.

use tokio::time::sleep;

use super::*;

const DAY: u64 = 86_400_000_000;

/// Sends requests for three seconds. Returns how many were admitted, and the last refusal.
async fn admitted(limiter: &SharedLimiter, patience: Duration) -> (u32, Option<Refused>) {
    let (mut admitted, mut last) = (0, None);
    for _ in 0..1_000 {
        match request(limiter, 1, patience).await {
            Ok(()) => admitted += 1,
            Err(refused) => last = Some(refused),
        }
        sleep(Duration::from_millis(3)).await;
    }
    (admitted, last)
}

/// An answer about another key has shown that the store's clock was set back. Then a known key is not refused longer than
/// a new one.
#[tokio::test(start_paused = true)]
async fn a_refusal_ends_although_the_stores_clock_is_set_back() {
    for (strategy, has_credits, patience) in [
        (Strategy::TokenBucket, false, 0),
        (Strategy::TokenBucket, true, 0),
        (Strategy::Gcra, false, 0),
        (Strategy::FixedWindow, false, 0),
        (Strategy::FixedWindow, false, 1),
        (Strategy::SlidingWindowLog, false, 1),
    ] {
        let (world, ahead, patience) =
            (World::new(), Arc::new(AtomicU64::new(30 * DAY)), Duration::from_secs(patience));
        let rule = rule(1, quota(strategy, 5, 1, None), OnLoss::Closed);
        let rule = if has_credits { rule.with_credits() } else { rule };
        let limiter = SharedLimiter::new(world.client_ahead(Duration::ZERO, &ahead), rule);
        let told = format!("{strategy:?}, credits {has_credits}, {patience:?}");
        assert!(admitted(&limiter, Duration::ZERO).await.0 >= 15, "{told}");
        while request(&limiter, 1, Duration::ZERO).await.is_ok() {}
        ahead.store(0, Relaxed);
        limiter.client().learn_time(world.now());
        // The store has replaced the level by one without credit.
        let (admitted, last) = admitted(&limiter, patience).await;
        assert!(admitted >= 5, "{told}: {admitted}");
        let last = last.and_then(|refused| refused.retry_after);
        assert!(last.is_none_or(|wait| wait <= Duration::from_secs(2)), "{told}: {last:?}");
        sleep(Duration::from_secs(70)).await;
        assert_eq!(limiter.keys().tracked, 0, "{told}");
    }
}

/// The unused seats are for a time that is 30 days in the future.
#[tokio::test(start_paused = true)]
async fn seats_are_dropped_if_the_stores_clock_is_set_back() {
    for strategy in [Strategy::TokenBucket, Strategy::FixedWindow] {
        let (world, ahead) = (World::new(), Arc::new(AtomicU64::new(30 * DAY)));
        let rule = rule(1, quota(strategy, 1_000, 1, None), OnLoss::Closed);
        let limiter = SharedLimiter::new(world.client_ahead(Duration::ZERO, &ahead), rule);
        admitted(&limiter, Duration::ZERO).await;
        assert!(limiter.known(7, 1).seats > 4, "{strategy:?}");
        ahead.store(0, Relaxed);
        limiter.client().learn_time(world.now());
        let (admitted, _) = admitted(&limiter, Duration::ZERO).await;
        assert!(admitted >= 400, "{strategy:?}: {admitted} of 1,000");
        assert!(limiter.client().stats().prefetched > 0, "{strategy:?}");
    }
}

/// Memcached does not report its time. The clock of a node was three seconds ahead when its program started, and is right
/// now.
#[tokio::test(start_paused = true)]
async fn a_program_whose_clock_was_corrected_starves_no_other() {
    let (world, ahead) = (World::new(), Duration::from_secs(3));
    let wall_ahead = Arc::new(AtomicU64::new(micros(ahead)));
    let bucket = rule(1, quota(Strategy::TokenBucket, 100, 1, None), OnLoss::Closed);
    let clients = [world.client_ahead(ahead, &wall_ahead), world.client()];
    let programs = clients.map(|client| SharedLimiter::new(client, bucket.clone()));
    for seconds in 0..20 {
        let mut served = [0, 0];
        for _ in 0..10 {
            sleep(Duration::from_millis(100)).await;
            for (served, program) in served.iter_mut().zip(&programs) {
                *served += u32::from(request(program, 1, Duration::ZERO).await.is_ok());
            }
        }
        if seconds == 3 {
            wall_ahead.store(0, Relaxed);
        }
        // The level is ahead for three seconds more.
        assert!(seconds < 8 || served == [10, 10], "{served:?} after {seconds} s");
    }
}
