//! The way of costs that count a request's body, from the decision to the server that forwards the body.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use http_body::Body;
use weir_tower::MonotonicClock;

use super::body::LimitedBody;
use crate::decide::deferred::DeferredCost;

/// The costs that count the bytes of a request's body.
///
/// A server adds an empty value to the extensions of each request with a body. The [`LimitLayer`](super::LimitLayer)
/// puts the costs into it when it admits the request. The service behind the layer takes the extension and
/// [limits](Self::limit) the body.
#[derive(Clone, Debug, Default)]
pub struct BodyCosts(Arc<Mutex<Vec<DeferredCost>>>);

impl BodyCosts {
    pub(super) fn put(&self, costs: Vec<DeferredCost>) {
        *self.costs() = costs;
    }

    /// Charges the bytes of the body while they pass, no faster than the limits allow. Returns the body itself if no
    /// rule counts it.
    ///
    /// # Errors
    ///
    /// The body that no rule counts.
    pub fn limit<B: Body>(self, body: B, clock: MonotonicClock) -> Result<LimitedBody<B>, B> {
        let costs = mem::take(&mut *self.costs());
        if costs.is_empty() { Err(body) } else { Ok(LimitedBody::new(body, costs, Vec::new(), clock)) }
    }

    fn costs(&self) -> std::sync::MutexGuard<'_, Vec<DeferredCost>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
