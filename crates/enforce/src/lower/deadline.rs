//! Lowers the deadline of a policy, with the response to requests that exceed it.

use std::time::Duration;

use bytes::Bytes;
use weir_wire::PolicyRules;

use super::{
    faults::{Faults, Path},
    on_limit::{lower_media_type, lower_status},
};
use crate::policy_deadline::PolicyDeadline;

/// Lowers a deadline. Returns `None` if the policy has none, or if it has faults.
pub(super) fn lower_deadline(policy: &PolicyRules, path: &Path, faults: &mut Faults) -> Option<PolicyDeadline> {
    let form = policy.on_deadline.as_ref();
    let at = path.field("onDeadline");
    if form.is_some() && policy.deadline_millis.is_none() {
        faults.add(&at, "has a meaning only with deadlineMillis: remove it");
    }
    if policy.deadline_millis == Some(0) {
        faults.add(&path.field("deadlineMillis"), "must be at least 1: remove it for no deadline");
    }
    let status = lower_status(form.map_or(504, |form| form.status), &at, faults);
    let content_type = form.and_then(|form| form.content_type.as_deref()).unwrap_or("text/plain; charset=utf-8");
    let content_type = lower_media_type(content_type, &at, faults);
    let after = Duration::from_millis(policy.deadline_millis?);
    let body = form.and_then(|form| form.body.clone()).map(Bytes::from);
    Some(PolicyDeadline { after, status: status?, body, content_type: content_type? })
}
