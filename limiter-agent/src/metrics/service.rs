//! Metric families of the rate limit service, independent of the rules.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::MetricFamily;
use weir_client::agent::{counter, counters, gauge};

use crate::service::{ASSIGNMENTS, QuotaCounts, RESULTS, RateLimitService};

pub(super) fn families(service: &RateLimitService) -> [MetricFamily; 10] {
    let QuotaCounts { streams, buckets, assignments, tokens, allowed, denied, refused_buckets } =
        service.quotas.counts();
    let assignments = ASSIGNMENTS.into_iter().zip(assignments);
    let questions = RESULTS.into_iter().zip(service.questions());
    [
        gauge("weir_connections", "Client connections open now.", service.connections.load(Relaxed)),
        counter("weir_connections_accepted_total", "Client connections so far.", service.accepted.load(Relaxed)),
        counter(
            "weir_connections_evicted_total",
            "Client connections closed to admit new ones within --max-connections, or to free memory.",
            service.slots.evictions(),
        ),
        counters(
            "weir_service_questions_total",
            "Questions of proxies, by their answer: ok, over_limit, or invalid.",
            questions.map(|(result, count)| ([("result", result)], count)),
        ),
        gauge("weir_quota_streams", "Data planes with an open quota stream.", streams),
        gauge("weir_quota_buckets", "Quota buckets of all data planes.", buckets),
        counter(
            "weir_quota_buckets_refused_total",
            "Reports about quota buckets beyond the maximum of a data plane.",
            refused_buckets,
        ),
        counters(
            "weir_quota_assignments_total",
            "Assignments to data planes, by their kind: tokens, allow_all, deny_all, or abandon.",
            assignments.map(|(kind, count)| ([("kind", kind)], count)),
        ),
        counter(
            "weir_quota_tokens_total",
            "Units that were charged to limits in advance and assigned to data planes.",
            tokens,
        ),
        counters(
            "weir_quota_requests_total",
            "Requests that data planes reported, by their decision: allowed or denied.",
            [([("decision", "allowed")], allowed), ([("decision", "denied")], denied)],
        ),
    ]
}
