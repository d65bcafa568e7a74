//! Decides the next step of a candidate from its observations and their times. This module does no I/O: it uses no
//! clock and no network.
//!
//! There is one [`Election`] per process. The caller asks for the [`next`](Election::next) step, executes it, and
//! reports the result: [`read`](Election::read), [`claimed`](Election::claimed), or [`shown`](Election::shown) for
//! events of a watch. Watch events may be late or missing, so only a successful read or write starts or ends a term.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use weir_wire::SEQUENCE_HORIZON;

use super::timing::{LONGEST_LEASE, LeaseTiming, micros};

/// The time since this machine booted, including suspends. It must never be compared with another machine's.
pub type Moment = Duration;

/// The upper limit of the first pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The content of the Lease at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The resource version of the Lease.
    pub version: String,
    /// The holder; `None` after a release.
    pub holder: Option<String>,
    /// The time for which the holder keeps the Lease without a renewal.
    pub lease: Duration,
    /// The number of changes of the holder.
    pub transitions: i32,
    /// The upper bound of the holder's sequences: its snapshots use only smaller ones.
    pub sequences_below: u64,
}

/// A write to the Lease. It fails if the Lease's version is not `version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseClaim {
    /// The version that the write is based on; `None` creates the Lease.
    pub version: Option<String>,
    /// The new holder; `None` releases the Lease.
    pub holder: Option<String>,
    /// True if the holder changes.
    pub acquires: bool,
    /// The duration of the Lease.
    pub lease: Duration,
    /// The number of changes of the holder.
    pub transitions: i32,
    /// The upper bound of the holder's sequences: its snapshots use only smaller ones.
    pub sequences_below: u64,
    /// The first sequence of the term, if this write begins one.
    first_sequence: Option<u64>,
}

/// The result of a [`LeaseClaim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    /// The Lease has this content.
    Stored(Record),
    /// The Lease's version was different.
    Conflict,
    /// The result is unknown, and the write may still arrive.
    Unknown,
}

/// The next step of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the Lease from the apiserver.
    Read,
    /// Write the Lease.
    Claim(LeaseClaim),
    /// Wait until this time, or until a watch event.
    Wait(Moment),
    /// End this process, because the cluster was restored to an earlier state.
    Exit(Restored),
}

/// The error of a candidate that got an older version of the Lease than before. Watches continue at the newer versions
/// that they know, so they would miss all that the restore changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Lease has the resource version {now} after version {before}: etcd was restored from a backup. The operator \
     ends, because its next start lists all objects again"
)]
pub struct Restored {
    before: u64,
    now: u64,
}

/// A term of leadership, as the Lease confirms it so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The time at which the term began.
    pub since: Moment,
    /// The time at which the term ends without a renewal.
    pub until: Moment,
    /// The sequence at the begin of the term. It grows by one per microsecond.
    pub first_sequence: u64,
    /// The upper bound of the term's sequences.
    pub sequences_below: u64,
}

