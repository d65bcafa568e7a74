//! The rules in force as a tower layer asks them: [`Gate`] decides, [`Respond`] writes what the client is told.

use std::{net::IpAddr, sync::Arc};

use arc_swap::ArcSwap;
use http::{HeaderValue, Request, Response, header};
use weir_tower::{Admit, Answer, MonotonicClock};

use super::{
    decide::{Asked, Refusal},
    fields::Fields,
    in_force::RulesInForce,
};
use crate::{matching::RequestView, proxy::ResponseBody};

/// Decides on the requests of one client connection.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    rules: Arc<ArcSwap<RulesInForce>>,
    clock: MonotonicClock,
    peer: IpAddr,
}

impl Gate {
    pub(crate) fn new(rules: Arc<ArcSwap<RulesInForce>>, clock: MonotonicClock, peer: IpAddr) -> Self {
        Self { rules, clock, peer }
    }
}

impl<B> Admit<Request<B>> for Gate {
    type Pass = Fields;
    type Refusal = Refusal;

    fn admit(&self, request: &Request<B>) -> Result<Fields, Refusal> {
        let asked = Asked { request: RequestView::new(request), peer: self.peer, clock: || self.clock.now() };
        // Loaded once: a request is decided by one snapshot, whole.
        self.rules.load().decide(&asked)
    }
}

/// Writes refusals, and the fields of responses that were let through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Respond;

impl Answer<Fields, Refusal, Response<ResponseBody>> for Respond {
    fn refused(&self, refusal: Refusal) -> Response<ResponseBody> {
        let Refusal { rule, place, override_index } = refusal;
        let limits = rule.limits.as_ref().expect("only a rule with limits refuses");
        let mut response = Response::new(ResponseBody::own(limits.refusal(place.limit, place.seconds)));
        *response.status_mut() = limits.status;
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, place.seconds.into());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        limits.advice.fields(&place, limits.advice.policy(override_index).clone()).write(headers);
        response
    }

    fn admitted(&self, fields: Fields, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        fields.write(response.headers_mut());
        response
    }
}
