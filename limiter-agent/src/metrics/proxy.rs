//! Metric families about clients and the app, independent of the rules.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::{Metric, MetricFamily, MetricType};
use weir_enforce::over_budget;

use super::family::{counter, family, gauge, histogram};
use crate::proxy::{Protocol, Proxy, REASONS};

pub(super) fn families(proxy: &Proxy) -> [MetricFamily; 10] {
    let traffic = &proxy.traffic;
    [
        family(
            "weir_connections",
            "Client connections open now.",
            MetricType::GAUGE,
            vec![gauge(&[], proxy.connections.load(Relaxed))],
        ),
        family(
            "weir_connections_accepted_total",
            "Client connections so far.",
            MetricType::COUNTER,
            vec![counter(&[], traffic.accepted())],
        ),
        family(
            "weir_connections_evicted_total",
            "Client connections that were closed while they were idle, to serve others within --max-connections.",
            MetricType::COUNTER,
            vec![counter(&[], proxy.places.evictions())],
        ),
        family(
            "weir_connections_parked",
            "Client connections open now on which nothing is asked and for which no buffer is held.",
            MetricType::GAUGE,
            vec![gauge(&[], traffic.parked())],
        ),
        family(
            "weir_protocol_connections",
            "Client connections open now, by what they speak; those that have said nothing yet speak nothing.",
            MetricType::GAUGE,
            by_protocol(&Protocol::ALL, |labels, protocol| gauge(labels, traffic.spoken(protocol).open)),
        ),
        family(
            "weir_protocol_connections_total",
            "Client connections so far, by what they speak; one that was upgraded counts as HTTP/1 too.",
            MetricType::COUNTER,
            by_protocol(&Protocol::ALL, |labels, protocol| counter(labels, traffic.spoken(protocol).opened)),
        ),
        family(
            "weir_protocol_requests_total",
            "Requests that came, whatever became of them.",
            MetricType::COUNTER,
            by_protocol(&[Protocol::Http1, Protocol::Http2], |labels, protocol| {
                counter(labels, traffic.spoken(protocol).requests)
            }),
        ),
        family(
            "weir_predicates_over_budget_total",
            "Predicates that were not run for a request because they would have taken too long: limits count it, Bypass does not.",
            MetricType::COUNTER,
            vec![counter(&[], over_budget())],
        ),
        family(
            "weir_upstream_errors_total",
            "Requests that the app did not answer, by reason.",
            MetricType::COUNTER,
            REASONS.iter().zip(proxy.failures.get()).map(|(reason, n)| counter(&[("reason", reason)], n)).collect(),
        ),
        family(
            "weir_upstream_seconds",
            "From sending a request to the app until its response begins.",
            MetricType::HISTOGRAM,
            vec![histogram(&[], &proxy.upstream_time.snapshot())],
        ),
    ]
}

fn by_protocol(protocols: &[Protocol], metric: impl Fn(&[(&str, &str)], Protocol) -> Metric) -> Vec<Metric> {
    protocols.iter().map(|&protocol| metric(&[("protocol", protocol.name())], protocol)).collect()
}
