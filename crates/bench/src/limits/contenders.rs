//! All contenders that decide on one limit. Each is set up to always admit, to always deny, or to enforce a budget.
//!
//! A peer is used as its documentation recommends, with its default clock, and without tuning.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Mutex,
    task::{Context, Poll, Waker},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock, MonotonicClock as StdClock},
};
use tower::Service;

use super::{
    contender::{Contender, Counts, DAY, Demand, Kind, REFILL},
    hammer::{BATCH, Batch, batch},
    ours,
};
use crate::clock;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

const fn peer(name: &'static str, counts: Counts, make: fn(Demand) -> Option<Batch>) -> Contender {
    Contender { name, kind: Kind::Peer, counts, one_thread: false, refuses_unread: false, make }
}

pub(super) fn contenders() -> Vec<Contender> {
    let mut all = ours::contenders();
    all.extend([
        peer("shot-limit TokenBucket", Counts::Bucket, shot_token_bucket),
        peer("shot-limit Gcra", Counts::Bucket, |demand| {
            let (requests, period) = shot_numbers(demand);
            shot(demand, shot_limit::Gcra::new(requests, period))
        }),
        peer("shot-limit FixedWindow", Counts::Window, |demand| {
            let (requests, period) = shot_numbers(demand);
            shot(demand, shot_limit::FixedWindow::new(requests, period))
        }),
        peer("shot-limit SlidingWindow", Counts::Window, |demand| {
            let (requests, period) = shot_numbers(demand);
            shot(demand, shot_limit::SlidingWindow::new(requests, period))
        }),
        peer("governor", Counts::Bucket, governed::<DefaultClock>),
        peer("governor, std clock", Counts::Bucket, governed::<StdClock>),
        peer("leaky-bucket", Counts::Bucket, leaky_bucket),
        Contender {
            one_thread: true,
            refuses_unread: true,
            ..peer("tower RateLimit", Counts::Window, tower_rate_limit)
        },
        clock("clock: std Instant", |_| {
            let start = clock::now();
            Some(batch(move || clock::now() >= start))
        }),
        clock("clock: governor's (quanta)", |_| {
            let clock = DefaultClock::default();
            let start = clock.now();
            Some(batch(move || clock.now() >= start))
        }),
    ]);
    all
}

const fn clock(name: &'static str, make: fn(Demand) -> Option<Batch>) -> Contender {
    Contender { kind: Kind::Baseline, ..peer(name, Counts::Bucket, make) }
}

/// Uses up the first request, so that a limit of one request then always denies.
fn used_up(demand: Demand, decide: impl Fn() -> bool + Send + Sync + 'static) -> Batch {
    if demand == Demand::Deny {
        decide();
    }
    batch(decide)
}

fn nonzero(number: u32) -> NonZeroUsize {
    NonZeroUsize::new(number as usize).expect("no demand is zero")
}

fn shot_numbers(demand: Demand) -> (NonZeroUsize, Duration) {
    match demand {
        Demand::Admit => (nonzero(1_000_000_000), SECOND),
        Demand::Deny => (nonzero(1), DAY),
        Demand::Budget(budget) => (nonzero(budget), DAY),
        Demand::Refill => (nonzero(REFILL), MILLISECOND),
    }
}

fn shot<S: shot_limit::Strategy + 'static>(demand: Demand, strategy: S) -> Option<Batch> {
    Some(used_up(demand, move || strategy.process().is_continue()))
}

fn shot_token_bucket(demand: Demand) -> Option<Batch> {
    let (capacity, period) = shot_numbers(demand);
    let increment = if matches!(demand, Demand::Budget(_)) { nonzero(1) } else { capacity };
    shot(demand, shot_limit::TokenBucket::new(capacity, increment, period))
}

fn governed<C: Clock + Default + Send + Sync + 'static>(demand: Demand) -> Option<Batch>
where
    C::Instant: Send + Sync,
{
    let burst = |burst| NonZeroU32::new(burst).expect("no demand is zero");
    let quota = match demand {
        Demand::Admit => Quota::per_second(burst(1_000_000_000)),
        Demand::Deny => Quota::with_period(DAY)?,
        Demand::Budget(budget) => Quota::with_period(DAY)?.allow_burst(burst(budget)),
        Demand::Refill => Quota::with_period(MILLISECOND / REFILL)?.allow_burst(burst(REFILL)),
    };
    let limiter = RateLimiter::direct_with_clock(quota, C::default());
    Some(used_up(demand, move || limiter.check().is_ok()))
}

fn leaky_bucket(demand: Demand) -> Option<Batch> {
    let mut builder = leaky_bucket::RateLimiter::builder();
    match demand {
        Demand::Admit => builder.max(1 << 40).initial(1 << 40).refill(1_000_000).interval(MILLISECOND),
        Demand::Deny => builder.max(1).initial(1).refill(1).interval(DAY),
        Demand::Budget(budget) => builder.max(budget as usize).initial(budget as usize).refill(1).interval(DAY),
        Demand::Refill => {
            builder.max(REFILL as usize).initial(REFILL as usize).refill(REFILL as usize).interval(MILLISECOND)
        }
    };
    let limiter = builder.build();
    Some(used_up(demand, move || limiter.try_acquire(1)))
}

/// Creates tower's own layer. It needs `&mut`, so each thread would have a separate limit. So it runs on one thread
/// only.
fn tower_rate_limit(demand: Demand) -> Option<Batch> {
    let (requests, period) = match demand {
        Demand::Admit => (1_000_000_000, SECOND),
        Demand::Deny => (1, DAY),
        Demand::Budget(_) | Demand::Refill => return None,
    };
    // The layer creates a sleep when the limit is used up, which needs a runtime. No task waits for this sleep.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
    let service = tower::service_fn(|()| std::future::ready(Ok::<(), std::convert::Infallible>(())));
    let service = {
        let _entered = runtime.enter();
        Mutex::new(tower::limit::RateLimit::new(service, tower::limit::rate::Rate::new(requests, period)))
    };
    let run = move || {
        let _entered = runtime.enter();
        let mut service = service.lock().expect("one thread");
        let mut context = Context::from_waker(Waker::noop());
        let mut admitted = 0;
        for _ in 0..BATCH {
            if let Poll::Ready(Ok(())) = service.poll_ready(&mut context) {
                drop(std::hint::black_box(service.call(())));
                admitted += 1;
            }
        }
        admitted
    };
    if demand == Demand::Deny {
        run();
    }
    Some(Box::new(move |_| run()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_admits_and_denies_as_set_up() {
        for contender in contenders() {
            if contender.kind == Kind::Baseline {
                continue;
            }
            let admitted = (contender.make)(Demand::Admit).expect("every contender can admit")(0);
            assert_eq!(admitted, BATCH, "{} admits", contender.name);
            let admitted = (contender.make)(Demand::Deny).expect("every contender can deny")(0);
            assert_eq!(admitted, 0, "{} denies", contender.name);
        }
    }

    #[test]
    fn everybody_holds_a_budget_on_one_thread() {
        for contender in contenders() {
            if contender.kind == Kind::Baseline {
                continue;
            }
            let Some(batch) = (contender.make)(Demand::Budget(300)) else { continue };
            assert_eq!(batch(0) + batch(0) + batch(0), 300, "{}", contender.name);
        }
    }
}
