//! The loop of one candidate: executes the steps of its [`Election`], and publishes the [`Term`].

use futures::{StreamExt, stream::BoxStream};
use kube::Client;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    election::{ClaimResult, Election, LeaseClaim, Record, Restored, Step},
    lease::{LeaseName, Store},
    term::Term,
    timing::LeaseTiming,
};
use crate::{clock, metrics::Metrics};

/// The receiver of terms; `None` while this operator does not lead.
pub type TermReceiver = watch::Receiver<Option<Term>>;

/// One candidate for the Lease.
pub struct Campaign {
    store: Store,
    timing: LeaseTiming,
    identity: String,
    election: Election,
    terms: watch::Sender<Option<Term>>,
    metrics: Metrics,
}

impl std::fmt::Debug for Campaign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Campaign").field("election", &self.election).finish_non_exhaustive()
    }
}

impl Campaign {
    /// Returns a candidate for this Lease. No other candidate may have the same `identity`.
    pub fn new(
        client: Client,
        lease: &LeaseName,
        identity: String,
        timing: LeaseTiming,
        metrics: Metrics,
    ) -> (Self, TermReceiver) {
        let (terms, handed_out) = watch::channel(None);
        let election = Election::new(identity.clone(), timing, rand::random());
        metrics.set_leader(false);
        metrics.set_lease_duration(timing.lease());
        (Self { store: Store::new(client, lease), timing, identity, election, terms, metrics }, handed_out)
    }

    /// Competes until `stop` is cancelled, and then releases the Lease. All writers must have stopped before.
    ///
    /// # Errors
    ///
    /// The cluster has an earlier state than before.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Restored> {
        let mut changes = self.store.changes();
        match stop.run_until_cancelled(self.compete(&mut changes)).await {
            None => {
                self.resign().await;
                Ok(())
            }
            Some(restored) => Err(restored),
        }
    }

    async fn compete(&mut self, changes: &mut BoxStream<'static, Option<Record>>) -> Restored {
        loop {
            let step = self.election.next(clock::since_boot(), clock::unix_micros());
            self.hand_out();
            match step {
                Step::Read => self.read().await,
                Step::Claim(claim) => self.claim(&claim).await,
                Step::Exit(restored) => return restored,
                Step::Wait(until) => tokio::select! {
                    () = sleep(until.saturating_sub(clock::since_boot())) => {}
                    Some(record) = changes.next() => self.election.shown(clock::since_boot(), record),
                },
            }
        }
    }

    async fn read(&mut self) {
        let answer = self.in_time("read", self.store.read()).await;
        self.election.read(clock::since_boot(), answer.ok_or(()));
    }

    async fn claim(&mut self, claim: &LeaseClaim) {
        let sent = clock::since_boot();
        let outcome = self.in_time("write", self.store.claim(claim)).await;
        self.election.claimed(sent, clock::since_boot(), claim, outcome.unwrap_or(ClaimResult::Unknown));
        self.hand_out();
    }

    /// Publishes the election's result: a new term, an extended one, or none.
    fn hand_out(&self) {
        if let Some(seen) = self.election.sign_of_life() {
            self.metrics.lease_seen(seen);
        }
        let tenure = self.election.tenure(clock::since_boot());
        let current = self.terms.borrow().clone();
        match (current, tenure) {
            (Some(term), Some(tenure)) if term.is(&tenure) => term.extend(&tenure),
            (None, None) => {}
            (current, tenure) => {
                if let Some(term) = current {
                    term.end();
                    tracing::warn!(identity = self.identity, "no longer leading");
                }
                self.metrics.set_leader(tenure.is_some());
                self.terms.send_replace(tenure.as_ref().map(Term::of));
                if let Some(tenure) = tenure {
                    tracing::info!(identity = self.identity, sequence = tenure.first_sequence, "leading");
                }
            }
        }
    }

    async fn resign(mut self) {
        if let Some(term) = self.terms.send_replace(None) {
            term.end();
        }
        self.metrics.set_leader(false);
        if self.election.release().is_none() {
            // A write was cancelled, but it may have acquired the Lease.
            self.read().await;
        }
        let Some(claim) = self.election.release() else { return };
        let mut released = self.in_time("release", self.store.claim(&claim)).await;
        if let Some(ClaimResult::Conflict) = released {
            // A renewal was cancelled after it had changed the Lease.
            self.read().await;
            let Some(newer) = self.election.release() else { return };
            released = self.in_time("release", self.store.claim(&newer)).await;
        }
        match released {
            Some(ClaimResult::Stored(_)) => tracing::info!(identity = self.identity, "released the lease"),
            Some(outcome) => tracing::warn!(?outcome, "could not release the lease"),
            None => {}
        }
    }

    /// Returns the apiserver's answer. `None`, after a log line, if there is none before the next renewal.
    async fn in_time<T>(&self, what: &str, call: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
        match timeout(self.timing.renew(), call).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::warn!(error = %format!("{error:#}"), "cannot {what} the lease"),
            Err(_) => tracing::warn!("cannot {what} the lease: no answer"),
        }
        None
    }
}
