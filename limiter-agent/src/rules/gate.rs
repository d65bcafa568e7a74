//! The rules in force as one client connection asks them.

use std::{net::IpAddr, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use http::Request;
use weir_core::Time;
use weir_tower::MonotonicClock;

use super::{
    decide::{Asked, Pass, Refusal},
    fields::Fields,
    in_force::RulesInForce,
    jwt::Tokens,
    messages::Messages,
    respond::Refused,
};
use crate::matching::{Headers, RequestView};

/// Makes the gates of one worker's client connections. What all of them need is held once: it is read for every request,
/// and a connection that was idle has nothing of its own in the processor's cache.
#[derive(Clone, Debug)]
pub(crate) struct Gates(Arc<Common>);

#[derive(Debug)]
struct Common {
    rules: Arc<ArcSwap<RulesInForce>>,
    clock: MonotonicClock,
    log_keys: bool,
}

/// Decides on the requests of one client connection. Copies are cheap: each request takes one.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    common: Arc<Common>,
    peer: IpAddr,
}

impl Gates {
    pub(crate) fn new(rules: Arc<ArcSwap<RulesInForce>>, clock: MonotonicClock, log_keys: bool) -> Self {
        Self(Arc::new(Common { rules, clock, log_keys }))
    }

    /// For a connection from there.
    pub(crate) fn of(&self, peer: IpAddr) -> Gate {
        Gate { common: Arc::clone(&self.0), peer }
    }
}

impl Gate {
    /// Decides on a request and charges it.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<Pass, Refusal> {
        // Loaded once: a request is decided by one snapshot, whole.
        let rules = self.common.rules.load();
        self.ask(&rules, request, |asked| {
            rules.decide(asked).inspect_err(|refusal| rules.log(refusal, asked, self.common.log_keys))
        })
    }

    /// Decides on a request for a path and a query, and charges it; none, and nothing charged, if it may take more than a
    /// word to do what its rules say. Then [`admit`](Self::admit) is to be asked.
    pub(crate) fn admit_at_once(
        &self,
        method: &str,
        target: (&str, Option<&str>),
        headers: Headers<'_>,
    ) -> Option<Result<Fields, Refused>> {
        let rules = self.common.rules.load();
        let now = || -> Time { self.common.clock.now() };
        let request = RequestView::of_target(method, target, headers, self.peer);
        let asked = Asked { request, tokens: Tokens::new(rules.jwks(), &now), clock: self.common.clock };
        match rules.decide_at_once(&asked)? {
            Ok(pass) => Some(Ok(pass.fields)),
            Err(refusal) => {
                rules.log(&refusal, &asked, self.common.log_keys);
                Some(Err(Refused::new(refusal, headers)))
            }
        }
    }

    /// What decides on the messages of the connection that this request opens; none if no rule per message is about it.
    pub(crate) fn messages<B>(&self, request: &Request<B>) -> Option<Messages> {
        Messages::of(self, request)
    }

    pub(super) fn rules(&self) -> Guard<Arc<RulesInForce>> {
        self.common.rules.load()
    }

    /// For a refusal that was decided on elsewhere.
    pub(super) fn log<B>(&self, rules: &RulesInForce, refusal: &Refusal, request: &Request<B>) {
        self.ask(rules, request, |asked| rules.log(refusal, asked, self.common.log_keys));
    }

    pub(super) fn clock(&self) -> MonotonicClock {
        self.common.clock
    }

    pub(super) fn ask<B, R>(
        &self,
        rules: &RulesInForce,
        request: &Request<B>,
        then: impl FnOnce(&Asked<'_>) -> R,
    ) -> R {
        let now = || -> Time { self.common.clock.now() };
        let tokens = Tokens::new(rules.jwks(), &now);
        then(&Asked { request: RequestView::new(request, self.peer), tokens, clock: self.common.clock })
    }
}
