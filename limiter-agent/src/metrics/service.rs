//! Metric families of the rate limit service, independent of the rules.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::{MetricFamily, MetricType};
use weir_client::agent::{counter, family, gauge};

use crate::service::{RESULTS, RateLimitService};

pub(super) fn families(service: &RateLimitService) -> [MetricFamily; 4] {
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
    ]
}
