//! Decides which Events announce facts about a policy: its enforcement, changes of its limits, drifted pods.
//!
//! This module does no I/O. There is one [`Announcer`] per policy. It announces each fact once, and no fact from before
//! the operator's start. The numbers in a notice count acknowledgements.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use weir_api::{
    RateLimitPolicyStatus,
    condition_types::{BYPASSABLE, ENFORCED},
};

use crate::{
    compile::CompiledPolicy,
    status::{Tally, changes::describe, reason::Reason},
};

/// The minimum time between two announcements with the same text. When a policy is enforced again after an announced
/// problem, this is always announced. In a cluster, the budget of Events can still drop it.
const REPEAT_INTERVAL: Duration = Duration::from_secs(300);

/// A notice about a policy, for an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// True for an Event of type Warning, which a person should investigate.
    pub warning: bool,
    /// The reason of the Event: one word in PascalCase.
    pub reason: &'static str,
    /// The text of the Event: one sentence.
    pub note: String,
    /// The time until every pod had acknowledged a change.
    pub took: Option<Duration>,
}

/// The facts that were already announced for a policy.
#[derive(Debug)]
pub struct Announcer {
    rules: Option<Arc<CompiledPolicy>>,
    since: Instant,
    /// The rules before the newest ones, until every pod has acknowledged the newest.
    change: Option<PendingChange>,
    /// The reason of `Enforced` that was announced last, or that was in the status at the start.
    announced: Option<String>,
    /// The bypass that was announced last.
    bypass: Option<String>,
    recent: HashMap<&'static str, (String, Instant)>,
    /// True if the last announcement was a warning.
    warned: bool,
    /// True if the last warning was held back, because it was announced a short time before.
    holds_back: bool,
}

#[derive(Debug)]
struct PendingChange {
    from: Option<Arc<CompiledPolicy>>,
    /// False if at some time no pod was targeted. Then the duration has no meaning.
    timed: bool,
}

impl Announcer {
    /// Returns an announcer that starts with the current rules and status.
    pub fn begin(now: Instant, rules: Option<Arc<CompiledPolicy>>, status: Option<&RateLimitPolicyStatus>) -> Self {
        let known = status.filter(|status| {
            status.revision.is_some() && status.revision.as_deref() == rules.as_ref().map(|r| r.revision.as_str())
        });
        let announced = known.and_then(|status| status.conditions.iter().find(|c| c.type_ == ENFORCED));
        let found = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == BYPASSABLE));
        let bypass = found.map(|condition| condition.message.clone());
        let change = known.is_none().then_some(PendingChange { from: None, timed: true });
        Self {
            rules,
            since: now,
            change,
            announced: announced.map(|c| c.reason.clone()),
            bypass,
            recent: HashMap::new(),
            warned: false,
            holds_back: false,
        }
    }

    /// Returns true if a problem must be announced later, if it lasts.
    pub fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// Returns the time at which the newest rules were set.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Sets the rules that pods should enforce.
    pub fn want(&mut self, now: Instant, rules: Option<&Arc<CompiledPolicy>>) {
        let revision = |rules: Option<&Arc<CompiledPolicy>>| rules.map(|rules| rules.revision.clone());
        if revision(rules) != revision(self.rules.as_ref()) {
            let from = self.change.take().map_or_else(|| self.rules.clone(), |change| change.from);
            self.change = Some(PendingChange { from, timed: true });
            self.rules = rules.cloned();
            self.since = now;
        }
    }

    /// Returns the notice to send, if any, for this reason and message of `Enforced`.
    pub fn announce(&mut self, now: Instant, reason: Reason, message: &str, tally: Tally) -> Option<Notice> {
        let before = self.announced.clone();
        self.holds_back = false;
        let notice = match reason {
            Reason::Enforced => self.enforced(now, message, tally),
            Reason::Drifted | Reason::Invalid | Reason::SnapshotTooLarge => self.warn(reason.as_str(), message),
            Reason::NoPods | Reason::TargetNotFound | Reason::Bypassed => {
                if let Some(change) = &mut self.change {
                    change.timed = false;
                }
                self.announced = Some(reason.as_str().to_owned());
                // In standalone mode, a line says so. The line after it must show that it is over.
                self.recent.remove("Enforced");
                None
            }
            _ => None,
        }?;
        let ends_warning = self.warned && !notice.warning;
        if notice.took.is_none()
            && !ends_warning
            && let Some((note, at)) = self.recent.get(notice.reason)
            && *note == notice.note
            && now.duration_since(*at) < REPEAT_INTERVAL
        {
            if notice.warning {
                // If the problem lasts, it is announced later.
                (self.announced, self.holds_back) = (before, true);
            }
            return None;
        }
        self.warned = notice.warning;
        self.recent.insert(notice.reason, (notice.note.clone(), now));
        Some(notice)
    }

    /// Returns the notice to send about a bypass. Each new bypass is announced. The end of a bypass is not, because the
    /// condition shows it.
    pub fn bypass(&mut self, way: Option<String>) -> Option<Notice> {
        let before = std::mem::replace(&mut self.bypass, way.clone());
        let note = way.filter(|way| before.as_ref() != Some(way))?;
        Some(Notice { warning: true, reason: BYPASSABLE, note, took: None })
    }

    fn enforced(&mut self, now: Instant, message: &str, tally: Tally) -> Option<Notice> {
        let was_enforced = self.announced.replace("Enforced".to_owned()).is_some_and(|reason| reason == "Enforced");
        let change = self.change.take();
        let took = change.as_ref().filter(|change| change.timed).map(|_| now.duration_since(self.since));
        let within = took.map(|took| format!(" within {} ms", took.as_millis())).unwrap_or_default();
        let normal = |reason, note, took| Some(Notice { warning: false, reason, note, took });
        match (change.map(|change| change.from), &self.rules) {
            // Otherwise, only the number of pods that share a limit changed, or the address of a store.
            (Some(Some(from)), Some(rules)) if !describe(&from, rules).is_empty() => {
                let pods = tally.enforcing;
                let note = format!(
                    "{}: acknowledged by {pods} of {pods} pods{within}, revision {}",
                    describe(&from, rules),
                    rules.revision
                );
                normal("LimitsChanged", note, took)
            }
            (Some(None), _) => normal("Enforced", format!("{message}{within}"), took),
            _ if was_enforced => None,
            _ => normal("Enforced", message.to_owned(), None),
        }
    }

    fn warn(&mut self, reason: &'static str, message: &str) -> Option<Notice> {
        let before = self.announced.replace(reason.to_owned());
        (before.as_deref() != Some(reason)).then(|| Notice {
            warning: true,
            reason,
            note: message.to_owned(),
            took: None,
        })
    }
}

#[cfg(test)]
#[path = "announcer_tests.rs"]
mod tests;
