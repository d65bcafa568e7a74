//! How a snapshot comes into force: whole, or not at all.
//!
//! A body is read as JSON, compared with what is in force, parsed and lowered; only when nothing can fail any more is
//! anything changed. One at a time: the second compares with what the first has left.
//!
//! What the agent started with only fills the time until somebody puts a snapshot: whatever is put replaces a bootstrap
//! snapshot, whichever of the two has the larger sequence.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
mod words;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use serde::{Deserialize, de::IgnoredAny};
use tokio::sync::{Notify, watch};
use weir_core::Time;
use weir_enforce::{Jwks, RulesInForce, lower};
use weir_tower::MonotonicClock;
use weir_wire::{
    ApplyReply, Fault, InForce, MAX_SEQUENCE, MAX_SNAPSHOT_BYTES, Refusal, RefusalKind, Snapshot, WIRE_VERSION,
};

use crate::cache::Cache;

/// What can become of a snapshot, as in `weir_snapshots_total`.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Applied,
    Unchanged,
    Stale,
    Invalid,
    Malformed,
    TooLarge,
}

/// Who gave the agent the snapshot in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `--bootstrap`.
    Bootstrap,
    /// `--snapshot-cache`: put before the agent was started again.
    Cache,
    /// Put to the control port.
    Pushed,
}

impl Origin {
    /// As metrics and log lines have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Cache => "cache",
            Self::Pushed => "pushed",
        }
    }
}

/// The names of all outcomes, in the order of [`Snapshots::outcomes`].
pub(crate) const OUTCOMES: [&str; 6] = ["applied", "unchanged", "stale", "invalid", "malformed", "too_large"];

/// Where snapshots come in.
#[derive(Debug)]
pub(crate) struct Snapshots {
    rules: Arc<ArcSwap<RulesInForce>>,
    clock: MonotonicClock,
    one_at_a_time: Mutex<()>,
    /// None before the first snapshot.
    origin: watch::Sender<Option<Origin>>,
    cache: Option<Cache>,
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// A snapshot has come into force, and may have left limiters behind.
    applied: Notify,
}

/// A refusal before it is known what else is to be said.
struct Refused(Outcome, RefusalKind, String, Vec<Fault>);

impl Snapshots {
    pub(crate) fn new(rules: Arc<ArcSwap<RulesInForce>>, clock: MonotonicClock, cache: Option<Cache>) -> Self {
        let (one_at_a_time, origin, outcomes) = (Mutex::default(), watch::Sender::default(), Default::default());
        Self { rules, clock, one_at_a_time, origin, cache, outcomes, applied: Notify::new() }
    }

    /// How many snapshots that were put had each of the [`OUTCOMES`].
    pub(crate) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        self.outcomes.each_ref().map(|count| count.load(Relaxed))
    }

    /// Who gave what is in force; none before the first snapshot.
    pub(crate) fn origin(&self) -> Option<Origin> {
        *self.origin.borrow()
    }

    /// Returns as soon as any snapshot is in force.
    pub(crate) async fn first(&self) {
        // An error would mean that there will never be one, but the sender is in `self`.
        let _ = self.origin.subscribe().wait_for(Option::is_some).await;
    }

    /// Puts a snapshot in force that nobody has put to the control port.
    pub(crate) fn start_with(&self, body: &[u8], origin: Origin) -> Result<(), Refusal> {
        let _turn = self.turn();
        let bounded = Some(body).filter(|body| body.len() <= MAX_SNAPSHOT_BYTES);
        self.take(bounded, origin).map(|_| ()).map_err(|refused| refused.told(&self.rules.load()))
    }

    /// Puts a snapshot in force. None: the body was larger than [`MAX_SNAPSHOT_BYTES`].
    pub(crate) fn put(&self, body: Option<&[u8]>) -> Result<ApplyReply, Refusal> {
        let _turn = self.turn();
        let taken = self.take(body, Origin::Pushed);
        let outcome = match &taken {
            Ok(outcome) | Err(Refused(outcome, ..)) => *outcome,
        };
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
        taken.map_err(|refused| refused.told(&self.rules.load()))?;
        if let (Outcome::Applied, Some(cache), Some(body)) = (outcome, &self.cache, body)
            && let Err(error) = cache.keep(body)
        {
            tracing::warn!(%error, "the snapshot is in force, and could not be kept for a restart");
        }
        let in_force = in_force(&self.rules.load()).expect("a snapshot that was taken is in force");
        Ok(ApplyReply { in_force })
    }

    /// From now on only tokens that these keys have signed have claims. Later snapshots keep them.
    pub(crate) fn verify_with(&self, keys: Arc<Jwks>) {
        let _turn = self.turn();
        let next = self.rules.load().with_jwks(Some(keys));
        self.rules.store(Arc::new(next));
    }

    /// Gives up the limiters of rules that have been gone for a minute, for ever. Asleep while there are none.
    pub(crate) async fn forget_removed(self: Arc<Self>) -> Infallible {
        loop {
            let (_, until) = self.rules.load().removed();
            let Some(until) = until else {
                self.applied.notified().await;
                continue;
            };
            tokio::time::sleep(until.duration_since(self.clock.now())).await;
            let _turn = self.turn();
            let next = self.rules.load().without_removed(self.clock.now());
            self.rules.store(Arc::new(next));
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        // The mutex guards an order, not data that a panic could have left half-done.
        self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, body: Option<&[u8]>, origin: Origin) -> Result<Outcome, Refused> {
        let outcome = body.ok_or_else(too_large).and_then(parse).and_then(|snapshot| self.apply(snapshot, origin))?;
        self.origin.send_replace(Some(origin));
        Ok(outcome)
    }

    fn apply(&self, snapshot: Snapshot, origin: Origin) -> Result<Outcome, Refused> {
        if snapshot.sequence > MAX_SEQUENCE {
            let message = format!("must be at most {MAX_SEQUENCE}: whatever is newer needs a larger one");
            return Err(invalid(vec![Fault { path: "sequence".into(), message }]));
        }
        let before = self.rules.load_full();
        let mut same_content = false;
        if let Some((current, _)) = before.snapshot() {
            same_content = current.revision == snapshot.revision;
            if self.origin() == Some(Origin::Bootstrap) {
                // Its sequence and revision were made up by somebody else, maybe by hand.
                same_content &= current.policies == snapshot.policies;
            } else {
                in_order(&snapshot, current)?;
            }
        }
        if same_content {
            let moved = before.snapshot().is_none_or(|(current, _)| current.sequence != snapshot.sequence);
            if moved {
                self.rules.store(Arc::new(before.moved_on(snapshot, self.clock.now())));
            }
            return Ok(Outcome::Unchanged);
        }
        let lowered = lower(&snapshot).map_err(invalid)?;
        let next = before.succeed(snapshot, lowered, || self.clock.now());
        if let Some((snapshot, _)) = next.snapshot() {
            let (sequence, revision, policies) = (snapshot.sequence, &snapshot.revision, snapshot.policies.len());
            tracing::info!(sequence, revision, policies, origin = origin.name(), "snapshot in force");
        }
        self.rules.store(Arc::new(next));
        self.applied.notify_one();
        Ok(Outcome::Applied)
    }
}

