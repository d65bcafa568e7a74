//! The content of snapshots: the policies of a pod, serialized to JSON once for all pods that have the same ones.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use weir_wire::{MAX_LOG_BYTES, MAX_SNAPSHOT_BYTES, PolicyRules, log_bytes};

use crate::compile::revision_of;

/// The most bytes that policies may have as JSON, so that the snapshot around them fits an agent's limit.
const MOST: usize = MAX_SNAPSHOT_BYTES - 256;

/// The policies of one or more agents: a snapshot without its sequence.
#[derive(Debug)]
pub struct Content {
    /// Names the content.
    pub revision: String,
    /// Oldest policy first, then by name.
    pub policies: Vec<Arc<PolicyRules>>,
    /// The end of the snapshot's JSON: the policies, and the brace after them.
    json: Bytes,
}

impl Content {
    /// A content of these policies, as far as they fit, in this order.
    pub(super) fn new(policies: Vec<Arc<PolicyRules>>) -> Self {
        let content = Self::of(policies);
        if content.fits() { content } else { Self::of(fitting(content.policies, &[])) }
    }

    fn of(policies: Vec<Arc<PolicyRules>>) -> Self {
        let revision = snapshot_revision(&policies);
        Self::named(revision, policies)
    }

    fn named(revision: String, policies: Vec<Arc<PolicyRules>>) -> Self {
        let plain: Vec<&PolicyRules> = policies.iter().map(AsRef::as_ref).collect();
        let mut json = serde_json::to_vec(&plain).expect("rules are plain data, which always has a JSON form");
        json.push(b'}');
        Self { revision, policies, json: json.into() }
    }

    fn fits(&self) -> bool {
        let logs = self.policies.iter().fold(0_u64, |total, policy| total.saturating_add(log_bytes(policy)));
        self.json.len() <= MOST && logs <= MAX_LOG_BYTES
    }

    /// The snapshot as JSON, in two parts: the start has the sequence, and all agents with this content share the end.
    pub fn snapshot(&self, sequence: u64) -> (String, Bytes) {
        let start = format!(
            r#"{{"wireVersion":{},"sequence":{sequence},"revision":"{}","policies":"#,
            weir_wire::WIRE_VERSION,
            self.revision,
        );
        (start, self.json.clone())
    }

    /// The snapshot as one piece of JSON.
    pub fn body(&self, sequence: u64) -> String {
        let (mut body, end) = self.snapshot(sequence);
        body.push_str(std::str::from_utf8(&end).expect("JSON is UTF-8"));
        body
    }
}

#[cfg(test)]
impl Content {
    /// A content of no policies that claims this revision.
    pub(crate) fn claiming(revision: &str) -> Arc<Self> {
        Arc::new(Self::named(revision.to_owned(), Vec::new()))
    }
}

/// The contents in use, by revision.
#[derive(Debug, Default)]
pub(super) struct Contents {
    known: HashMap<String, Weak<Content>>,
}

impl Contents {
    /// The content of these policies, as far as they fit, which replaces `before`: an existing content or a new one.
    pub(super) fn of(&mut self, policies: Vec<Arc<PolicyRules>>, before: &[Arc<PolicyRules>]) -> Arc<Content> {
        let content = self.whole(policies);
        if content.fits() { content } else { self.whole(fitting(content.policies.clone(), before)) }
    }

    fn whole(&mut self, policies: Vec<Arc<PolicyRules>>) -> Arc<Content> {
        let revision = snapshot_revision(&policies);
        if let Some(content) = self.known.get(&revision).and_then(Weak::upgrade) {
            return content;
        }
        // Removes unused contents when the table would have to grow.
        if self.known.len() == self.known.capacity() {
            self.known.retain(|_, content| content.strong_count() > 0);
        }
        let content = Arc::new(Content::named(revision.clone(), policies));
        self.known.insert(revision, Arc::downgrade(&content));
        content
    }
}

/// The policies that fit into a snapshot, in order. A policy that has grown too large keeps its rules from `before`.
fn fitting(policies: Vec<Arc<PolicyRules>>, before: &[Arc<PolicyRules>]) -> Vec<Arc<PolicyRules>> {
    let (mut left, mut logs_left) = (MOST, MAX_LOG_BYTES);
    let mut fits = |policy: &Arc<PolicyRules>| {
        let length = serde_json::to_string(policy.as_ref()).map_or(usize::MAX, |json| json.len());
        // Includes the comma before the next policy.
        let rest = length.checked_add(1).and_then(|length| left.checked_sub(length));
        let rest = rest.zip(logs_left.checked_sub(log_bytes(policy)));
        (left, logs_left) = rest.unwrap_or((left, logs_left));
        rest.is_some()
    };
    let mut fitting = Vec::with_capacity(policies.len());
    for policy in policies {
        let earlier = || before.iter().find(|earlier| earlier.uid == policy.uid).cloned();
        let fit = if fits(&policy) { Some(policy) } else { earlier().filter(&mut fits) };
        fitting.extend(fit);
    }
    fitting
}

/// The revision of a list of policies, independent of their order.
fn snapshot_revision(policies: &[Arc<PolicyRules>]) -> String {
    let mut names: Vec<(&str, &str)> = policies.iter().map(|p| (p.uid.as_str(), p.revision.as_str())).collect();
    names.sort_unstable();
    revision_of(&names)
}
