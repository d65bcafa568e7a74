//! How a snapshot comes into force: as a whole, or not at all.
//!
//! The agent parses a body as JSON, compares the snapshot with the one in force, lowers it, and makes the clients of
//! its stores. It changes no rule until every step that can fail has succeeded. Snapshots are applied one at a time, so
//! each is compared with the result of the previous one.
//!
//! A bootstrap snapshot applies only until the first push: any pushed snapshot replaces it, even one with a smaller
//! sequence.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
mod words;

use std::{
    convert::Infallible,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use serde::{Deserialize, de::IgnoredAny};
use tokio::sync::{Notify, watch};
use weir_core::Time;
use weir_enforce::{Jwks, LiveRules, RulesInForce, RulesWriteGuard, layer_faults, lower};
use weir_tower::MonotonicClock;
use weir_wire::{
    ApplyReply, Fault, MAX_SEQUENCE, MAX_SNAPSHOT_BYTES, PolicyRules, Rejection, RejectionKind, SEQUENCE_HORIZON,
    Snapshot, SnapshotInForce, WIRE_VERSION,
};

use crate::{cache::Cache, clock, stores::StoreClients};

/// The largest number of faults in a rejection, and of characters in the path and in the message of a fault. Such a
/// rejection fits into a message of the channel, with any characters.
const MOST_FAULTS: usize = 100;
const LONGEST_TEXT: usize = 800;

/// The result of a push, as in `weir_snapshots_total`.
#[derive(Clone, Copy, Debug)]
enum PushResult {
    Applied,
    Unchanged,
    Stale,
    Invalid,
    Malformed,
    TooLarge,
}

/// The origin of the snapshot in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The snapshot of `--bootstrap`.
    Bootstrap,
    /// `--snapshot-cache`: a snapshot that was pushed before the agent restarted.
    Cache,
    /// A snapshot that was pushed to the control port.
    Pushed,
}

impl Origin {
    /// The name in metrics and log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Cache => "cache",
            Self::Pushed => "pushed",
        }
    }
}

/// What the policies of a snapshot limit. An agent accepts only policies that it can enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Serves {
    /// HTTP requests, on which a proxy decides.
    #[default]
    Requests,
    /// HTTP requests, on which a layer of a program decides.
    Layer,
    /// Descriptors, on which a rate limit service decides.
    Descriptors,
}

/// The names of all results, in the order of [`PushResult`].
pub(crate) const PUSH_RESULTS: [&str; 6] = ["applied", "unchanged", "stale", "invalid", "malformed", "too_large"];

/// Accepts snapshots and puts them in force.
#[derive(Debug)]
pub(crate) struct Snapshots {
    rules: LiveRules,
    clock: MonotonicClock,
    /// `None` before the first snapshot.
    origin: watch::Sender<Option<Origin>>,
    cache: Option<Cache>,
    push_results: [AtomicU64; PUSH_RESULTS.len()],
    /// Notified when a snapshot came into force, because it may have removed limiters.
    applied: Notify,
    stores: StoreClients,
    serves: Serves,
}

/// The parts of a rejection that do not depend on the rules in force.
struct Rejected(PushResult, RejectionKind, String, Vec<Fault>);

impl Snapshots {
    pub(crate) fn new(rules: LiveRules, clock: MonotonicClock, cache: Option<Cache>) -> Self {
        let (origin, push_results) = (watch::Sender::default(), Default::default());
        Self {
            rules,
            clock,
            origin,
            cache,
            push_results,
            applied: Notify::new(),
            stores: StoreClients::new(clock, None),
            serves: Serves::default(),
        }
    }

    /// Reads the secrets of stores from this directory.
    pub(crate) fn with_store_secrets(self, secrets: Option<PathBuf>) -> Self {
        Self { stores: StoreClients::new(self.clock, secrets), ..self }
    }

    /// Accepts only policies that limit this.
    pub(crate) fn serving(self, serves: Serves) -> Self {
        Self { serves, ..self }
    }

