//! The loop of one candidate: executes the steps of its [`Election`], and publishes the [`Term`].

use std::{pin::pin, time::Duration};

use futures::{FutureExt, StreamExt, future::FusedFuture, stream::BoxStream};
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
use crate::{clock, metrics::Metrics, telemetry::Ready};

/// The receiver of terms, or `None` while this operator does not lead.
pub type TermReceiver = watch::Receiver<Option<Term>>;

/// One candidate for the Lease.
pub struct Campaign {
    store: Store,
    timing: LeaseTiming,
    identity: String,
    election: Election,
    terms: watch::Sender<Option<Term>>,
    metrics: Metrics,
    ready: Ready,
}

impl std::fmt::Debug for Campaign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Campaign").field("election", &self.election).finish_non_exhaustive()
    }
}

impl Campaign {
    /// Returns a candidate for this Lease, which claims it as soon as it could push. No other candidate may have the same
    /// `identity`.
    pub fn new(
        client: Client,
        lease: &LeaseName,
        identity: String,
        timing: LeaseTiming,
        metrics: Metrics,
        ready: Ready,
    ) -> (Self, TermReceiver) {
        let (terms, handed_out) = watch::channel(None);
        let election = Election::new(identity.clone(), timing, rand::random());
        metrics.set_leader(false);
        metrics.set_lease_duration(timing.lease());
        (Self { store: Store::new(client, lease), timing, identity, election, terms, metrics, ready }, handed_out)
    }

    /// Competes until `stop` is cancelled, and then releases the Lease. All writers must have stopped before.
    ///
    /// # Errors
    ///
    /// The cluster was restored to an earlier state.
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

    /// Competes. A candidate that cannot push yet only observes the Lease, because an operator that lacks a permission
    /// would hold the Lease forever and push nothing.
    async fn compete(&mut self, changes: &mut BoxStream<'static, Option<Record>>) -> Restored {
        let ready = self.ready.clone();
        let mut until_ready = pin!(ready.can_push().fuse());
        loop {
            let step = self.election.next(clock::since_boot(), clock::unix_micros());
            self.hand_out();
            match step {
                Step::Read => self.read().await,
                Step::Claim(_) if !until_ready.is_terminated() => tokio::select! {
                    () = &mut until_ready => {}
                    Some(record) = changes.next() => self.election.shown(clock::since_boot(), record),
                },
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

    /// Returns the apiserver's answer. `None`, after a log line, if there is none in time, or before the term ends.
    async fn in_time<T>(&self, what: &str, call: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
        let now = clock::since_boot();
        let rest = self.election.tenure(now).map_or(Duration::MAX, |tenure| tenure.until - now);
        match timeout(self.timing.answer().min(rest), call).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::warn!(error = %format!("{error:#}"), "cannot {what} the lease"),
            Err(_) => tracing::warn!("cannot {what} the lease: no answer"),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use bytes::Bytes;
    use futures::stream;
    use http::{Method, Request, Response};
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::Frame;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An apiserver with a free Lease.
    #[derive(Clone, Default)]
    struct Apiserver {
        ready: Ready,
        is_watched: Arc<watch::Sender<bool>>,
        /// For each write to the Lease, whether the candidate was ready.
        writes: Arc<Mutex<Vec<bool>>>,
        /// The time that each write takes.
        delay: Duration,
    }

    impl Apiserver {
        async fn answer(
            self,
            request: Request<Body>,
        ) -> Result<Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>>, kube::Error> {
            let (head, body) = request.into_parts();
            let mut lease = json!({"metadata": {"name": "weir", "resourceVersion": "7"}, "spec": {}});
            let query = head.uri.query().unwrap_or_default();
            if head.method == Method::PATCH {
                self.writes.lock().unwrap().push(self.ready.get());
                let patch: Value = serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap();
                lease["spec"] = patch["spec"].clone();
                sleep(self.delay).await;
            } else if query.contains("watch=true") {
                return Ok(Response::new(StreamBody::new(stream::pending().boxed())));
            } else if query.contains("fieldSelector") {
                self.is_watched.send_replace(true);
                lease = json!({"metadata": {"resourceVersion": "7"}, "items": []});
            }
            let answer = stream::iter([Ok(Frame::data(Bytes::from(lease.to_string())))]);
            Ok(Response::new(StreamBody::new(answer.boxed())))
        }

        /// Starts a candidate, which runs until the test ends.
        fn candidate(&self) -> TermReceiver {
            let this = self.clone();
            let service = tower::service_fn(move |request| this.clone().answer(request));
            let client = Client::new(service, "weir-system");
            let lease = LeaseName { namespace: "weir-system".to_owned(), name: "weir".to_owned(), owner: None };
            let timing = LeaseTiming::new(Duration::from_secs(8), Duration::from_secs(2)).expect("a valid timing");
            let (metrics, ready) = (Metrics::default(), self.ready.clone());
            let (campaign, terms) = Campaign::new(client, &lease, "a".to_owned(), timing, metrics, ready);
            tokio::spawn(campaign.run(CancellationToken::new()));
            terms
        }
    }

    #[tokio::test]
    async fn a_candidate_claims_the_lease_only_when_it_could_push() {
        for lacks in [Ready::set, Ready::set_identified] {
            let apiserver = Apiserver::default();
            apiserver.ready.set(true);
            lacks(&apiserver.ready, false);
            let mut terms = apiserver.candidate();
            apiserver.is_watched.subscribe().wait_for(|is_watched| *is_watched).await.unwrap();
            lacks(&apiserver.ready, true);
            terms.wait_for(Option::is_some).await.expect("the candidate runs");
            assert!(apiserver.writes.lock().unwrap()[0], "it claimed the Lease earlier");
        }
    }

    /// In this time, a leader of a Lease of 8 s can renew again and again.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_takes_less_than_three_seconds_counts() {
        let apiserver = Apiserver { delay: Duration::from_millis(2_900), ..Apiserver::default() };
        apiserver.ready.set(true);
        let mut terms = apiserver.candidate();
        // In the time of the test, which passes only while nothing runs.
        let leads = timeout(Duration::from_secs(60), terms.wait_for(Option::is_some)).await;
        assert_eq!((leads.is_ok(), apiserver.writes.lock().unwrap().len()), (true, 1));
    }
}
