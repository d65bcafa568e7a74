//! The limiters of a rule that counts all requests together.
//!
//! A change of the terms makes another list of limiters. The limiter of a limit that stays leads its old handles to the
//! new quota by itself. But an old list lacks the added limits, and still has the removed ones. So an old list also leads
//! to the new list. Requests that wait keep their list for a long time.

use std::{borrow::Cow, sync::Arc};

use crate::{
    Admitted, Limiter, RuleRefused, Terms, Time,
    all::{Charges, charge_limiters_at},
    answer::{Charged, RuleAdmitted, RuleCharge, Tightest},
    chain::{Chain, Replaced},
    forecast::Forecast,
    queue::Queue,
    sync::{AtomicBool, Mutex, Ordering, lock},
};

/// The limiters of a rule under some terms. All clones share the state.
#[derive(Clone, Debug)]
pub(super) struct Unkeyed {
    /// The limiters of the state. They are also here, because each step to them makes a decision slower.
    limiters: Arc<[Limiter]>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    terms: Terms,
    limiters: Arc<[Limiter]>,
    /// The requests that wait under these terms, earlier ones and later ones.
    queue: Arc<Queue>,
    /// The number of earlier retunes.
    retunes: u64,
    /// Whether the chain has a successor. This flag spares decisions the lock of the chain.
    is_replaced: AtomicBool,
    chain: Chain<Self>,
    /// Held by the thread that makes the successor.
    retuning: Mutex<()>,
}

impl Unkeyed {
    pub(super) fn new(now: Time, terms: Terms) -> Self {
        let limiters = terms.limits().map(|(_, quota)| Limiter::new(now, quota)).collect();
        Self::of(Arc::new(State::new(terms, limiters, Arc::default(), 0, Chain::first())))
    }

    fn of(state: Arc<State>) -> Self {
        Self { limiters: Arc::clone(&state.limiters), state }
    }

    pub(super) fn limiters(&self) -> &[Limiter] {
        &self.limiters
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.state.queue
    }

    pub(super) fn forecast(&self, now: Time) -> Forecast {
        Forecast::new(now, self.limiters.iter().map(|limiter| limiter.copy(now)))
    }

    #[inline]
    fn is_replaced(&self) -> bool {
        self.state.is_replaced.load(Ordering::Acquire)
    }

    fn successor(&self) -> Option<Self> {
        if self.is_replaced() { self.state.chain.successor().map(Self::of) } else { None }
    }

    /// Returns the limiters under the terms in force.
    pub(super) fn in_force(&self) -> Cow<'_, Self> {
        let mut last = Cow::Borrowed(self);
        while let Some(next) = last.successor() {
            last = Cow::Owned(next);
        }
        last
    }

    #[inline]
    pub(super) fn charge(&self, clock: impl Fn() -> Time, cost: u64) -> Result<RuleAdmitted, RuleRefused> {
        if self.is_replaced() {
            return self.charge_in_force(&clock, cost);
        }
        self.charge_here(clock(), clock, cost)
    }

    #[cold]
    #[inline(never)]
    fn charge_in_force(&self, clock: &dyn Fn() -> Time, cost: u64) -> Result<RuleAdmitted, RuleRefused> {
        self.in_force().charge_here(clock(), clock, cost)
    }

    #[inline]
    fn charge_here(&self, now: Time, clock: impl Fn() -> Time, cost: u64) -> Result<RuleAdmitted, RuleRefused> {
        if let [limiter] = self.limiters() {
            let Admitted { standing, charge } =
                limiter.charge(now, cost).map_err(|refused| RuleRefused::by(0, refused))?;
            let tightest = Tightest { limit: 0, standing, override_index: None };
            let of = Charged::One { charge, retunes: self.state.retunes };
            return Ok(RuleAdmitted { charge: RuleCharge { of }, tightest });
        }
        let mut tightest = Tightest::none();
        let charges = charge_limiters_at(&self.limiters, now, clock, cost, |standing| tightest.consider(standing))?;
        let charge = RuleCharge { of: self.several(charges) };
        Ok(RuleAdmitted { charge, tightest: tightest.with_override(None) })
    }

    pub(super) fn several(&self, charges: Charges) -> Charged {
        Charged::Several { charges, retunes: self.state.retunes }
    }

    /// Gives back a charge that was made after this number of retunes. Calls `refund` with the limiters that were
    /// charged. An older `self` does not find limiters that were replaced since. Then the charge stays.
    pub(super) fn refund(&self, retunes: u64, refund: impl FnOnce(&[Limiter])) {
        let mut charged = Cow::Borrowed(self);
        while charged.state.retunes < retunes
            && let Some(next) = charged.successor()
        {
            charged = Cow::Owned(next);
        }
        if charged.state.retunes == retunes {
            refund(&charged.limiters);
            self.queue().wake_head();
        }
    }

    pub(super) fn retune(&self, clock: &impl Fn() -> Time, terms: Terms) -> Self {
        let mut last = self.clone();
        let next = loop {
            let guard = lock(&last.state.retuning);
            if let Some(next) = last.successor() {
                drop(guard);
                last = next;
            } else if last.state.terms == terms {
                drop(guard);
                return last;
            } else {
                let next = last.replace(clock, terms);
                drop(guard);
                break next;
            }
        };
        let now = clock();
        next.queue().reassess(now, || next.in_force().forecast(now));
        next
    }

    /// Makes the successor. The caller must hold `retuning`.
    fn replace(&self, clock: &impl Fn() -> Time, terms: Terms) -> Self {
        let places = terms.places_in(&self.state.terms);
        let limiters = terms.limits().zip(places).map(|((_, quota), place)| match place {
            Some(place) => self.limiters[place].retune(clock, quota),
            None => Limiter::new(clock(), quota),
        });
        let (limiters, queue, chain) = (limiters.collect(), Arc::clone(self.queue()), Chain::after(&self.state));
        let next = Arc::new(State::new(terms, limiters, queue, self.state.retunes + 1, chain));
        self.state.chain.set(&next);
        self.state.is_replaced.store(true, Ordering::Release);
        self.state.chain.shorten(&next);
        Self::of(next)
    }
}

impl State {
    fn new(terms: Terms, limiters: Arc<[Limiter]>, queue: Arc<Queue>, retunes: u64, chain: Chain<Self>) -> Self {
        let (is_replaced, retuning) = (AtomicBool::new(false), Mutex::new(()));
        Self { terms, limiters, queue, retunes, is_replaced, chain, retuning }
    }
}

impl Replaced for State {
    fn retunes(&self) -> u64 {
        self.retunes
    }

    fn chain(&self) -> &Chain<Self> {
        &self.chain
    }

    fn chain_mut(&mut self) -> &mut Chain<Self> {
        &mut self.chain
    }
}