    /// What the program limits.
    pub(crate) fn serves(&self) -> Serves {
        self.serves
    }

    /// The stores of the snapshot in force.
    pub(crate) fn stores(&self) -> &StoreClients {
        &self.stores
    }

    /// The number of pushed snapshots with each of the [`PUSH_RESULTS`].
    pub(crate) fn push_results(&self) -> [u64; PUSH_RESULTS.len()] {
        self.push_results.each_ref().map(|count| count.load(Relaxed))
    }

    /// The origin of the snapshot in force, or `None` before the first snapshot.
    pub(crate) fn origin(&self) -> Option<Origin> {
        *self.origin.borrow()
    }

    /// Returns as soon as any snapshot is in force.
    pub(crate) async fn first(&self) {
        // The wait fails only if the sender is dropped, and `self` holds the sender.
        let _ = self.origin.subscribe().wait_for(Option::is_some).await;
    }

    /// Puts a snapshot in force that did not come from the control port.
    pub(crate) fn start_with(&self, body: &[u8], origin: Origin) -> Result<(), Rejection> {
        let guard = self.rules.write();
        let bounded = Some(body).filter(|body| body.len() <= MAX_SNAPSHOT_BYTES);
        self.parse_and_apply(&guard, bounded, origin)
            .map(|_| ())
            .map_err(|rejected| rejected.into_rejection(&guard.rules()))
    }

    /// Puts a snapshot in force. `body` is `None` if it was larger than [`MAX_SNAPSHOT_BYTES`].
    pub(crate) fn apply_pushed(&self, body: Option<&[u8]>) -> Result<ApplyReply, Rejection> {
        let guard = self.rules.write();
        let applied = self.parse_and_apply(&guard, body, Origin::Pushed);
        let result = match &applied {
            Ok(result) | Err(Rejected(result, ..)) => *result,
        };
        self.push_results[result as usize].fetch_add(1, Relaxed);
        applied.map_err(|rejected| rejected.into_rejection(&guard.rules()))?;
        if let (PushResult::Applied, Some(cache), Some(body)) = (result, &self.cache, body) {
            cache.keep(body.to_owned());
        }
        let in_force = in_force(&guard.rules()).expect("an applied snapshot is in force");
        Ok(ApplyReply { in_force })
    }

    /// Returns when the snapshots so far are saved for the next start of the container.
    pub(crate) async fn saved(&self) {
        if let Some(cache) = &self.cache {
            cache.saved().await;
        }
    }

    /// Sets the keys that verify tokens: the claims of a token count only if one of these keys has signed it. The keys
    /// stay in use when a later snapshot comes into force.
    pub(crate) async fn verify_with(self: &Arc<Self>, keys: Arc<Jwks>) {
        self.change(move |snapshots| snapshots.rules.verify_with(keys)).await;
    }

    /// Deletes the limiters of rules that were removed a minute ago. Sleeps while there are none. Never returns.
    pub(crate) async fn forget_removed(self: Arc<Self>) -> Infallible {
        loop {
            let (_, until) = self.rules.load().removed();
            let Some(until) = until else {
                self.applied.notified().await;
                continue;
            };
            tokio::time::sleep(until.duration_since(self.clock.now())).await;
            self.change(|snapshots| {
                let guard = snapshots.rules.write();
                guard.replace(guard.rules().without_removed(snapshots.clock.now()));
            })
            .await;
        }
    }

