//! The entry for requests: the rules in force decide on one request at a time.
//!
//! A server calls a [`Gate`] for each request. A [`ConnectionGate`] serves one client connection on one thread and is
//! the fastest. A [`SyncGate`](crate::SyncGate) is for programs whose requests move between threads.

use std::{cell::RefCell, net::IpAddr, rc::Rc, sync::Arc};

use arc_swap::{ArcSwap, Cache};
use http::{Extensions, Request, Uri};
use weir_core::Time;
use weir_tower::MonotonicClock;

use super::{
    decide::{
        RequestContext,
        refusal::Refusal,
        verdict::{Pass, Verdict},
        wait::LateRefusal,
    },
    in_force::RulesInForce,
    jwt::Tokens,
};
use crate::matching::{AmbiguousPaths, Headers, RequestView};

/// Decides on requests with the rules in force, and charges them. [`LiveRules`](crate::LiveRules) has an example.
pub trait Gate {
    /// Calls `then` with the rules in force. The rules do not change during the call, so one snapshot decides on a
    /// request.
    fn with_rules<T>(&self, then: impl FnOnce(&Arc<RulesInForce>) -> T) -> T;

    /// Returns the options, which do not change with the rules.
    fn options(&self) -> &GateOptions;

    /// Returns the address of the peer of a request's connection.
    fn client(&self, extensions: &Extensions) -> IpAddr;

