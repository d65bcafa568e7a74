//! Decides what to announce about a policy: that it is enforced, that its limits changed, that pods drifted.
//!
//! Pure, one [`Announcer`] per policy. It announces each fact once, and does not announce facts from before the
//! operator's start. The numbers in a notice are acknowledgements.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use weir_api::{
    RateLimitPolicyStatus,
    condition_types::{BYPASSABLE, ENFORCED},
};

use crate::{
    changes::describe,
    compile::CompiledRules,
    status::{BYPASSED, TOO_LARGE, Tally},
};

/// The same text is not announced again within this time.
const ONCE_IN: Duration = Duration::from_secs(300);

/// An announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether someone should look into it.
    pub warning: bool,
    /// One word in PascalCase.
    pub reason: &'static str,
    /// One sentence.
    pub note: String,
    /// How long it took until every pod had acknowledged a change.
    pub took: Option<Duration>,
}

/// The history of a policy, as far as it was announced.
#[derive(Debug)]
pub struct Announcer {
    rules: Option<Arc<CompiledRules>>,
    since: Instant,
    /// The rules before the newest, until every pod has the newest.
    change: Option<Change>,
    /// The reason of `Enforced` that was announced last, or that held at the start.
    announced: Option<String>,
    /// The bypass that was announced last.
    bypass: Option<String>,
    recent: HashMap<&'static str, (String, Instant)>,
}

#[derive(Debug)]
struct Change {
    from: Option<Arc<CompiledRules>>,
    /// False if at some time there was no pod to wait for. Then the duration says nothing.
    timed: bool,
}

impl Announcer {
    /// Starts with the current rules and status.
    pub fn begin(now: Instant, rules: Option<Arc<CompiledRules>>, status: Option<&RateLimitPolicyStatus>) -> Self {
        let known = status.filter(|status| {
            status.revision.is_some() && status.revision.as_deref() == rules.as_ref().map(|r| r.revision.as_str())
        });
        let announced = known.and_then(|status| status.conditions.iter().find(|c| c.type_ == ENFORCED));
        let found = status.and_then(|status| status.conditions.iter().find(|c| c.type_ == BYPASSABLE));
        let bypass = found.map(|condition| condition.message.clone());
        let change = known.is_none().then_some(Change { from: None, timed: true });
        Self {
            rules,
            since: now,
            change,
            announced: announced.map(|c| c.reason.clone()),
            bypass,
            recent: HashMap::new(),
        }
    }

    /// When the newest rules became wanted.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Sets the wanted rules.
    pub fn want(&mut self, now: Instant, rules: Option<&Arc<CompiledRules>>) {
        let revision = |rules: Option<&Arc<CompiledRules>>| rules.map(|rules| rules.revision.clone());
        if revision(rules) != revision(self.rules.as_ref()) {
            let from = self.change.take().map_or_else(|| self.rules.clone(), |change| change.from);
            self.change = Some(Change { from, timed: true });
            self.rules = rules.cloned();
            self.since = now;
        }
    }

    /// What to announce, given the reason and message of `Enforced`.
    pub fn announce(&mut self, now: Instant, reason: &str, message: &str, tally: Tally) -> Option<Notice> {
        let notice = match reason {
            "Enforced" => self.enforced(now, message, tally),
            "Drifted" => self.warn("Drifted", message),
            "Invalid" => self.warn("Invalid", message),
            TOO_LARGE => self.warn(TOO_LARGE, message),
            "NoPods" | "TargetNotFound" | BYPASSED => {
                if let Some(change) = &mut self.change {
                    change.timed = false;
                }
                self.announced = Some(reason.to_owned());
                None
            }
            _ => None,
        }?;
        if notice.took.is_none()
            && let Some((note, at)) = self.recent.get(notice.reason)
            && *note == notice.note
            && now.duration_since(*at) < ONCE_IN
        {
            return None;
        }
        self.recent.insert(notice.reason, (notice.note.clone(), now));
        Some(notice)
    }

    /// What to announce about bypasses: each change, but not their end, which the condition shows.
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
            // Only the number of pods that share a limit changed, or the address of a store.
            (Some(Some(from)), Some(rules)) if was_enforced && describe(&from, rules).is_empty() => None,
            (Some(Some(from)), Some(rules)) => {
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