    /// Changes the rules on a blocking thread: a snapshot that is being lowered holds the rules for a long time.
    async fn change(self: &Arc<Self>, change: impl FnOnce(&Self) + Send + 'static) {
        let snapshots = Arc::clone(self);
        let changed = tokio::task::spawn_blocking(move || change(&snapshots));
        // A runtime that ends cancels the change.
        if let Err(error) = changed.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    fn parse_and_apply(
        &self,
        guard: &RulesWriteGuard<'_>,
        body: Option<&[u8]>,
        origin: Origin,
    ) -> Result<PushResult, Rejected> {
        let snapshot = body.ok_or_else(too_large).and_then(parse)?;
        let result = self.put_in_force(guard, snapshot, origin)?;
        self.origin.send_replace(Some(origin));
        Ok(result)
    }

    fn put_in_force(
        &self,
        guard: &RulesWriteGuard<'_>,
        snapshot: Snapshot,
        origin: Origin,
    ) -> Result<PushResult, Rejected> {
        check_sequence(snapshot.sequence, clock::wall())?;
        let before = guard.rules();
        let mut same_content = false;
        if let Some((current, _)) = before.snapshot() {
            same_content = current.revision == snapshot.revision;
            if self.origin() == Some(Origin::Bootstrap) {
                // The bootstrap snapshot's sequence and revision do not come from the operator; someone may have
                // written them by hand.
                same_content &= current.policies == snapshot.policies && current.stores == snapshot.stores;
            } else {
                in_order(&snapshot, current)?;
            }
        }
        if same_content {
            let moved = before.snapshot().is_none_or(|(current, _)| current.sequence != snapshot.sequence);
            if moved {
                guard.replace(before.with_later_sequence(snapshot, self.clock.now()));
            }
            return Ok(PushResult::Unchanged);
        }
        self.serves.check(&snapshot).map_err(invalid)?;
        let lowered = lower(&snapshot).map_err(invalid)?;
        let stores = self.stores.of(&snapshot).map_err(invalid)?;
        let next = before.with_snapshot(snapshot, lowered, &stores, || self.clock.now());
        if let Some((snapshot, _)) = next.snapshot() {
            let (sequence, revision, policies) = (snapshot.sequence, &snapshot.revision, snapshot.policies.len());
            tracing::info!(sequence, revision, policies, origin = origin.name(), "snapshot in force");
        }
        guard.replace(next);
        self.applied.notify_one();
        Ok(PushResult::Applied)
    }
}

impl Serves {
    /// Returns a fault for each policy that this agent cannot enforce.
    fn check(self, snapshot: &Snapshot) -> Result<(), Vec<Fault>> {
        let message = match self {
            Self::Layer => {
                let faults = layer_faults(snapshot);
                return if faults.is_empty() { Ok(()) } else { Err(faults) };
            }
            Self::Requests => {
                "this agent is a proxy and decides on requests: target agents that run as `weir-agent rls` and have the \
                 label weir.dev/rate-limit-service: enabled"
            }
            Self::Descriptors => {
                "is missing, and this agent is a rate limit service, which decides only on descriptors: add a domain, or \
                 target other agents"
            }
        };
        let is_unfit = |policy: &PolicyRules| policy.domain.is_some() != (self == Self::Descriptors);
        let unfit = snapshot.policies.iter().enumerate().filter(|(_, policy)| is_unfit(policy));
        let fault = |(index, _)| Fault { path: format!("policies[{index}].domain"), message: message.to_owned() };
        let faults: Vec<Fault> = unfit.map(fault).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

impl Rejected {
    /// The rejection as the sender receives it.
    fn into_rejection(self, rules: &RulesInForce) -> Rejection {
        let Self(_, error, message, faults) = self;
        Rejection { error, message, faults, in_force: in_force(rules) }
    }
}

/// Checks that the operator can continue above this sequence: above the largest one there is none, and an operator's are
/// microseconds of Unix time.
fn check_sequence(sequence: u64, now: SystemTime) -> Result<(), Rejected> {
    let unix = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let latest = u64::try_from((unix + SEQUENCE_HORIZON).as_micros()).unwrap_or(u64::MAX);
    let message = if sequence > MAX_SEQUENCE {
        format!("must be at most {MAX_SEQUENCE}: the next snapshot needs a larger one")
    } else if sequence > latest {
        format!(
            "must be at most {latest}, which is a year after this agent's clock in microseconds of Unix time: set the \
             clock of the sender or of this node, or begin at 1"
        )
    } else {
        return Ok(());
    };
    Err(invalid(vec![Fault { path: "sequence".into(), message }]))
}

/// Checks that a snapshot is allowed to replace the pushed snapshot in force.
fn in_order(snapshot: &Snapshot, current: &Snapshot) -> Result<(), Rejected> {
    let same_revision = current.revision == snapshot.revision;
    if snapshot.sequence < current.sequence || (snapshot.sequence == current.sequence && !same_revision) {
        return Err(stale(snapshot, current));
    }
    if same_revision && (current.policies != snapshot.policies || current.stores != snapshot.stores) {
        let message = "is in force with other policies: give each content its own revision";
        return Err(invalid(vec![Fault { path: "revision".into(), message: message.into() }]));
    }
    Ok(())
}

/// The snapshot in force, in its wire form.
pub(crate) fn in_force(rules: &RulesInForce) -> Option<SnapshotInForce> {
    rules.snapshot().map(|(snapshot, since)| SnapshotInForce {
        sequence: snapshot.sequence,
        revision: snapshot.revision.clone(),
        since_unix_millis: unix_millis(since),
    })
}

/// Milliseconds of Unix time.
pub(crate) fn unix_millis(time: Time) -> u64 {
    time.as_nanos() / 1_000_000
}

fn parse(body: &[u8]) -> Result<Snapshot, Rejected> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        wire_version: u32,
    }

