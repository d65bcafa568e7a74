//! Metric families of the rate limit service, independent of the rules.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::{MetricFamily, MetricType};
use weir_client::agent::{counter, family, gauge};

use crate::service::{ASSIGNMENTS, QuotaCounts, RESULTS, RateLimitService};

pub(super) fn families(service: &RateLimitService) -> [MetricFamily; 10] {
    let QuotaCounts { streams, buckets, assignments, tokens, allowed, denied, refused_buckets } =
        service.quotas.counts();
    let assignments = ASSIGNMENTS.iter().zip(assignments);
    let questions = RESULTS.iter().zip(service.questions());
    [
        family(
            "weir_connections",
            "Client connections open now.",
            MetricType::GAUGE,
            vec![gauge(&[], service.connections.load(Relaxed))],
        ),
        family(
            "weir_connections_accepted_total",
            "Client connections so far.",
            MetricType::COUNTER,
            vec![counter(&[], service.accepted.load(Relaxed))],
        ),
        family(
            "weir_connections_evicted_total",
            "Idle client connections closed to admit new ones within --max-connections.",
            MetricType::COUNTER,
            vec![counter(&[], service.slots.evictions())],
        ),
        family(
            "weir_service_questions_total",
            "Questions of proxies, by their answer: ok, over_limit, or invalid.",
            MetricType::COUNTER,
            questions.map(|(result, count)| counter(&[("result", result)], count)).collect(),
        ),
        family(
            "weir_quota_streams",
            "Data planes with an open quota stream.",
            MetricType::GAUGE,
            vec![gauge(&[], streams)],
        ),
        family("weir_quota_buckets", "Quota buckets of all data planes.", MetricType::GAUGE, vec![gauge(&[], buckets)]),
        family(
            "weir_quota_buckets_refused_total",
            "Reports about quota buckets beyond the maximum of a data plane.",
            MetricType::COUNTER,
            vec![counter(&[], refused_buckets)],
        ),
        family(
            "weir_quota_assignments_total",
            "Assignments to data planes, by their kind: tokens, allow_all, deny_all, or abandon.",
            MetricType::COUNTER,
            assignments.map(|(kind, count)| counter(&[("kind", kind)], count)).collect(),
        ),
        family(
            "weir_quota_tokens_total",
            "Units that were charged to limits in advance and assigned to data planes.",
            MetricType::COUNTER,
            vec![counter(&[], tokens)],
        ),
        family(
            "weir_quota_requests_total",
            "Requests that data planes reported, by their decision: allowed or denied.",
            MetricType::COUNTER,
            vec![counter(&[("decision", "allowed")], allowed), counter(&[("decision", "denied")], denied)],
        ),
    ]
}
