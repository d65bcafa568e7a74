//! The four guards, which are ways to protect the service.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{MissedTickBehavior, interval_at, timeout},
};
use tower::{
    BoxError, Layer as _, service_fn,
    util::{BoxCloneSyncService, ServiceExt as _},
};
use weir_core::{Limiter, Quota, Strategy};
use weir_tower::{LimiterAdmit, MonotonicClock, ThroughputLayer};

use super::slots::Slots;
use crate::clock;

const RATE: u32 = 425;
const BURST: usize = 10;
const WAIT: Duration = Duration::from_millis(75);

pub(super) const NAMES: [&str; 4] = ["unlimited", "ticker", "ticker, 75 ms", "weir, 75 ms"];

#[derive(Clone)]
pub(super) enum Guard {
    Unlimited(Slots),
    Ticker(Arc<Ticker>, Slots),
    TickerInTime(Arc<Ticker>, Slots),
    Ours(BoxCloneSyncService<(), (), BoxError>),
}

/// A channel of ticks. It is full at first, gets one tick after each interval, and drops ticks that do not fit.
pub(super) struct Ticker {
    ticks: Arc<Semaphore>,
    filling: JoinHandle<()>,
}

impl Guard {
    /// Creates all guards, in the order of [`NAMES`], each with a separate service. Call it on a runtime.
    pub(super) fn all() -> [Self; 4] {
        let ticker = || Arc::new(Ticker::start());
        [
            Self::Unlimited(Slots::new()),
            Self::Ticker(ticker(), Slots::new()),
            Self::TickerInTime(ticker(), Slots::new()),
            Self::ours(),
        ]
    }

    fn ours() -> Self {
        let clock = MonotonicClock::start();
        let burst = u64::try_from(BURST).expect("small");
        let quota =
            Quota::new(Strategy::TokenBucket, u64::from(RATE), Duration::from_secs(1), Some(burst)).expect("valid");
        let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
        let upstream = Slots::new();
        let service = service_fn(move |()| {
            let upstream = upstream.clone();
            async move { upstream.call().await }
        });
        let service = ThroughputLayer::with_errors(limit, WAIT).layer(service);
        Self::Ours(BoxCloneSyncService::new(service.map_err(|_| BoxError::from("not served"))))
    }

    /// Sends a request. Returns true if it was served.
    pub(super) async fn request(&self) -> bool {
        match self {
            Self::Unlimited(upstream) => upstream.call().await.is_ok(),
            Self::Ticker(ticker, upstream) => {
                ticker.tick().await;
                upstream.call().await.is_ok()
            }
            Self::TickerInTime(ticker, upstream) => {
                timeout(WAIT, ticker.tick()).await.is_ok() && upstream.call().await.is_ok()
            }
            Self::Ours(service) => service.clone().oneshot(()).await.is_ok(),
        }
    }
}

impl Ticker {
    fn start() -> Self {
        let ticks = Arc::new(Semaphore::new(BURST));
        let filled = Arc::clone(&ticks);
        let filling = tokio::spawn(async move {
            let period = Duration::from_secs(1) / RATE;
            let mut interval = interval_at(clock::timer_now() + period, period);
            // Timers wake up once per millisecond. Late ticks are added later, so that the rate is exact.
            interval.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                interval.tick().await;
                if filled.available_permits() < BURST {
                    filled.add_permits(1);
                }
            }
        });
        Self { ticks, filling }
    }

    async fn tick(&self) {
        self.ticks.acquire().await.expect("never closed").forget();
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.filling.abort();
    }
}
