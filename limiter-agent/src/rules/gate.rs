//! The rules in force as one client connection asks them.

use std::{cell::RefCell, net::IpAddr, rc::Rc, sync::Arc};

use arc_swap::{ArcSwap, Cache};
use http::{Request, Response};
use weir_core::Time;
use weir_tower::MonotonicClock;

use super::{
    decide::{Asked, Pass, Refusal},
    fields::Fields,
    in_force::RulesInForce,
    jwt::Tokens,
    messages::Messages,
    respond::{Asking, Refused, refused},
    wait::Late,
};
use crate::{
    matching::{AmbiguousPaths, Headers, RequestView},
    proxy::ResponseBody,
};

/// Makes the gates of one worker's client connections. What all of them need is held once: it is read for every request,
/// and a connection that was idle has nothing of its own in the processor's cache.
#[derive(Clone, Debug)]
pub(crate) struct Gates(Rc<Common>);

#[derive(Debug)]
struct Common {
    /// As they were when they were last asked for: to see that there are no others is one read of memory, where to take
    /// part in their ownership is two locked instructions for each request.
    rules: RefCell<Cache<Arc<ArcSwap<RulesInForce>>, Arc<RulesInForce>>>,
    clock: MonotonicClock,
    paths: AmbiguousPaths,
    log_keys: bool,
}

/// Decides on the requests of one client connection. Copies are cheap: each request takes one.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    common: Rc<Common>,
    peer: IpAddr,
}

impl Gates {
    pub(crate) fn new(
        rules: Arc<ArcSwap<RulesInForce>>,
        clock: MonotonicClock,
        paths: AmbiguousPaths,
        log_keys: bool,
    ) -> Self {
        Self(Rc::new(Common { rules: RefCell::new(Cache::new(rules)), clock, paths, log_keys }))
    }

    /// For a connection from there.
    pub(crate) fn of(&self, peer: IpAddr) -> Gate {
        Gate { common: Rc::clone(&self.0), peer }
    }

    /// Lets go of rules that are not in force any more, of which nobody may have asked since.
    pub(crate) fn refresh(&self) {
        self.0.rules.borrow_mut().load();
    }
}

impl Gate {
    /// Decides on a request and charges it. An error is what its client is told.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<Pass, Box<Response<ResponseBody>>> {
        // Loaded once: a request is decided by one snapshot, whole.
        let mut rules = self.common.rules.borrow_mut();
        let rules = rules.load();
        self.ask(rules, request, |asked| {
            rules.decide(asked).map_err(|refusal| {
                rules.log(&refusal, asked, self.common.log_keys);
                Box::new(refused(&refusal, Asking::of(asked.request.headers())))
            })
        })
    }

    /// Decides on a request for a path and a query, and charges it; none, and nothing charged, if it may take more than a
    /// word to do what its rules say. Then [`admit`](Self::admit) is to be asked. `then` is told, and must not ask anything.
    #[inline(always)] // for one caller that all requests go through: nothing of what is told is moved
    pub(crate) fn admit_at_once<R>(
        &self,
        method: &str,
        target: (&str, Option<&str>),
        headers: Headers<'_>,
        then: impl FnOnce(Result<Fields, Refused<'_>>) -> R,
    ) -> Option<R> {
        let mut rules = self.common.rules.borrow_mut();
        let rules = rules.load();
        let now = || -> Time { self.common.clock.now() };
        let request = RequestView::of_target(method, target, headers, self.peer).reading(self.common.paths);
        let asked = Asked { request, tokens: Tokens::new(rules.jwks(), &now), clock: self.common.clock };
        rules.decide_at_once(&asked, |decided| {
            then(decided.map_err(|refusal| {
                rules.log(refusal, &asked, self.common.log_keys);
                Refused::new(refusal, headers)
            }))
        })
    }

    /// What decides on the messages of the connection that this request opens; none if no rule per message is about it.
    pub(crate) fn messages<B>(&self, request: &Request<B>) -> Option<Messages> {
        Messages::of(self, request)
    }

    pub(super) fn rules(&self) -> Arc<RulesInForce> {
        Arc::clone(self.common.rules.borrow_mut().load())
    }

    /// For a refusal that was decided on elsewhere.
    pub(super) fn log<B>(&self, rules: &RulesInForce, refusal: &Refusal<'_>, request: &Request<B>) {
        self.ask(rules, request, |asked| rules.log(refusal, asked, self.common.log_keys));
    }

    /// What a request is answered that waited and cannot go in time any more.
    pub(super) fn refuse_late<B>(&self, late: Late, request: &Request<B>, asking: Asking) -> Response<ResponseBody> {
        late.refuse(|refusal| {
            self.log(&self.rules(), refusal, request);
            refused(refusal, asking)
        })
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
        let request = RequestView::new(request, self.peer).reading(self.common.paths);
        then(&Asked { request, tokens, clock: self.common.clock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_are_not_in_force_any_more_are_let_go() {
        let rules = Arc::new(ArcSwap::from_pointee(RulesInForce::default()));
        let gates = Gates::new(Arc::clone(&rules), MonotonicClock::start(), AmbiguousPaths::Refuse, false);
        let old = Arc::downgrade(&rules.load_full());
        rules.store(Arc::default());
        gates.refresh();
        assert!(old.upgrade().is_none());
        assert!(Arc::ptr_eq(&gates.of(std::net::Ipv4Addr::LOCALHOST.into()).rules(), &rules.load_full()));
    }
}
