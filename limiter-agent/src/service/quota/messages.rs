//! The messages of Envoy's rate limit quota service v3 (`envoy/service/rate_limit_quota/v3/rlqs.proto`).
//!
//! The messages have only the fields that Weir reads or writes. A decoder skips all others.

use std::collections::BTreeMap;

use prost::{DecodeError, Enumeration, Message, Oneof};

use crate::service::{messages::Duration, wire::Values};

/// What a data plane reports, without its [`usages`].
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct UsageReports {
    /// The domain, which names the rules. Later messages of a stream may omit it.
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
}

/// Returns the messages [`BucketUsage`] of a report, and the number of entries of each of them.
pub(crate) fn usages(reports: &[u8]) -> impl Iterator<Item = Result<(&[u8], usize), DecodeError>> {
    const USAGES: u32 = 2;
    const BUCKET_ID: u32 = 1;
    const BUCKET: u32 = 1;
    Values::of(reports, USAGES).map(|usage| {
        let usage = usage?;
        // A decoder merges the values of a field that is not a list.
        let entries = Values::of(usage, BUCKET_ID).map(|id| id.map(|id| Values::of(id, BUCKET).count()));
        Ok((usage, entries.sum::<Result<usize, _>>()?))
    })
}

/// The requests of one bucket since the last report.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BucketUsage {
    #[prost(message, optional, tag = "1")]
    pub(crate) bucket_id: Option<ReportedId>,
    #[prost(uint64, tag = "3")]
    pub(crate) num_requests_allowed: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) num_requests_denied: u64,
}

/// The entries of a bucket, as Envoy reports them: it does not check that values, such as headers of clients, are UTF-8.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ReportedId {
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub(crate) bucket: BTreeMap<String, Vec<u8>>,
}

impl ReportedId {
    /// Returns the keys and values as texts. `None` if a value is not UTF-8.
    pub(crate) fn texts(self) -> Option<BTreeMap<String, String>> {
        self.bucket.into_iter().map(|(key, value)| Some((key, String::from_utf8(value).ok()?))).collect()
    }
}

/// The entries of a bucket, without an order.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(crate) struct BucketId {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) bucket: BTreeMap<String, String>,
}

/// What a data plane does with its buckets from now on.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct QuotaResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) bucket_action: Vec<BucketAction>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct BucketAction {
    #[prost(message, optional, tag = "1")]
    pub(crate) bucket_id: Option<BucketId>,
    #[prost(oneof = "Action", tags = "2, 3")]
    pub(crate) action: Option<Action>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum Action {
    #[prost(message, tag = "2")]
    Assignment(QuotaAssignment),
    /// The data plane forgets the bucket until its next request.
    #[prost(message, tag = "3")]
    Abandon(Abandon),
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Abandon {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct QuotaAssignment {
    #[prost(message, optional, tag = "2")]
    pub(crate) assignment_time_to_live: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub(crate) rate_limit_strategy: Option<RateLimitStrategy>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct RateLimitStrategy {
    #[prost(oneof = "Strategy", tags = "1, 3")]
    pub(crate) strategy: Option<Strategy>,
}

#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(crate) enum Strategy {
    #[prost(enumeration = "BlanketRule", tag = "1")]
    Blanket(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum BlanketRule {
    AllowAll = 0,
    DenyAll = 1,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub(crate) max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) tokens_per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) fill_interval: Option<Duration>,
}
