//! Metric families about clients and the app, independent of the rules.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::{Metric, MetricFamily, MetricType};
use weir_client::agent::{counter, family, gauge, histogram};

use crate::proxy::{Protocol, Proxy, REASONS};

pub(super) fn families(proxy: &Proxy) -> [MetricFamily; 9] {
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
            "Idle client connections closed to admit new ones within --max-connections.",
            MetricType::COUNTER,
            vec![counter(&[], proxy.slots.evictions())],
        ),
        family(
            "weir_connections_parked",
            "Idle client connections open now that have no buffer.",
            MetricType::GAUGE,
            vec![gauge(&[], traffic.parked())],
        ),
        family(
            "weir_protocol_connections",
            "Client connections open now, by protocol; connections that have sent nothing are not counted.",
            MetricType::GAUGE,
            by_protocol(&Protocol::ALL, |labels, protocol| gauge(labels, traffic.spoken(protocol).open)),
        ),
        family(
            "weir_protocol_connections_total",
            "Client connections so far, by protocol; an upgraded connection counts as HTTP/1, too.",
            MetricType::COUNTER,
            by_protocol(&Protocol::ALL, |labels, protocol| counter(labels, traffic.spoken(protocol).opened)),
        ),
        family(
            "weir_protocol_requests_total",
            "Requests received, with any result.",
            MetricType::COUNTER,
            by_protocol(&[Protocol::Http1, Protocol::Http2], |labels, protocol| {
                counter(labels, traffic.spoken(protocol).requests)
            }),
        ),
        family(
            "weir_upstream_errors_total",
            "Requests that the app did not answer, by reason.",
            MetricType::COUNTER,
            REASONS.iter().zip(proxy.failures.get()).map(|(reason, n)| counter(&[("reason", reason)], n)).collect(),
        ),
        family(
            "weir_upstream_seconds",
            "Time from sending a request to the app until its response begins.",
            MetricType::HISTOGRAM,
            vec![histogram(&[], &proxy.upstream_time.snapshot())],
        ),
    ]
}

fn by_protocol(protocols: &[Protocol], metric: impl Fn(&[(&str, &str)], Protocol) -> Metric) -> Vec<Metric> {
    protocols.iter().map(|&protocol| metric(&[("protocol", protocol.name())], protocol)).collect()
}
