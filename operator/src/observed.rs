//! The last reports of the agents, and their meaning for each policy on each pod.
//!
//! State is stored per pod and judged per policy. A pod enforces a policy if its agent's newest answer shows that and
//! the agent still answers. The operator's intentions do not count.

mod stores;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use weir_api::DriftReason;
use weir_wire::Status;

pub use self::stores::ReachedStores;
use crate::{
    link::{Failure, FailureKind, Observation, Seen},
    plan::Content,
    world::{AgentAddress, ObjectKey, Pod},
};

/// The time that a pod has for its first answer, and for its acknowledgement of a change. After that it counts as drifted.
pub const ANSWER_TIME: Duration = Duration::from_secs(4);

/// The message for an agent to which another operator also pushes: it enforces this policy only part of the time.
const CONTESTED: &str = "another operator writes to this agent, and each overwrites the other's snapshots: stop one \
                         operator, or list the agent in only one of them";

/// Whether one pod enforces one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Convergence {
    /// The pod acknowledged the policy's revision, and answers.
    Enforcing,
    /// The pod does not enforce the policy yet, but is expected to do so soon.
    Pending(DriftReason, String),
    /// The pod does not enforce the policy.
    Drifted(DriftReason, String),
}

impl Convergence {
    /// Returns the severity. Larger is worse.
    pub fn severity(&self) -> u8 {
        match self {
            Self::Enforcing => 0,
            Self::Pending(..) => 1,
            Self::Drifted(..) => 2,
        }
    }
}

/// The state of all agents, as far as it is known.
#[derive(Debug, Default)]
pub struct Observed {
    views: HashMap<ObjectKey, View>,
    /// The pods whose agents are at the same URL: nearly always one.
    pods_at: HashMap<Arc<str>, Vec<ObjectKey>>,
    stores: ReachedStores,
    /// The names of the stores whose state has changed.
    news: BTreeSet<String>,
    /// The contested pods whose address no other pod has any more.
    uncontested: BTreeSet<ObjectKey>,
}

/// What is known of the agent of one pod.
#[derive(Debug)]
struct View {
    /// A pod of the same name with another UID is another pod.
    pod_uid: Arc<str>,
    /// The URL of the agent.
    url: Arc<str>,
    /// The time since which the agent is observed.
    since: Instant,
    /// True once there was any observation, also of a failure.
    received: bool,
    /// True once the agent has answered.
    answered: bool,
    /// The policies of the agent's newest answer.
    in_force: EnforcedPolicies,
    /// The last failure, until an answer shows that it is over.
    failure: Option<Box<Failure>>,
    /// True while another operator also pushes to the agent.
    contested: bool,
}

/// The policies that an agent enforces, by its own report.
#[derive(Debug)]
enum EnforcedPolicies {
    Nothing,
    /// Exactly a content that was sent to the agent. All its pods share the content.
    Content(Arc<Content>),
    /// Other policies. The map contains the revision of each policy UID.
    #[expect(clippy::box_collection, reason = "few of thousands of views have the map")]
    Other(Box<HashMap<String, String>>),
}

impl EnforcedPolicies {
    fn of(status: &Status, sent: Option<&Arc<Content>>) -> Self {
        let reported = &status.policies;
        let is_same = |content: &&Arc<Content>| {
            reported.len() == content.policies.len()
                && reported
                    .iter()
                    .zip(&content.policies)
                    .all(|(reported, it)| reported.uid == it.uid && reported.revision == it.revision)
        };
        match sent.filter(is_same) {
            _ if status.in_force.is_none() => Self::Nothing,
            Some(content) => Self::Content(content.clone()),
            None => {
                let revisions = reported.iter().map(|policy| (policy.uid.clone(), policy.revision.clone()));
                Self::Other(Box::new(revisions.collect()))
            }
        }
    }

    fn revision(&self, uid: &str) -> Option<&str> {
        match self {
            Self::Nothing => None,
            Self::Content(content) => {
                content.policies.iter().find(|policy| policy.uid == uid).map(|policy| policy.revision.as_str())
            }
            Self::Other(revisions) => revisions.get(uid).map(String::as_str),
        }
    }

