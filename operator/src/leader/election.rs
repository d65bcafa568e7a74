//! What a candidate does next, given what it observed at which time. Pure: no clock, no network.
//!
//! One [`Election`] per process. Its caller asks for the [`next`](Election::next) step, takes it, and tells what came of
//! it: [`read`](Election::read), [`claimed`](Election::claimed), or [`shown`](Election::shown) for what a watch brings
//! meanwhile. Hints of a watch may be late or missing: only a read or a write that went through makes or unmakes a leader.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::term::micros;
use super::timing::{LONGEST_LEASE, Timing};

/// Time since this machine was started, sleep included. Never compared with that of another machine.
pub type Moment = Duration;

/// A new lease may be this far ahead of the clock in its sequences; one that says more was not written by an operator.
const SEQUENCE_HORIZON: u64 = 365 * 24 * 3_600_000_000;
/// The first pause after a failure is at most this long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The Lease as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its resource version.
    pub version: String,
    /// Who holds it; none after a release.
    pub holder: Option<String>,
    /// How long the holder keeps it without a sign of life.
    pub lease: Duration,
    /// How often it changed hands.
    pub transitions: i32,
    /// The holder puts only smaller sequences on its snapshots.
    pub sequences_below: u64,
}

/// A write to the Lease that is refused if it is not `version` any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it is based on; none makes the Lease.
    pub version: Option<String>,
    /// Who holds it then; none releases it.
    pub holder: Option<String>,
    /// Whether the holder is another one than before.
    pub acquires: bool,
    /// How long it lasts.
    pub lease: Duration,
    /// How often it changed hands.
    pub transitions: i32,
    /// The holder's sequences are smaller.
    pub sequences_below: u64,
    /// If this begins a term: its first sequence.
    first_sequence: Option<u64>,
}

/// What came of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This is the Lease now.
    Stored(Record),
    /// It was not what the claim was based on.
    Conflict,
    /// Nobody knows; it may still be on its way.
    Unknown,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the Lease from the store itself.
    Read,
    /// Write it.
    Claim(Claim),
    /// Nothing until then, unless a watch shows something.
    Wait(Moment),
}

/// A term of leadership, as far as it is agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// When it began.
    pub since: Moment,
    /// When it ends, unless it is renewed.
    pub until: Moment,
    /// The sequence of its first moment; each microsecond has one.
    pub first_sequence: u64,
    /// All its sequences are smaller.
    pub sequences_below: u64,
}

/// One candidate.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    view: View,
    /// The version that was last seen, and empty for no Lease: seeing it again is no sign of life.
    seen: Option<String>,
    /// When that was.
    sign_of_life: Option<Moment>,
    tenure: Option<Tenure>,
    renew_at: Moment,
    /// The holder that was seen last may believe in its Lease until then, even if the Lease is gone.
    believed_until: Moment,
    /// After a failure nothing is asked before this moment.
    not_before: Moment,
    failures: u32,
    rng: SmallRng,
}

#[derive(Debug)]
enum View {
    Unknown,
    Absent,
    Present(Record),
}

