//! The rate limit quota service: data planes such as Envoy limit requests themselves, with units that this service charges
//! to the rules in advance.
//!
//! A data plane opens a stream and reports the requests of each *bucket*. A bucket is a descriptor whose entries have
//! no order. The [allocator](allocator) decides how many units each data plane gets, and the engine charges these
//! units. The answers are assignments: a token bucket that is never refilled, or a rule that admits all or no requests.

mod allocator;
mod messages;
mod reports;
mod stream;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use weir_enforce::{Descriptor, DescriptorStanding, DescriptorVerdict, LimitState, LiveRules};

use self::allocator::{Allocator, Assignment, Bucket, Limit, Standing};
#[cfg(test)]
pub(super) use self::messages::{BucketUsage, usages};
pub(super) use self::{messages::QuotaResponse, reports::Reports, stream::StreamRateLimitQuotas};

/// The name of the gRPC service.
pub(super) const NAME: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";
/// The path of its only method.
pub(super) const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// The kind of an assignment.
#[derive(Clone, Copy, Debug)]
enum AssignmentKind {
    Tokens,
    AllowAll,
    DenyAll,
    Abandon,
}

/// The names of each [`AssignmentKind`], as in `weir_quota_assignments_total`.
pub(crate) const ASSIGNMENTS: [&str; 4] = ["tokens", "allow_all", "deny_all", "abandon"];

/// The most attempts to charge units, each for fewer of them.
const ATTEMPTS: usize = 8;

/// The quotas of all data planes of this process.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    allocator: Mutex<Allocator>,
    assignments: [AtomicU64; ASSIGNMENTS.len()],
    /// Units that were charged in advance and assigned.
    pub(crate) tokens: AtomicU64,
    /// Requests that data planes reported as admitted, and as refused.
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) refused_buckets: AtomicU64,
}

impl Quotas {
    /// The numbers of data planes and of their buckets.
    pub(crate) fn size(&self) -> (u64, u64) {
        let allocator = self.allocator();
        (allocator.streams() as u64, allocator.buckets() as u64)
    }

    /// The number of assignments of each kind.
    pub(crate) fn assignments(&self) -> [u64; ASSIGNMENTS.len()] {
        self.assignments.each_ref().map(|count| count.load(Relaxed))
    }

    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        // No call panics in the middle of a change.
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, assignment: &Assignment) {
        let kind = match assignment {
            Assignment::Tokens { tokens, .. } => {
                self.tokens.fetch_add(u64::from(*tokens), Relaxed);
                AssignmentKind::Tokens
            }
            Assignment::AllowAll { .. } => AssignmentKind::AllowAll,
            Assignment::DenyAll { .. } => AssignmentKind::DenyAll,
        };
        self.assignments[kind as usize].fetch_add(1, Relaxed);
    }

    fn count_abandoned(&self, buckets: usize) {
        let abandoned = &self.assignments[AssignmentKind::Abandon as usize];
        abandoned.fetch_add(buckets.try_into().unwrap_or(u64::MAX), Relaxed);
    }
}

/// Returns how the rules treat a bucket, and the units that they admit now. 0 if only a store knows it. `None` if they admit
/// nothing now.
fn standing(rules: &LiveRules, bucket: &Bucket) -> (Standing, Option<u64>) {
    match rules.standing(&bucket.domain, &descriptor(&bucket.entries, 0)) {
        DescriptorStanding::Unlimited => (Standing::Unlimited, None),
        DescriptorStanding::Denied => (Standing::Denied, None),
        DescriptorStanding::Limited { limit, is_refused } => {
            let LimitState { requests, period, capacity, remaining, .. } = limit;
            (Standing::Limited(Limit { requests, period, capacity }), (!is_refused).then_some(remaining))
        }
    }
}

/// Charges up to `most` units of a bucket to all rules that count it, all of which admit `remaining` units as far as is
/// known. Returns how many.
async fn charge(rules: &LiveRules, bucket: &Bucket, most: u64, remaining: u64) -> u64 {
    let mut units = if remaining > 0 { most.min(remaining) } else { most };
    for _ in 0..ATTEMPTS {
        if units == 0 {
            break;
        }
        let verdict = rules.decide_descriptors(&bucket.domain, &[descriptor(&bucket.entries, units)]);
        let answer = match verdict {
            DescriptorVerdict::Decided(answer) => answer,
            DescriptorVerdict::Waits(wait) => wait.answer().await,
        };
        if !answer.is_refused {
            return units;
        }
        let limit = answer.states.first().and_then(|state| state.limit.as_ref());
        let remaining = limit.map_or(0, |limit| limit.remaining);
        units = if (1..units).contains(&remaining) { remaining } else { units / 2 };
    }
    0
}

fn descriptor(entries: &BTreeMap<String, String>, hits: u64) -> Descriptor<'_> {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Descriptor { entries, is_unordered: true, hits, is_credit: false, is_quota: true, limit: None }
}
