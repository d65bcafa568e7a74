//! Counts the memory of the keys of a shared rule. Clients choose keys, so this memory is what a flood of keys needs.
#![expect(clippy::disallowed_methods, reason = "tests read clocks")]

use std::{alloc::System, sync::Arc, time::Duration};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::time::Instant;
use weir_core::{Quota, Strategy};
use weir_store::{
    Backend, Claim, MemoryStore, OnLoss, OperatorStore, SharedLimiter, SharedRule, StoreClient, StoreParts,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The hash maps have as much room for each of these keys as for each of 65,536, the default of `maxKeys`.
const KEYS: usize = 16_384;

/// What an allocator adds to a block: a header of 8 bytes, and the rest to a multiple of 16 bytes.
const OF_BLOCK: usize = 16;

const EPOCH: Duration = Duration::from_secs(1_790_000_000);

fn limiter(quota: Quota, open: impl Fn(Instant) -> Backend + Send + Sync + 'static) -> Arc<SharedLimiter> {
    let start = Instant::now();
    let clock = move || EPOCH + start.elapsed();
    let client = StoreClient::start(StoreParts::new("shop/limits", move || Ok(open(start)), clock));
    let limits = [vec![(0, quota)]];
    let rule = SharedRule::new("shop/api.per-client", 1, &limits, OnLoss::LocalShare, 4, 65_536);
    SharedLimiter::new(client, rule.expect("a rule"))
}

/// Sends requests for each key, and returns how many were admitted.
async fn flood(limiter: &SharedLimiter, requests: usize) -> usize {
    let mut admitted = 0;
    for index in 0..KEYS as u128 {
        // An odd factor spreads the hashes over the table.
        let hash = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        for _ in 0..requests {
            let decided = match limiter.claim(hash, 1, Duration::ZERO) {
                Claim::Granted(grant) => Ok(grant),
                Claim::Refused(refused) => Err(refused),
                Claim::AskStore => limiter.ask(hash, 1, Duration::ZERO).await,
            };
            admitted += decided.map_or(0, |grant| {
                grant.settle();
                1
            });
        }
    }
    admitted
}

/// The bytes of each key: those that are free when the limiter has ended. The store's own count of the key is not a part.
async fn bytes_of_a_key(limiter: Arc<SharedLimiter>) -> usize {
    // Tasks of the last questions end.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let tracked = usize::try_from(limiter.keys().tracked).expect("it fits");
    let allocated = || {
        let stats = ALLOCATOR.stats();
        let blocks = stats.allocations - stats.deallocations;
        stats.bytes_allocated - stats.bytes_deallocated + OF_BLOCK * blocks
    };
    let before = allocated();
    assert_eq!(Arc::strong_count(&limiter), 1, "no task has a handle");
    drop(limiter);
    (before - allocated()) / tracked
}

#[tokio::test(start_paused = true)]
async fn a_key_takes_few_bytes() {
    let of =
        |strategy, requests, burst| Quota::new(strategy, requests, Duration::from_secs(900), burst).expect("a quota");
    // Outlives the limiters.
    let store = Arc::<MemoryStore>::default();
    let known = |store: &Arc<MemoryStore>| {
        let store = Arc::clone(store);
        move |_| Backend::Memory(Arc::clone(&store))
    };
    let one = limiter(of(Strategy::FixedWindow, 1, None), known(&store));
    assert_eq!(flood(&one, 2).await, KEYS, "each key is admitted once, and refused once");
    let once = bytes_of_a_key(one).await;

    let store = Arc::<MemoryStore>::default();
    let many = limiter(of(Strategy::TokenBucket, 100_000, Some(1_000)), known(&store));
    assert_eq!(flood(&many, 1).await, KEYS);
    let admitted = bytes_of_a_key(many).await;

    let lost = limiter(of(Strategy::TokenBucket, 100_000, None), |start: Instant| {
        Backend::Operator(OperatorStore::new(move || EPOCH + start.elapsed()))
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    flood(&lost, 2).await;
    let share = bytes_of_a_key(lost).await;

    println!("bytes of a key: {once} after a refusal, {admitted} after an admission, {share} with a share");
    assert!(once <= 280 && admitted <= 280, "{once} {admitted}");
    assert!(share <= 500, "{share}");
}