    /// Returns true if both values are equal. The result can be false for equal values in different forms. Then the
    /// engine only judges the pod again.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            // A content's revision identifies the policies and their revisions.
            (Self::Content(content), Self::Content(other)) => content.revision == other.revision,
            (Self::Other(revisions), Self::Other(others)) => revisions == others,
            _ => false,
        }
    }

    fn has(&self, wanted: &Content) -> bool {
        match self {
            Self::Content(content) if content.revision == wanted.revision => true,
            _ => wanted.policies.iter().all(|policy| self.revision(&policy.uid) == Some(&policy.revision)),
        }
    }
}

/// The state that a policy expects of its pods.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// UID of the policy.
    pub uid: &'a str,
    /// The revision that should be in force.
    pub revision: &'a str,
    /// The time since which it should be in force.
    pub since: Instant,
}

impl Observed {
    /// Starts observing the agent at `url`; returns false if it is already observed. A pod of the same name with
    /// another UID starts from the beginning, and so does an agent at another URL.
    pub fn track(&mut self, now: Instant, pod: &ObjectKey, pod_uid: &Arc<str>, url: &Arc<str>) -> bool {
        if self.views.get(pod).is_some_and(|view| view.pod_uid == *pod_uid && view.url == *url) {
            return false;
        }
        let view = View {
            pod_uid: pod_uid.clone(),
            url: url.clone(),
            since: now,
            received: false,
            answered: false,
            in_force: EnforcedPolicies::Nothing,
            failure: None,
            contested: false,
        };
        let before = self.views.insert(pod.clone(), view).filter(|before| before.url != *url);
        self.moved(pod, before);
        let pods = self.pods_at.entry(url.clone()).or_insert_with(|| Vec::with_capacity(1));
        if !pods.contains(pod) {
            pods.push(pod.clone());
        }
        self.news.extend(self.stores.forget(pod));
        true
    }

    /// Returns the number of observed agents.
    pub fn agents(&self) -> usize {
        self.views.len()
    }

    /// Stops observing a pod.
    pub fn forget(&mut self, pod: &ObjectKey) {
        let before = self.views.remove(pod);
        self.moved(pod, before);
        self.news.extend(self.stores.forget(pod));
    }

    /// Records that a pod's agent is no longer at the URL of this view.
    fn moved(&mut self, pod: &ObjectKey, before: Option<View>) {
        let Some(View { url, .. }) = before else { return };
        let Some(pods) = self.pods_at.get_mut(&url) else { return };
        pods.retain(|other| other != pod);
        match pods.len() {
            0 => drop(self.pods_at.remove(&url)),
            1 => self.uncontested.extend(pods.first().filter(|pod| self.views[*pod].contested).cloned()),
            _ => {}
        }
    }

    /// Returns a pod that has its address for itself since the last call, and stops observing it. A new link begins
    /// without a contest, and pushes what the other pod has replaced.
    pub fn take_uncontested(&mut self) -> Option<ObjectKey> {
        let pod = self.uncontested.pop_first()?;
        self.forget(&pod);
        Some(pod)
    }

    /// Returns the agents' last reports about stores.
    pub fn stores(&self) -> &ReachedStores {
        &self.stores
    }