impl Election {
    /// A candidate that knows nothing yet. `identity` must be nobody else's.
    pub fn new(identity: String, timing: Timing, seed: u64) -> Self {
        Self {
            identity,
            timing,
            view: View::Unknown,
            seen: None,
            sign_of_life: None,
            tenure: None,
            renew_at: Moment::ZERO,
            believed_until: Moment::ZERO,
            not_before: Moment::ZERO,
            failures: 0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// The term, if this candidate leads at this moment.
    pub fn tenure(&self, now: Moment) -> Option<Tenure> {
        self.tenure.filter(|tenure| now < tenure.until)
    }

    /// When the Lease was last seen to be written.
    pub fn sign_of_life(&self) -> Option<Moment> {
        self.sign_of_life
    }

    /// What to do now. `unix_micros` is where sequences begin if the Lease names none.
    pub fn next(&mut self, now: Moment, unix_micros: u64) -> Step {
        self.tenure = self.tenure(now);
        if now < self.not_before {
            return self.wait(self.not_before);
        }
        let record = match &self.view {
            View::Unknown => return Step::Read,
            View::Absent => None,
            View::Present(record) => Some(record),
        };
        let is_mine = record.is_some_and(|record| record.holder.as_ref() == Some(&self.identity));
        let claim_at = match self.tenure {
            Some(_) if is_mine => self.renew_at,
            // Somebody took it away by hand: it is wanted back before anybody else takes it.
            Some(_) => now,
            // Held under this name, by a write whose answer never came or before a restart.
            None if is_mine || record.is_some_and(|record| record.holder.is_none()) => now,
            None => self.believed_until,
        };
        if now < claim_at {
            return self.wait(claim_at);
        }
        Step::Claim(self.claim(now, unix_micros, is_mine))
    }

    fn wait(&self, until: Moment) -> Step {
        Step::Wait(self.tenure.map_or(until, |tenure| until.min(tenure.until)))
    }

    fn claim(&self, now: Moment, unix_micros: u64, is_mine: bool) -> Claim {
        let record = match &self.view {
            View::Present(record) => Some(record),
            View::Absent | View::Unknown => None,
        };
        let (since, first_sequence) = match self.tenure {
            Some(tenure) => (tenure.since, tenure.first_sequence),
            None => {
                let reserved = record.map_or(0, |record| record.sequences_below);
                let plausible = reserved <= unix_micros.saturating_add(SEQUENCE_HORIZON);
                (now, if plausible { reserved.max(unix_micros) } else { unix_micros })
            }
        };
        Claim {
            version: record.map(|record| record.version.clone()),
            holder: Some(self.identity.clone()),
            acquires: !is_mine,
            lease: self.timing.lease(),
            transitions: record.map_or(0, |record| record.transitions.saturating_add(i32::from(!is_mine))),
            sequences_below: first_sequence.saturating_add(micros(now - since + self.timing.lease())),
            first_sequence: self.tenure.is_none().then_some(first_sequence),
        }
    }

    /// The write that gives the Lease back, if it is held. Nothing may be written under the term from then on.
    pub fn release(&mut self) -> Option<Claim> {
        self.tenure = None;
        let View::Present(record) = &self.view else { return None };
        (record.holder.as_ref() == Some(&self.identity)).then(|| Claim {
            version: Some(record.version.clone()),
            holder: None,
            acquires: false,
            lease: Duration::from_secs(1),
            transitions: record.transitions,
            sequences_below: record.sequences_below,
            first_sequence: None,
        })
    }

    /// The store itself was read; none: there is no Lease. An error: there was no answer.
    pub fn read(&mut self, now: Moment, answer: Result<Option<Record>, ()>) {
        let Ok(record) = answer else { return self.failed(now) };
        self.failures = 0;
        if record.as_ref().is_some_and(|record| record.holder.as_ref() != Some(&self.identity)) {
            self.tenure = None;
        }
        self.see(now, record);
    }

    /// A watch shows the Lease; none: it is gone. It may be out of date.
    pub fn shown(&mut self, now: Moment, record: Option<Record>) {
        let is_mine = record.as_ref().is_some_and(|record| record.holder.as_ref() == Some(&self.identity));
        match self.tenure(now) {
            Some(_) if is_mine => {}
            Some(_) => self.view = View::Unknown,
            None => self.see(now, record),
        }
    }

    /// What came of the claim that was sent at `sent`.
    pub fn claimed(&mut self, sent: Moment, now: Moment, claim: &Claim, outcome: Outcome) {
        match outcome {
            Outcome::Unknown => self.failed(now),
            Outcome::Conflict => self.view = View::Unknown,
            Outcome::Stored(record) => {
                self.failures = 0;
                let until = sent + self.timing.term();
                let sequences_below = claim.sequences_below;
                self.tenure = match (self.tenure(now), claim.first_sequence) {
                    (Some(tenure), None) => Some(Tenure { until, sequences_below, ..tenure }),
                    (None, Some(first_sequence)) => {
                        Some(Tenure { since: sent, until, first_sequence, sequences_below })
                    }
                    // It lapsed meanwhile. A new term needs sequences of its own, and so another claim.
                    _ => None,
                };
                self.renew_at = sent + self.timing.renew().mul_f64(self.rng.random_range(0.9..=1.0));
                self.seen = Some(record.version.clone());
                self.sign_of_life = Some(now);
                self.view = View::Present(record);
            }
        }
    }

    /// Takes in what there is, and from when on it is free.
    fn see(&mut self, now: Moment, record: Option<Record>) {
        let version = record.as_ref().map_or("", |record| &record.version);
        if self.seen.as_deref() != Some(version) {
            // Never less than one's own: a number made smaller by hand must not make two leaders.
            let promised = record.as_ref().map_or(Duration::ZERO, |record| record.lease);
            let lease = promised.max(self.timing.lease()).min(LONGEST_LEASE);
            let jitter = self.timing.renew().mul_f64(self.rng.random_range(0.0..=0.1));
            let is_released = record.as_ref().is_some_and(|record| record.holder.is_none());
            // A Lease that was there and is gone was deleted by hand, under a holder who does not know it yet.
            let is_new = record.is_none() && self.seen.is_none();
            self.believed_until = if is_released || is_new { now } else { now + lease + jitter };
            self.seen = Some(version.to_owned());
            self.sign_of_life = record.as_ref().map(|_| now).or(self.sign_of_life);
        }
        self.view = record.map_or(View::Absent, View::Present);
    }

    fn failed(&mut self, now: Moment) {
        let most = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(self.timing.renew());
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + most.mul_f64(self.rng.random_range(0.5..=1.0));
        self.view = View::Unknown;
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation;
