//! How a snapshot comes into force: whole, or not at all.
//!
//! A body is read as JSON, compared with what is in force, parsed and lowered; only when nothing can fail any more is
//! anything changed. One at a time: whoever comes second compares with what the first has left.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwap;
use serde::{Deserialize, de::IgnoredAny};
use weir_core::Time;
use weir_tower::MonotonicClock;
use weir_wire::{ApplyReply, Fault, InForce, MAX_SNAPSHOT_BYTES, Refusal, RefusalKind, Snapshot, WIRE_VERSION};

use crate::rules::{RulesInForce, lower};

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

/// The names of all outcomes, in the order of [`Snapshots::outcomes`].
pub(crate) const OUTCOMES: [&str; 6] = ["applied", "unchanged", "stale", "invalid", "malformed", "too_large"];

/// Where snapshots come in.
#[derive(Debug)]
pub(crate) struct Snapshots {
    rules: Arc<ArcSwap<RulesInForce>>,
    clock: MonotonicClock,
    one_at_a_time: Mutex<()>,
    outcomes: [AtomicU64; OUTCOMES.len()],
}

/// A refusal before it is known what else is to be said.
struct Refused(Outcome, RefusalKind, String, Vec<Fault>);

impl Snapshots {
    pub(crate) fn new(rules: Arc<ArcSwap<RulesInForce>>, clock: MonotonicClock) -> Self {
        Self { rules, clock, one_at_a_time: Mutex::default(), outcomes: Default::default() }
    }

    /// How many snapshots had each of the [`OUTCOMES`].
    pub(crate) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        self.outcomes.each_ref().map(|count| count.load(Relaxed))
    }

    /// Puts a snapshot in force. None: the body was larger than [`MAX_SNAPSHOT_BYTES`].
    pub(crate) fn put(&self, body: Option<&[u8]>) -> Result<ApplyReply, Refusal> {
        // The mutex guards an order, not data that a panic could have left half-done.
        let _turn = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = body.ok_or_else(too_large).and_then(parse).and_then(|snapshot| self.apply(snapshot));
        let outcome = match &applied {
            Ok(outcome) | Err(Refused(outcome, ..)) => *outcome,
        };
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
        let in_force = in_force(&self.rules.load());
        match (applied, in_force) {
            (Ok(_), Some(in_force)) => Ok(ApplyReply { in_force }),
            (Ok(_), None) => unreachable!("a snapshot that was applied is in force"),
            (Err(Refused(_, error, message, faults)), in_force) => Err(Refusal { error, message, faults, in_force }),
        }
    }

    fn apply(&self, snapshot: Snapshot) -> Result<Outcome, Refused> {
        let before = self.rules.load_full();
        let mut same_content = false;
        if let Some((current, _)) = before.snapshot() {
            same_content = current.revision == snapshot.revision;
            if snapshot.sequence < current.sequence || (snapshot.sequence == current.sequence && !same_content) {
                return Err(stale(&snapshot, current));
            }
            if same_content && current.policies != snapshot.policies {
                let message = "names other policies than the same revision that is in force: give each content its own";
                let fault = Fault { path: "revision".into(), message: message.into() };
                return Err(invalid(vec![fault]));
            }
            if same_content && snapshot.sequence == current.sequence {
                return Ok(Outcome::Unchanged);
            }
        }
        if same_content {
            self.rules.store(Arc::new(before.moved_on(snapshot, self.clock.now())));
            return Ok(Outcome::Unchanged);
        }
        let lowered = lower(&snapshot).map_err(invalid)?;
        let next = before.succeed(snapshot, lowered, || self.clock.now());
        if let Some((snapshot, _)) = next.snapshot() {
            let (sequence, revision, policies) = (snapshot.sequence, &snapshot.revision, snapshot.policies.len());
            tracing::info!(sequence, revision, policies, "snapshot in force");
        }
        self.rules.store(Arc::new(next));
        Ok(Outcome::Applied)
    }
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

    serde_json::from_slice::<IgnoredAny>(body).map_err(|error| {
        let message = format!("the body is not JSON: {error}");
        Refused(Outcome::Malformed, RefusalKind::Malformed, message, Vec::new())
    })?;
    // Words that another version added are its smallest fault.
    if let Ok(Version { wire_version }) = serde_json::from_slice(body)
        && wire_version != WIRE_VERSION
    {
        let message = format!("is {wire_version}, but this agent speaks {WIRE_VERSION}: upgrade the older of the two");
        return Err(invalid(vec![Fault { path: "wireVersion".into(), message }]));
    }
    let json = &mut serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(json).map_err(|error| {
        let path = error.path().to_string();
        invalid(vec![Fault { path, message: error.into_inner().to_string() }])
    })
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