/// One candidate for the Lease.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: LeaseTiming,
    view: View,
    /// The version that was observed last; empty if the Lease did not exist. The same version again is no sign of life.
    seen: Option<String>,
    /// The highest version that was observed. Versions of one etcd grow.
    newest: u64,
    restored: Option<Restored>,
    /// The time at which this version was observed first.
    sign_of_life: Option<Moment>,
    tenure: Option<Tenure>,
    renew_at: Moment,
    /// The time until which the last observed holder may assume that it holds the Lease, even if the Lease was deleted.
    believed_until: Moment,
    /// After a failure, no request is sent before this time.
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
    /// Returns a candidate without observations. No other candidate may have the same `identity`.
    pub fn new(identity: String, timing: LeaseTiming, seed: u64) -> Self {
        Self {
            identity,
            timing,
            view: View::Unknown,
            seen: None,
            newest: 0,
            restored: None,
            sign_of_life: None,
            tenure: None,
            renew_at: Moment::ZERO,
            believed_until: Moment::ZERO,
            not_before: Moment::ZERO,
            failures: 0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns the term, if this candidate leads at present.
    pub fn tenure(&self, now: Moment) -> Option<Tenure> {
        self.tenure.filter(|tenure| now < tenure.until)
    }

    /// Returns the time at which the last write to the Lease was observed.
    pub fn sign_of_life(&self) -> Option<Moment> {
        self.sign_of_life
    }

    /// Returns the next step. If the Lease contains no sequences, they begin at `unix_micros`.
    pub fn next(&mut self, now: Moment, unix_micros: u64) -> Step {
        self.tenure = self.tenure(now);
        if let Some(restored) = self.restored {
            return Step::Exit(restored);
        }
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
            // A user has removed this holder from the Lease. The holder reclaims the Lease before another candidate
            // takes it.
            Some(_) => now,
            // This candidate holds the Lease, because the response to its write was lost, or from before a restart.
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

    fn claim(&self, now: Moment, unix_micros: u64, is_mine: bool) -> LeaseClaim {
        let record = match &self.view {
            View::Present(record) => Some(record),
            View::Absent | View::Unknown => None,
        };
        let (since, first_sequence) = match self.tenure {
            Some(tenure) => (tenure.since, tenure.first_sequence),
            None => {
                let reserved = record.map_or(0, |record| record.sequences_below);
                let plausible = reserved <= unix_micros.saturating_add(micros(SEQUENCE_HORIZON));
                (now, if plausible { reserved.max(unix_micros) } else { unix_micros })
            }
        };
        LeaseClaim {
            version: record.map(|record| record.version.clone()),
            holder: Some(self.identity.clone()),
            acquires: !is_mine,
            lease: self.timing.lease(),
            transitions: record.map_or(0, |record| record.transitions.saturating_add(i32::from(!is_mine))),
            sequences_below: first_sequence.saturating_add(micros(now - since + self.timing.lease())),
            first_sequence: self.tenure.is_none().then_some(first_sequence),
        }
    }

    /// Returns the write that releases the Lease, if it is held. After this call, no write under the term is allowed.
    pub fn release(&mut self) -> Option<LeaseClaim> {
        self.tenure = None;
        let View::Present(record) = &self.view else { return None };
        (record.holder.as_ref() == Some(&self.identity)).then(|| LeaseClaim {
            version: Some(record.version.clone()),
            holder: None,
            acquires: false,
            lease: Duration::from_secs(1),
            transitions: record.transitions,
            sequences_below: record.sequences_below,
            first_sequence: None,
        })
    }

    /// Reports a read of the Lease. `None` means that the Lease does not exist. An error means that no response
    /// arrived.
    pub fn read(&mut self, now: Moment, answer: Result<Option<Record>, ()>) {
        let Ok(record) = answer else { return self.failed(now) };
        self.failures = 0;
        self.restored = record.as_ref().and_then(|record| self.went_back(record));
        if self.restored.is_some()
            || record.as_ref().is_some_and(|record| record.holder.as_ref() != Some(&self.identity))
        {
            self.tenure = None;
        }
        self.see(now, record);
    }

    /// Reports a watch event, which may be out of date. `None` means that the Lease was deleted.
    pub fn shown(&mut self, now: Moment, record: Option<Record>) {
        let is_mine = record.as_ref().is_some_and(|record| record.holder.as_ref() == Some(&self.identity));
        match self.tenure(now) {
            Some(_) if is_mine => {}
            Some(_) => self.view = View::Unknown,
            // A read shows whether the event is out of date, or etcd was restored.
            None if record.as_ref().is_some_and(|record| self.went_back(record).is_some()) => self.view = View::Unknown,
            None => self.see(now, record),
        }
    }

    /// Reports the result of the claim that was sent at `sent`.
    pub fn claimed(&mut self, sent: Moment, now: Moment, claim: &LeaseClaim, outcome: ClaimResult) {
        match outcome {
            ClaimResult::Unknown => self.failed(now),
            ClaimResult::Conflict => self.view = View::Unknown,
            ClaimResult::Stored(record) => {
                self.failures = 0;
                self.restored = self.went_back(&record);
                let until = sent + self.timing.term();
                let sequences_below = claim.sequences_below;
                self.tenure = match (self.tenure(now), claim.first_sequence) {
                    (Some(tenure), None) => Some(Tenure { until, sequences_below, ..tenure }),
                    (None, Some(first_sequence)) => {
                        Some(Tenure { since: sent, until, first_sequence, sequences_below })
                    }
                    // The Lease expired in the meantime. A new term needs new sequences, so it needs another claim.
                    _ => None,
                }
                .filter(|_| self.restored.is_none());
                self.renew_at = sent + self.timing.renew().mul_f64(self.rng.random_range(0.9..=1.0));
                self.seen = Some(record.version.clone());
                self.sign_of_life = Some(now);
                self.view = View::Present(record);
                if claim.version.is_none() && claim.first_sequence.is_none() {
                    // The Lease was deleted while this candidate held it. Someone may delete each new Lease, such as the
                    // garbage collector after its owner was deleted.
                    self.not_before = now + self.timing.renew() / 4;
                }
            }
        }
    }

    /// Compares the Lease with the newest version that was observed. Since Kubernetes 1.35, versions are numbers that can
    /// be compared, and they were in practice before.
    fn went_back(&mut self, record: &Record) -> Option<Restored> {
        let now = record.version.parse().ok()?;
        let before = self.newest;
        self.newest = before.max(now);
        (now < before).then_some(Restored { before, now })
    }

    /// Records the Lease, and the time at which it becomes free.
    fn see(&mut self, now: Moment, record: Option<Record>) {
        let version = record.as_ref().map_or("", |record| &record.version);
        if self.seen.as_deref() != Some(version) {
            // The wait is never shorter than this candidate's own duration: a smaller value written by hand must not
            // cause two leaders.
            let promised = record.as_ref().map_or(Duration::ZERO, |record| record.lease);
            let lease = promised.max(self.timing.lease()).min(LONGEST_LEASE);
            let jitter = self.timing.renew().mul_f64(self.rng.random_range(0.0..=0.1));
            let is_released = record.as_ref().is_some_and(|record| record.holder.is_none());
            // If the Lease existed before, it was deleted by hand, and its holder may not have noticed.
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
