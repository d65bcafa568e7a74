//! The remaining work for a request after its verdict.

use std::{sync::Arc, time::Duration};

use weir_core::KeyPermit;

use crate::{
    decide::{deferred::DeferredCost, header_rules::HeaderRules},
    format::Format,
    policy_deadline::PolicyDeadline,
    quota_headers::{Fields, QuotaState},
    rule::Rule,
};

/// The remaining work for an admitted request.
#[derive(Debug, Default)]
pub struct FollowUp {
    /// The deadline of the request.
    pub deadline: Option<Deadline>,
    /// Costs that depend on the body of the request or on the response.
    pub costs: Vec<DeferredCost>,
    /// The permits of concurrent limits, until they pass to the body of the response or to a tunnel.
    pub permits: Vec<HeldPermit>,
}

/// A permit of a rule's concurrent limit. Dropping it admits another request.
#[derive(Debug)]
pub struct HeldPermit {
    pub(crate) _permit: KeyPermit,
    /// The rule, until its admission is counted and is in the response fields.
    pub(crate) admitted: Option<AdmittedBy>,
}

/// A concurrent limit that admitted a request.
#[derive(Debug)]
pub(crate) struct AdmittedBy {
    pub(crate) rule: Arc<Rule>,
    pub(crate) state: QuotaState,
    pub(crate) override_index: Option<usize>,
}

/// The maximum time of a request after its verdict, including its wait.
#[derive(Debug)]
pub struct Deadline {
    pub(crate) policy: Arc<PolicyDeadline>,
    /// The rule that counts an exceeded deadline: the first matching rule of the policy with the shortest deadline.
    pub(crate) rule: Arc<Rule>,
    /// The format of the response to a request that exceeds the deadline.
    pub(crate) format: Format,
    /// The matching rules that set headers in all responses. `None` if there are none.
    pub(crate) headers: Option<HeaderRules>,
}

impl Deadline {
    /// Returns the maximum time of the request.
    pub fn after(&self) -> Duration {
        self.policy.after
    }

    /// Counts a request whose deadline passed before the app answered.
    pub(crate) fn expire(&self) {
        self.rule.statistics.expired.count();
    }
}

impl FollowUp {
    /// Takes the deadline, if there is one.
    pub(crate) fn take_deadline(&mut self) -> Option<(Duration, Deadline)> {
        self.deadline.take().map(|deadline| (deadline.after(), deadline))
    }

    /// Takes the costs that count the bytes of the request's body.
    pub(crate) fn take_request_bytes(&mut self) -> Vec<DeferredCost> {
        self.costs.extract_if(.., |cost| cost.is_request_bytes()).collect()
    }

    /// Counts the request as admitted by the rules of its permits, and adds the header fields of these rules.
    pub(crate) fn admit(&mut self, fields: &mut Fields) {
        for AdmittedBy { rule, state, override_index } in
            self.permits.iter_mut().filter_map(|held| held.admitted.take())
        {
            rule.statistics.allowed.count();
            if let Some(quota_headers) = rule.quota_headers() {
                fields.add_concurrency(quota_headers, state, override_index);
            }
        }
    }

    /// Returns the work in a box, or `None` if no work remains.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let nothing = self.deadline.is_none() && self.costs.is_empty() && self.permits.is_empty();
        (!nothing).then(|| Box::new(self))
    }
}