    /// Returns the target that rules read.
    fn target<'r, B>(&self, request: &'r Request<B>) -> &'r Uri {
        request.uri()
    }

    /// Decides on a request and charges it. `then` must not call this gate.
    fn decide<B, T>(&self, request: &Request<B>, then: impl FnOnce(Verdict<'_>) -> T) -> T {
        self.with_rules(|rules| {
            with_request_context(self, rules, request, |context| {
                let verdict = rules.decide(context);
                if let Verdict::Refuse(refusal) = &verdict {
                    rules.log(refusal, context, self.options().log_keys);
                }
                then(verdict)
            })
        })
    }

    /// Counts and returns the refusal of a request that waited and can no longer be admitted in time.
    fn refuse_late<B, T>(&self, late: LateRefusal, request: &Request<B>, then: impl FnOnce(&Refusal<'_>) -> T) -> T {
        late.refuse(|refusal| {
            self.with_rules(|rules| {
                with_request_context(self, rules, request, |context| {
                    rules.log(refusal, context, self.options().log_keys);
                });
            });
            then(refusal)
        })
    }
}

/// The options of a [`Gate`].
///
/// ```
/// use weir_enforce::{AmbiguousPaths, GateOptions};
/// use weir_tower::MonotonicClock;
///
/// // For a server that normalizes paths before it routes them.
/// let options = GateOptions { clock: MonotonicClock::start(), paths: AmbiguousPaths::Keep, log_keys: false };
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GateOptions {
    /// The clock of all limits.
    pub clock: MonotonicClock,
    /// How rules read ambiguous paths, which apps read in different ways. With `Refuse`, a
    /// [`LimitLayer`](crate::LimitLayer) refuses such a request. A server without this layer must refuse the request
    /// before it calls the gate, because rules read the path as with `Keep`.
    pub paths: AmbiguousPaths,
    /// Whether log lines of refusals contain the key, which can be a secret.
    pub log_keys: bool,
}

/// Creates the gates of one worker's client connections. All gates share one copy of the rules and the options. Every
/// request reads this copy, so it stays in the processor's cache, while the data of an idle connection does not.
#[derive(Clone, Debug)]
pub struct Gates(Rc<Common>);

#[derive(Debug)]
struct Common {
    /// A cache of the rules. The check whether they are still in force is one load, while a clone of the `Arc` would
    /// cost two locked instructions for each request.
    rules: RefCell<Cache<Arc<ArcSwap<RulesInForce>>, Arc<RulesInForce>>>,
    options: GateOptions,
}

/// Decides on the requests of one client connection. Each request takes a clone, which is cheap.
#[derive(Clone, Debug)]
pub struct ConnectionGate {
    common: Rc<Common>,
    client: IpAddr,
}

impl Gates {
    /// Creates the gates of a worker. `rules` must always contain the rules in force, even after a change.
    pub fn new(rules: Arc<ArcSwap<RulesInForce>>, options: GateOptions) -> Self {
        Self(Rc::new(Common { rules: RefCell::new(Cache::new(rules)), options }))
    }

    /// Returns a gate for a connection from this client.
    pub fn of(&self, client: IpAddr) -> ConnectionGate {
        ConnectionGate { common: Rc::clone(&self.0), client }
    }

    /// Drops cached rules that are no longer in force. Without this call, a worker without requests would keep them.
    pub fn refresh(&self) {
        self.0.rules.borrow_mut().load();
    }
}

impl Gate for ConnectionGate {
    fn with_rules<T>(&self, then: impl FnOnce(&Arc<RulesInForce>) -> T) -> T {
        then(self.common.rules.borrow_mut().load())
    }

    fn options(&self) -> &GateOptions {
        &self.common.options
    }

    fn client(&self, _: &Extensions) -> IpAddr {
        self.client
    }
}

impl ConnectionGate {
    /// Decides on a request for a path and a query, and charges it. `body` is the length of its body, which has arrived
    /// as a whole. Returns `None` and charges nothing if the request or its body must wait, if a store must be asked, or
    /// if the bytes of the response are counted. Then the caller must call [`decide`](Gate::decide). `then` must not
    /// call this gate.
    #[inline(always)] // the only caller handles every request, and inlining avoids copies of the verdict
    pub fn decide_at_once<T>(
        &self,
        method: &str,
        target: (&str, Option<&str>),
        headers: Headers<'_>,
        body: usize,
        then: impl FnOnce(Result<Pass, &Refusal<'_>>) -> T,
    ) -> Option<T> {
        let mut rules = self.common.rules.borrow_mut();
        let rules = rules.load();
        let GateOptions { clock, paths, log_keys } = &self.common.options;
        let now = || -> Time { clock.now() };
        let request = RequestView::of_target(method, target, headers, self.client).reading(*paths);
        let context = RequestContext { request, tokens: Tokens::new(rules.jwks(), &now), clock: *clock };
        rules.decide_at_once(&context, body, |decided| {
            if let Err(refusal) = &decided {
                rules.log(refusal, &context, *log_keys);
            }
            then(decided)
        })
    }
}

/// Calls `then` with the view of a request that rules read.
fn with_request_context<B, T>(
    gate: &(impl Gate + ?Sized),
    rules: &RulesInForce,
    request: &Request<B>,
    then: impl FnOnce(&RequestContext<'_>) -> T,
) -> T {
    let now = || gate.options().clock.now();
    with_tokens(gate, Tokens::new(rules.jwks(), &now), request, then)
}

/// Calls `then` with the view of a request that has these tokens.
pub(super) fn with_tokens<B, T>(
    gate: &(impl Gate + ?Sized),
    tokens: Tokens<'_>,
    request: &Request<B>,
    then: impl FnOnce(&RequestContext<'_>) -> T,
) -> T {
    let GateOptions { clock, paths, .. } = gate.options();
    let (target, headers) = (gate.target(request), Headers::Map(request.headers()));
    let client = gate.client(request.extensions());
    let request = RequestView::of_parts(request.method().as_str(), target, headers, client).reading(*paths);
    then(&RequestContext { request, tokens, clock: *clock })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_no_longer_in_force_are_dropped() {
        let rules = Arc::new(ArcSwap::from_pointee(RulesInForce::default()));
        let options = GateOptions { clock: MonotonicClock::start(), paths: AmbiguousPaths::Refuse, log_keys: false };
        let gates = Gates::new(Arc::clone(&rules), options);
        let old = Arc::downgrade(&rules.load_full());
        rules.store(Arc::default());
        gates.refresh();
        assert!(old.upgrade().is_none());
        let gate = gates.of(std::net::Ipv4Addr::LOCALHOST.into());
        assert!(gate.with_rules(|current| Arc::ptr_eq(current, &rules.load_full())));
    }
}
