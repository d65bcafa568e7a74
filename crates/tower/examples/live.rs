//! A limit that is changed at run time, under load: counts are kept, and no change gives a fresh burst.
//!
//! `cargo run -p weir-tower --example live` prints the admitted requests per second under each limit, and exits.
#![expect(clippy::disallowed_methods, reason = "the example shows how long something takes")]

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use weir_core::{Limiter, Quota, Strategy};
use weir_tower::{LatencyLayer, LimitError, LimiterAdmit, MonotonicClock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let clock = MonotonicClock::start();
    // `requests` per second, with a burst of the same size.
    let quota = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    let mut limiter = Limiter::new(clock.now(), quota(100)?);
    let service = LatencyLayer::with_errors(LimiterAdmit::new(limiter.clone(), clock)).layer(served());

    // Sixteen clients. Each client sends about a thousand requests per second while it is refused.
    let admitted = Arc::new(AtomicU64::new(0));
    let (mut counted, mut since) = (0, Instant::now());
    for _ in 0..16 {
        let (mut service, admitted) = (service.clone(), Arc::clone(&admitted));
        tokio::spawn(async move {
            loop {
                match service.ready().await?.call(()).await {
                    Ok(()) => _ = admitted.fetch_add(1, Ordering::Relaxed),
                    Err(LimitError::Refused(_)) => sleep(Duration::from_millis(1)).await,
                    Err(error @ LimitError::Inner(_)) => break Err::<(), _>(error),
                }
            }
        });
    }

    println!("   limit  admitted / second");
    for requests in [100, 100, 1000, 5000, 50, 500] {
        // The first quota equals the current one, so nothing changes.
        limiter = limiter.retune(|| clock.now(), quota(requests)?);
        sleep(Duration::from_secs(1)).await;
        let (total, seconds) = (admitted.load(Ordering::Relaxed), since.elapsed().as_secs_f64());
        println!("{requests:>6}/s  {:>17.1}", f64::from(u32::try_from(total - counted)?) / seconds);
        (counted, since) = (total, Instant::now());
    }
    println!("only the first second has a burst: no change gives a fresh one");
    Ok(())
}

fn served() -> impl Service<(), Response = (), Error = std::io::Error, Future: Send> + Clone + Send + 'static {
    service_fn(async |()| Ok(()))
}