impl Refused {
    /// As the sender of the snapshot learns it.
    fn told(self, rules: &RulesInForce) -> Refusal {
        let Self(_, error, message, faults) = self;
        Refusal { error, message, faults, in_force: in_force(rules) }
    }
}

/// Whether a snapshot may follow one that was put before it.
fn in_order(snapshot: &Snapshot, current: &Snapshot) -> Result<(), Refused> {
    let same_revision = current.revision == snapshot.revision;
    if snapshot.sequence < current.sequence || (snapshot.sequence == current.sequence && !same_revision) {
        return Err(stale(snapshot, current));
    }
    if same_revision && current.policies != snapshot.policies {
        let message = "names other policies than the same revision that is in force: give each content its own";
        return Err(invalid(vec![Fault { path: "revision".into(), message: message.into() }]));
    }
    Ok(())
}

/// What is in force, as the wire says it.
pub(crate) fn in_force(rules: &RulesInForce) -> Option<InForce> {
    rules.snapshot().map(|(snapshot, since)| InForce {
        sequence: snapshot.sequence,
        revision: snapshot.revision.clone(),
        since_unix_millis: unix_millis(since),
    })
}

/// Milliseconds of Unix time.
pub(crate) fn unix_millis(time: Time) -> u64 {
    time.as_nanos() / 1_000_000
}

fn parse(body: &[u8]) -> Result<Snapshot, Refused> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        wire_version: u32,
    }

    serde_json::from_slice::<IgnoredAny>(body).map_err(|error| malformed(&error))?;
    // Words that another version added are its smallest fault.
    if let Ok(Version { wire_version }) = serde_json::from_slice(body)
        && wire_version != WIRE_VERSION
    {
        let message = format!("is {wire_version}, but this agent speaks {WIRE_VERSION}: upgrade the older of the two");
        return Err(invalid(vec![Fault { path: "wireVersion".into(), message }]));
    }
    serde_json::from_slice(body).map_err(|_| match serde_json::from_slice(body) {
        Ok(snapshot) => invalid(words::faults(body, snapshot)),
        // Text that is not UTF-8 and the like, which is not looked at in what is ignored.
        Err(error) => malformed(&error),
    })
}

fn malformed(error: &serde_json::Error) -> Refused {
    let message = format!("the body is not JSON: {error}");
    Refused(Outcome::Malformed, RefusalKind::Malformed, message, Vec::new())
}

fn too_large() -> Refused {
    let message = format!("a snapshot has at most {MAX_SNAPSHOT_BYTES} bytes: move some policies to other pods");
    Refused(Outcome::TooLarge, RefusalKind::TooLarge, message, Vec::new())
}

fn invalid(faults: Vec<Fault>) -> Refused {
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    let message = format!("{count}: what was in force stays as it is");
    Refused(Outcome::Invalid, RefusalKind::Invalid, message, faults)
}

fn stale(snapshot: &Snapshot, current: &Snapshot) -> Refused {
    let (new, old) = (snapshot.sequence, current.sequence);
    let message = if new == old {
        format!("sequence {old} is in force with revision {}: a change needs a larger sequence", current.revision)
    } else {
        format!("sequence {new} is older than {old}, which is in force: a change needs a larger sequence")
    };
    Refused(Outcome::Stale, RefusalKind::Stale, message, Vec::new())
}
