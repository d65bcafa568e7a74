use tokio::time::sleep;
use weir_seats::StoreError;

use super::*;
use crate::shared::{UsedSeats, returns::MOST_RETURNS};

/// Requests of one key that went.
async fn used(limiter: &SharedLimiter, count: usize) -> Vec<UsedSeats> {
    let mut used = Vec::new();
    for _ in 0..count {
        used.push(match limiter.claim(7, 1, Duration::ZERO) {
            Claim::Granted(grant) => grant.into_used(),
            Claim::Refused(refused) => panic!("{refused:?}"),
            Claim::AskStore => limiter.ask(7, 1, Duration::ZERO).await.expect("it is free").into_used(),
        });
    }
    used
}

/// Further seats are lost. When the returns have ended, with or without success, others can begin.
#[tokio::test(start_paused = true)]
async fn the_number_of_returns_on_their_way_is_bounded() {
    const MORE: usize = 3;
    for fails in [false, true] {
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let client = World::new().client_with(move |_, question| {
            if question.returned.is_none() {
                return Ok(Duration::ZERO);
            }
            counted.fetch_add(1, Relaxed);
            if fails { Err(StoreError::Cost) } else { Ok(Duration::from_millis(20)) }
        });
        let quota = quota(Strategy::FixedWindow, 1_000_000, 86_400, None);
        let limiter = SharedLimiter::new(client, rule(1, quota, OnLoss::Closed));
        for turn in 1..=2 {
            let all = used(&limiter, MOST_RETURNS + MORE).await;
            let before = limiter.client().stats();
            all.into_iter().for_each(UsedSeats::give_back);
            // No task has run since.
            let lost = limiter.client().stats().lost - before.lost;
            assert_eq!((lost, limiter.returns.load(Relaxed)), (MORE as u64, MOST_RETURNS), "turn {turn}");
            sleep(Duration::from_millis(100)).await;
            let most = MOST_RETURNS as u64;
            assert_eq!((asked.load(Relaxed), limiter.returns.load(Relaxed)), (turn * most, 0), "turn {turn}");
            let returned = limiter.client().stats().returned - before.returned;
            assert_eq!(returned, if fails { 0 } else { most }, "turn {turn}");
        }
    }
}
