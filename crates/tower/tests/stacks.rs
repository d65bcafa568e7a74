//! The layers of this crate between tower's own: each stack must compile, pass a request, and give its caller the
//! refusal.

use std::{error::Error, io, num::NonZeroU64, time::Duration};

use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer, load_shed::error::Overloaded,
};
use weir_core::{Full, InFlight, Limiter, Quota, Refused, Strategy};
use weir_tower::{
    DeadlineExceeded, DeadlineLayer, Errors, LatencyLayer, LimitError, LimiterAdmit, MonotonicClock, RateLimitLayer,
    ThroughputLayer,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(10);

/// One request per hour.
fn limit() -> LimiterAdmit {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(3600), None).expect("valid");
    LimiterAdmit::new(Limiter::new(clock.now(), quota), clock)
}

async fn double(number: u32) -> Result<u32, io::Error> {
    tokio::task::yield_now().await;
    Ok(number * 2)
}

/// The error of the second request, or of the readiness for it.
async fn second_error<S>(mut service: S) -> BoxError
where
    S: Service<u32, Response = u32>,
    S::Error: Into<BoxError>,
{
    let first = service.ready().await.map_err(Into::into).expect("ready").call(21).await;
    assert_eq!(first.map_err(Into::into).expect("admitted"), 42);
    match service.ready().await {
        Ok(ready) => ready.call(21).await.map_err(Into::into).expect_err("over the limit"),
        Err(error) => error.into(),
    }
}

/// This layer between two of each of tower's layers whose error is boxed.
macro_rules! between {
    ($layer:expr) => {
        ServiceBuilder::new()
            .load_shed()
            .buffer(8)
            .timeout(LONG)
            .concurrency_limit(8)
            .layer($layer)
            .load_shed()
            .buffer(8)
            .timeout(LONG)
            .layer(GlobalConcurrencyLimitLayer::new(8))
            .service_fn(double)
    };
}

#[tokio::test(start_paused = true)]
async fn latency_between_towers_layers() {
    let error = second_error(between!(LatencyLayer::with_errors(limit()))).await;
    assert!(error.is::<Refused>(), "{error:?}");
    let error = second_error(between!(LatencyLayer::with_outcome(limit(), Errors))).await;
    assert!(error.is::<Refused>(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn throughput_between_towers_layers() {
    let error = second_error(between!(ThroughputLayer::with_errors(limit(), SHORT))).await;
    assert!(error.is::<Refused>(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn rate_limit_between_towers_layers() {
    let layer = RateLimitLayer::per(1, Duration::from_secs(3600)).unwrap();
    let mut service = between!(layer.clone());
    assert_eq!(service.ready().await.unwrap().call(21).await.unwrap(), 42);
    let shed = ServiceBuilder::new().load_shed().layer(layer).timeout(LONG).service_fn(double);
    assert!(shed.oneshot(21).await.unwrap_err().is::<Overloaded>());
}

#[tokio::test(start_paused = true)]
async fn deadline_between_towers_layers() {
    let mut passes = between!(DeadlineLayer::with_errors(LONG));
    assert_eq!(passes.ready().await.unwrap().call(21).await.unwrap(), 42);
    let slow = ServiceBuilder::new()
        .load_shed()
        .buffer(8)
        .layer(DeadlineLayer::with_errors(SHORT))
        .timeout(LONG)
        .concurrency_limit(1)
        .service_fn(async |_: u32| std::future::pending::<Result<u32, io::Error>>().await);
    assert!(slow.oneshot(21).await.unwrap_err().is::<DeadlineExceeded>());
}

#[tokio::test(start_paused = true)]
async fn all_layers_in_one_stack() {
    let stack = |in_flight| {
        ServiceBuilder::new()
            .load_shed()
            .layer(DeadlineLayer::with_errors(LONG))
            .buffer(8)
            .layer(LatencyLayer::with_errors(in_flight))
            .layer(ThroughputLayer::with_errors(limit(), SHORT))
            .layer(RateLimitLayer::per(9, SHORT).unwrap())
            .concurrency_limit(8)
            .timeout(LONG)
            .service_fn(double)
    };
    let error = second_error(stack(InFlight::new(NonZeroU64::MIN))).await;
    assert!(error.is::<Refused>(), "{error:?}");

    let in_flight = InFlight::new(NonZeroU64::MIN);
    let permit = in_flight.acquire(1).unwrap();
    let error = stack(in_flight).oneshot(21).await.unwrap_err();
    assert!(error.is::<Full>(), "{error:?}");
    drop(permit);
}

#[tokio::test]
async fn an_inner_error_keeps_its_type() {
    let broken = |_: u32| async { Err::<u32, _>(io::Error::from(io::ErrorKind::BrokenPipe)) };
    let service = ServiceBuilder::new()
        .layer(DeadlineLayer::with_errors(LONG))
        .layer(LatencyLayer::with_errors(limit()))
        .service_fn(broken);
    let error = service.oneshot(21).await.unwrap_err();
    assert!(matches!(error, LimitError::Inner(LimitError::Inner(_))));
    let error = BoxError::from(error);
    assert_eq!(error.downcast_ref::<io::Error>().map(io::Error::kind), Some(io::ErrorKind::BrokenPipe));
    let returned = || -> Result<(), Box<dyn Error>> {
        Err(LimitError::<_, BoxError>::Refused(DeadlineExceeded::new(LONG)))?;
        Ok(())
    };
    assert!(returned().unwrap_err().is::<DeadlineExceeded>());
}

#[tokio::test(start_paused = true)]
async fn every_service_gives_its_inner_service() {
    let stack = ServiceBuilder::new()
        .layer(DeadlineLayer::with_errors(LONG))
        .layer(LatencyLayer::with_errors(limit()))
        .layer(ThroughputLayer::with_errors(limit(), SHORT))
        .layer(RateLimitLayer::per(1, SHORT).unwrap());
    let mut service = stack.service("inner");
    *service.get_mut().get_mut().get_mut().get_mut() = "replaced";
    assert_eq!(*service.get_ref().get_ref().get_ref().get_ref(), "replaced");
    assert_eq!(service.into_inner().into_inner().into_inner().into_inner(), "replaced");
}