    /// Returns the names of the stores whose state has changed since the last call.
    pub fn take_news(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.news)
    }

    /// Records an observation of a pod that should enforce `wanted`. Returns true if it can change whether the pod
    /// enforces a policy, or reaches a store.
    pub fn observe(&mut self, observation: &Observation, wanted: Option<&Arc<Content>>) -> bool {
        let Some(view) = self.views.get_mut(&observation.pod) else { return false };
        // The link to an earlier agent of the pod may have reported before it ended.
        if view.pod_uid != observation.pod_uid || observation.at < view.since {
            return false;
        }
        let first = !std::mem::replace(&mut view.received, true);
        let in_force = match &observation.seen {
            Seen::Failed(failure) => {
                let changed = view.failure.as_deref() != Some(failure);
                view.failure = Some(Box::new(failure.clone()));
                return changed || first;
            }
            Seen::Acknowledged(content) => EnforcedPolicies::Content(content.clone()),
            Seen::Status(status) => EnforcedPolicies::of(status, wanted),
            Seen::Contested(contested) => {
                return std::mem::replace(&mut view.contested, *contested) != *contested || first;
            }
        };
        let news = match &observation.seen {
            Seen::Status(status) => self.stores.set(&observation.pod, &status.stores),
            Seen::Failed(_) | Seen::Acknowledged(_) | Seen::Contested(_) => Vec::new(),
        };
        let has_news = !news.is_empty();
        self.news.extend(news);
        view.answered = true;
        // A rejection stays until the agent accepts a snapshot, and so does a content that is withheld; silence ends with
        // any answer.
        let applied = matches!(observation.seen, Seen::Acknowledged(_));
        let cleared = view.failure.as_ref().is_some_and(|f| applied || f.kind == FailureKind::Unreachable);
        if cleared {
            view.failure = None;
        }
        let changed = !view.in_force.is(&in_force);
        view.in_force = in_force;
        changed || cleared || first || has_news
    }

    /// Returns true if any result, good or bad, was reported by this pod's agent.
    pub fn received(&self, pod: &ObjectKey) -> bool {
        self.views.get(pod).is_some_and(|view| view.received)
    }

    /// Returns true if a pod enforces all its policies without any fault. Then the pod needs no further judging.
    pub fn has_converged(&self, key: &ObjectKey, pod: &Pod, wanted: &Content) -> bool {
        let view =
            self.views.get(key).filter(|view| view.pod_uid == pod.uid && view.failure.is_none() && !view.contested);
        matches!(pod.agent, AgentAddress::At(_)) && view.is_some_and(|view| view.in_force.has(wanted))
    }

    /// Returns whether a targeted pod enforces a policy, and the reason if it does not.
    pub fn convergence(&self, now: Instant, key: &ObjectKey, pod: &Pod, wanted: Wanted<'_>) -> Convergence {
        match &pod.agent {
            AgentAddress::None(why) => return Convergence::Drifted(DriftReason::NoAgent, why.clone().into_owned()),
            AgentAddress::Pending => {
                return Convergence::Pending(
                    DriftReason::Pending,
                    "the pod has no address yet: if this lasts, kubectl describe pod gives the reason".into(),
                );
            }
            AgentAddress::At(_) => {}
        }
        let Some(view) = self.views.get(key).filter(|view| view.pod_uid == pod.uid) else {
            return Convergence::Pending(DriftReason::Pending, "the agent was not contacted yet".into());
        };
        let enforces = view.in_force.revision(wanted.uid) == Some(wanted.revision);
        match &view.failure {
            Some(failure) if failure.kind == FailureKind::Unreachable => {
                if !view.answered && now.duration_since(view.since) < ANSWER_TIME {
                    Convergence::Pending(DriftReason::Pending, failure.message.clone())
                } else {
                    Convergence::Drifted(DriftReason::Unreachable, failure.message.clone())
                }
            }
            _ if view.contested => Convergence::Drifted(DriftReason::Outdated, self.contest(key, &view.url)),
            _ if enforces => Convergence::Enforcing,
            Some(failure) if failure.kind == FailureKind::Withheld => {
                Convergence::Drifted(DriftReason::Outdated, failure.message.clone())
            }
            Some(failure) => Convergence::Drifted(DriftReason::Refused, failure.message.clone()),
            None if !view.answered && now.duration_since(view.since) < ANSWER_TIME => {
                Convergence::Pending(DriftReason::Pending, "the agent has not answered yet".into())
            }
            None => {
                let message = match view.in_force.revision(wanted.uid) {
                    Some(revision) => format!("enforces revision {revision}"),
                    None => "does not enforce this policy".to_owned(),
                };
                if now.duration_since(wanted.since.max(view.since)) < ANSWER_TIME {
                    Convergence::Pending(DriftReason::Outdated, message)
                } else {
                    Convergence::Drifted(DriftReason::Outdated, message)
                }
            }
        }
    }

    /// Describes who else writes to the agent at `url`: this operator itself, for another pod with this address, or
    /// another operator.
    fn contest(&self, key: &ObjectKey, url: &Arc<str>) -> String {
        match self.pods_at.get(url).into_iter().flatten().filter(|pod| *pod != key).min() {
            Some(pod) => format!(
                "the pod {pod} has the same address {url}, and the policies of each pod replace those of the other: \
                 delete one of the pods, or give one another port by the annotation weir.dev/control-port"
            ),
            None => CONTESTED.to_owned(),
        }
    }
}

#[cfg(test)]
#[path = "observed_tests.rs"]
mod tests;
