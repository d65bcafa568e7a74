//! governor as tower middleware, written in the simplest way: `poll_ready` calls the limiter, and sleeps for the time
//! that the limiter returns.

use std::{
    future::Future as _,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use tokio::time::{Sleep, sleep};
use tower::Service;

pub(super) struct Governed<S> {
    inner: S,
    limiter: Arc<DefaultDirectRateLimiter>,
    clock: DefaultClock,
    sleep: Option<Pin<Box<Sleep>>>,
    admitted: bool,
}

impl<S> Governed<S> {
    pub(super) fn new(inner: S, per_second: u32) -> Self {
        let quota = Quota::per_second(NonZeroU32::new(per_second).expect("no limit is zero"));
        let limiter = Arc::new(RateLimiter::direct(quota));
        Self { inner, limiter, clock: DefaultClock::default(), sleep: None, admitted: false }
    }
}

impl<S: Clone> Clone for Governed<S> {
    fn clone(&self) -> Self {
        let (limiter, clock) = (Arc::clone(&self.limiter), self.clock.clone());
        Self { inner: self.inner.clone(), limiter, clock, sleep: None, admitted: false }
    }
}

impl<S: Service<Request>, Request> Service<Request> for Governed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.inner.poll_ready(context))?;
        while !self.admitted {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(context));
                self.sleep = None;
            }
            match self.limiter.check() {
                Ok(()) => self.admitted = true,
                Err(refused) => self.sleep = Some(Box::pin(sleep(refused.wait_time_from(self.clock.now())))),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> S::Future {
        self.admitted = false;
        self.inner.call(request)
    }
}
