//! Tests with clocks that are set.

use tokio::time::sleep;

use super::*;

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