    serde_json::from_slice::<IgnoredAny>(body).map_err(|error| malformed(&error))?;
    // A snapshot of another wire version may have unknown fields, so the version is the fault to report.
    if let Ok(Version { wire_version }) = serde_json::from_slice(body)
        && wire_version != WIRE_VERSION
    {
        let message = format!("is {wire_version}, but this agent speaks {WIRE_VERSION}: upgrade the older of the two");
        return Err(invalid(vec![Fault { path: "wireVersion".into(), message }]));
    }
    serde_json::from_slice(body).map_err(|_| match serde_json::from_slice(body) {
        Ok(snapshot) => invalid(words::faults(body, snapshot)),
        // For example, the body is not UTF-8. `IgnoredAny` above does not check the text that it skips.
        Err(error) => malformed(&error),
    })
}

fn malformed(error: &serde_json::Error) -> Rejected {
    let message = format!("the body is not JSON: {error}");
    Rejected(PushResult::Malformed, RejectionKind::Malformed, message, Vec::new())
}

fn too_large() -> Rejected {
    let message = format!("a snapshot has at most {MAX_SNAPSHOT_BYTES} bytes: move some policies to other pods");
    Rejected(PushResult::TooLarge, RejectionKind::TooLarge, message, Vec::new())
}

fn invalid(mut faults: Vec<Fault>) -> Rejected {
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    let message = format!("{count}: the snapshot in force does not change");
    let more = faults.len().saturating_sub(MOST_FAULTS);
    faults.truncate(MOST_FAULTS);
    for Fault { path, message } in &mut faults {
        shorten(path);
        shorten(message);
    }
    if more > 0 {
        faults.push(Fault { path: ".".to_owned(), message: format!("and {more} more") });
    }
    Rejected(PushResult::Invalid, RejectionKind::Invalid, message, faults)
}

fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_TEXT) {
        text.truncate(end);
        text.push('…');
    }
}

fn stale(snapshot: &Snapshot, current: &Snapshot) -> Rejected {
    let (new, old) = (snapshot.sequence, current.sequence);
    let message = if new == old {
        format!("sequence {old} is in force with revision {}: a change needs a larger sequence", current.revision)
    } else {
        format!("sequence {new} is older than {old}, which is in force: a change needs a larger sequence")
    };
    Rejected(PushResult::Stale, RejectionKind::Stale, message, Vec::new())
}
