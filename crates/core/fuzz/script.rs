//! A script of quotas, changes, requests and times, built from any bytes, and the properties that all scripts must
//! have.
//!
//! From a time at which the whole burst is free until the next change, each decision is compared with the plain model
//! of its strategy. After a change, until the whole burst is free again, the answers of the limit must be consistent:
//! the remaining requests and the retry times.

#[path = "../tests/model/mod.rs"]
mod model;

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use weir_core::{Charge, InvalidQuota, Limiter, Quota, Standing, Strategy, Time};

use self::model::Model;

const STRATEGIES: [Strategy; 7] = Strategy::ALL;

const START: u64 = 1_700_000_000_123_456_789;

/// The end of all scripts, because a supply can saturate after this time.
const END: u64 = START + (1 << 61);

/// The numbers of a quota, valid or not.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Numbers {
    /// Numbers that people would write.
    Small { strategy: u8, requests: u8, period: Period, burst: Option<u8>, debt: u8 },
    /// Any numbers.
    Any { strategy: u8, requests: u64, nanos: u64, burst: Option<u64>, debt: u64 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Period {
    Nanos(u8),
    Millis(u8),
    Seconds(u8),
    Days(u8),
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Waits this many thousandths of an interval or of a period.
    Wait {
        thousandths: u16,
        of_period: bool,
    },
    /// Waits until just before, at, or just after the next boundary of a window.
    Boundary {
        nudge: u8,
    },
    /// Waits for the time that `retry_after` returns for this cost.
    Obey {
        cost: Cost,
    },
    Charge {
        cost: Cost,
    },
    Reserve {
        cost: Cost,
        thousandths: u16,
    },
    /// Gives back the latest charge, now or later. Without such a charge, one unit of any earlier charge.
    GiveBack,
    Retune(Numbers),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Cost {
    One,
    Few(u8),
    /// The first number in 255ths of the largest cost, plus the second number modulo 3.
    Share(u8, u8),
    Any(u64),
}

/// Runs the script that these bytes encode.
///
/// # Errors
///
/// The property that is violated.
pub(crate) fn run(bytes: &[u8]) -> Result<(), String> {
    let mut bytes = Unstructured::new(bytes);
    let quota = loop {
        if bytes.is_empty() {
            return Ok(());
        }
        // Many numbers are not a valid quota.
        if let Some(quota) = bytes.arbitrary::<Numbers>().map_err(|error| error.to_string())?.quota()? {
            break quota;
        }
    };
    let mut run = Run {
        limiter: Limiter::new(Time::from_nanos(START), quota),
        quota,
        model: Some(Model::new(quota)),
        now: START,
        latest: None,
    };
    // A script runs until its bytes end. If a script encoded its own end, most scripts would end immediately.
    for number in 0.. {
        if bytes.is_empty() || run.now > END {
            break;
        }
        let step: Step = bytes.arbitrary().map_err(|error| error.to_string())?;
        run.step(&step).map_err(|wrong| format!("step {number}, {step:?} of {:?}: {wrong}", run.quota))?;
        run.stands().map_err(|wrong| format!("after step {number}, {step:?} of {:?}: {wrong}", run.quota))?;
    }
    Ok(())
}

struct Run {
    limiter: Limiter,
    quota: Quota,
    /// The model of the limit. `None` from a change until the limit is at full credit again.
    model: Option<Model>,
    now: u64,
    /// The latest charge, its time, and the model before it.
    latest: Option<(Charge, u64, Option<Model>)>,
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Wait { thousandths, of_period } => {
                let whole = if of_period { self.period() } else { self.period() / self.quota.requests() };
                let wait = u128::from(whole) * u128::from(thousandths) / 1_000;
                self.now = self.now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
            }
            Step::Boundary { nudge } => {
                let next = (self.now / self.period() + 1).saturating_mul(self.period());
                self.now = next.saturating_add(u64::from(nudge % 3)).saturating_sub(1).max(self.now);
            }
            Step::Obey { cost } => {
                let cost = self.cost(cost);
                if let Some(wait) = self.refusal(cost) {
                    let moment = self.now.saturating_add(wait);
                    if moment <= END {
                        self.now = moment - 1;
                        expect(self.refusal(cost) == Some(1), "a request before its retry time is refused")?;
                        self.now = moment;
                        self.charge(cost)?;
                        expect(
                            self.latest.as_ref().is_some_and(|latest| latest.1 == moment),
                            "a request at its retry time is admitted",
                        )?;
                    }
                }
            }
            Step::Charge { cost } => self.charge(self.cost(cost))?,
            Step::Reserve { cost, thousandths } => self.reserve(self.cost(cost), thousandths)?,
            Step::GiveBack => self.give_back()?,
            Step::Retune(numbers) => self.retune(numbers)?,
        }
        Ok(())
    }

    fn charge(&mut self, cost: u64) -> Result<(), String> {
        let before = self.limiter.peek(self.time());
        match self.limiter.charge(self.time(), cost) {
            Ok(admitted) => {
                expect(self.is_leaky() || cost <= before.remaining(), "admitted more than remained")?;
                let model = self.model.clone();
                if let Some(model) = &mut self.model {
                    let early = tolerance(self.quota);
                    // A request without cost takes neither capacity nor a position in a queue.
                    let admits = cost == 0 || model.admits(self.now.saturating_add(early), cost);
                    expect(admits, "the model refuses")?;
                    model.charge(self.now, self.now, cost);
                }
                self.latest = Some((admitted.charge, self.now, model));
            }
            Err(refused) => {
                // A request without cost is refused while the limit is overdrawn.
                expect(self.is_leaky() || cost == 0 || cost > before.remaining(), "refused, although enough was left")?;
                expect(refused.retry_after().is_some() == (cost <= self.quota.most()), "a wrong retry time")?;
                expect(self.model.as_ref().is_none_or(|model| !model.admits(self.now, cost)), "the model admits")?;
                expect(same(before, self.limiter.peek(self.time())), "a refusal leaves a trace")?;
            }
        }
        Ok(())
    }

    fn reserve(&mut self, cost: u64, thousandths: u16) -> Result<(), String> {
        let patience = u128::from(self.period()) * u128::from(thousandths) / 1_000;
        let latest = self.now.saturating_add(u64::try_from(patience).unwrap_or(u64::MAX));
        let Ok(reserved) = self.limiter.reserve(self.time(), cost, Time::from_nanos(latest)) else {
            return Ok(());
        };
        let at = reserved.at.as_nanos();
        expect(at >= self.now && at <= latest, "a reservation is between now and the latest time")?;
        let before = self.model.clone();
        if let Some(model) = self.model.as_mut().filter(|_| cost > 0) {
            let early = tolerance(self.quota);
            let first = model.first(self.now, cost).ok_or("a reservation for a cost that is never admitted")?;
            expect(at <= first && at.saturating_add(early) >= first, "the reservation has a wrong time")?;
            expect(model.has_room_in_queue(self.now.saturating_add(early), cost), "the queue was full")?;
            model.charge(self.now, at, cost);
        }
        // After giving back a future reservation, a part of it can stay charged.
        let model = before.filter(|_| at == self.now);
        self.latest = Some((reserved.charge, self.now, model));
        Ok(())
    }

    fn give_back(&mut self) -> Result<(), String> {
        let before = self.limiter.peek(self.time()).remaining();
        let Some((charge, charged, model)) = self.latest.take() else {
            self.limiter.credit(1, || self.time());
            if let Some(model) = &mut self.model {
                model.credit(self.now, 1);
            }
            return expect(self.limiter.peek(self.time()).remaining() >= before, "a credit took capacity");
        };
        self.limiter.refund(charge, || self.time());
        expect(self.limiter.peek(self.time()).remaining() >= before, "a refund took capacity")?;
        self.model = model.filter(|_| charged == self.now);
        Ok(())
    }

    fn retune(&mut self, numbers: Numbers) -> Result<(), String> {
        let Some(quota) = numbers.quota()? else { return Ok(()) };
        let (old, before) = (self.quota, self.limiter.peek(self.time()));
        self.limiter = self.limiter.retune(|| self.time(), old);
        expect(same(before, self.limiter.peek(self.time())), "an equal quota changed the state")?;
        if quota == old {
            return Ok(());
        }
        self.limiter = self.limiter.retune(|| self.time(), quota);
        (self.quota, self.model) = (quota, None);
        if let Some((_, _, model)) = &mut self.latest {
            *model = None;
        }
        let (free, after) = (before.remaining(), self.limiter.peek(self.time()).remaining());
        // This is not checked for windows, which count charges in the period in which they came, and for buckets with
        // debt, which can be overdrawn. `tests/retunes.rs` checks both.
        let is_bucket =
            |quota: Quota| matches!(quota.strategy(), Strategy::TokenBucket | Strategy::Gcra | Strategy::LeakyBucket);
        expect(!is_bucket(old) || !is_bucket(quota) || after <= free, "a change freed requests")?;
        let is_window = |quota: Quota| quota.strategy() == Strategy::FixedWindow;
        let raised = quota.requests().saturating_sub(old.requests());
        let same_windows = is_window(old) && is_window(quota) && old.period() == quota.period();
        expect(!same_windows || after <= free + raised, "a change freed more requests than the limit was raised by")
    }

    /// Checks the properties that are true at any time.
    fn stands(&mut self) -> Result<(), String> {
        let standing = self.limiter.peek(self.time());
        expect(standing.remaining() <= self.quota.most(), "more requests remain than the quota has")?;
        let is_reset = standing.reset_after() == Duration::ZERO;
        if is_reset && self.model.is_none() {
            self.model = Some(Model::new(self.quota));
        }
        if let Some(model) = &self.model {
            let (said, exact) = (nanos(standing.reset_after()), model.idle(self.now) - self.now);
            let about = said <= exact && said.saturating_add(tolerance(self.quota)) >= exact;
            expect(about || said.max(exact) > 1 << 61, &format!("reset after {said} ns, exact are {exact}"))?;
        }
        Ok(())
    }

    fn refusal(&self, cost: u64) -> Option<u64> {
        let standing = self.limiter.peek(self.time());
        // A log returns the shortest wait only for the cost that it decided on.
        let wait = match self.quota.strategy() {
            Strategy::SlidingWindowLog if cost != 1 => None,
            _ => standing.retry_after(cost),
        };
        wait.map(nanos).filter(|&wait| wait > 0)
    }

    fn cost(&self, cost: Cost) -> u64 {
        match cost {
            Cost::One => 1,
            Cost::Few(few) => u64::from(few),
            Cost::Share(share, more) => {
                let part = u128::from(self.quota.most()) * u128::from(share) / 255;
                u64::try_from(part).unwrap_or(u64::MAX).saturating_add(u64::from(more % 3))
            }
            Cost::Any(any) => any,
        }
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn period(&self) -> u64 {
        nanos(self.quota.period())
    }

    fn is_leaky(&self) -> bool {
        self.quota.strategy() == Strategy::LeakyBucket
    }
}

impl Numbers {
    /// Returns the quota, or `None` if the numbers are not a valid quota. An error if core reports a wrong fault.
    fn quota(self) -> Result<Option<Quota>, String> {
        let (strategy, requests, nanos, burst, debt) = match self {
            Self::Small { strategy, requests, period, burst, debt } => {
                let nanos = match period {
                    Period::Nanos(nanos) => u64::from(nanos),
                    Period::Millis(millis) => u64::from(millis) * 1_000_000,
                    Period::Seconds(seconds) => u64::from(seconds) * 1_000_000_000,
                    Period::Days(days) => u64::from(days) * 86_400_000_000_000,
                };
                (strategy, u64::from(requests), nanos, burst.map(u64::from), u64::from(debt))
            }
            Self::Any { strategy, requests, nanos, burst, debt } => (strategy, requests, nanos, burst, debt),
        };
        let strategy = STRATEGIES[usize::from(strategy) % STRATEGIES.len()];
        // A log of a million requests would make a script slow.
        let requests = if strategy == Strategy::SlidingWindowLog { requests % 512 } else { requests };
        let period = Duration::from_nanos(nanos);
        let quota = match Quota::new(strategy, requests, period, burst) {
            Ok(quota) if strategy == Strategy::TokenBucketWithDebt => quota.with_debt(debt),
            quota => quota,
        };
        match quota {
            Ok(quota) => {
                expect(quota.requests() == requests && quota.period() == period, "a quota returns its arguments")?;
                expect(quota.requests() > 0 && quota.most() > 0 && quota.burst() > 0, "a quota is never zero")?;
                Ok(Some(quota))
            }
            Err(invalid) => {
                let field = match invalid.field() {
                    "requests" => requests == 0 || requests > nanos || requests >= 1 << 20,
                    "period" => nanos == 0 || nanos > 1 << 61,
                    "burst" => burst.is_some(),
                    "debt" => invalid == InvalidQuota::DebtTooLarge && debt > 0,
                    _ => false,
                };
                expect(field, "the reported field is not the faulty field").map(|()| None)
            }
        }
    }
}

/// Returns the number of nanoseconds by which a bucket can admit early: see `tests/properties.rs`.
fn tolerance(quota: Quota) -> u64 {
    let refill = u128::from(quota.most()) * quota.period().as_nanos() / u128::from(quota.requests());
    match quota.strategy() {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 0,
        _ => u64::try_from(refill >> 61).unwrap_or(u64::MAX).saturating_add(2),
    }
}

fn same(one: Standing, other: Standing) -> bool {
    let numbers = |standing: Standing| (standing.remaining(), standing.reset_after(), standing.retry_after(1));
    numbers(one) == numbers(other)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn expect(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}
