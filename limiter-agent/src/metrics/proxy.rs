//! Metric families about clients and the app, independent of the rules.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::proto::MetricFamily;
use weir_client::agent::{counter, counters, gauge, gauges, histogram};

use crate::proxy::{Protocol, Proxy, REASONS};

pub(super) fn families(proxy: &Proxy) -> [MetricFamily; 9] {
    let traffic = &proxy.traffic;
    let spoken = |protocol: Protocol| ([("protocol", protocol.name())], traffic.spoken(protocol));
    [
        gauge("weir_connections", "Client connections open now.", proxy.connections.load(Relaxed)),
        counter("weir_connections_accepted_total", "Client connections so far.", traffic.accepted()),
        counter(
            "weir_connections_evicted_total",
            "Idle client connections closed to admit new ones within --max-connections.",
            proxy.slots.evictions(),
        ),
        gauge("weir_connections_parked", "Idle client connections open now that have no buffer.", traffic.parked()),
        gauges(
            "weir_protocol_connections",
            "Client connections open now, by protocol; connections that have sent nothing are not counted.",
            Protocol::ALL.map(spoken).map(|(labels, spoken)| (labels, spoken.open)),
        ),
        counters(
            "weir_protocol_connections_total",
            "Client connections so far, by protocol; an upgraded connection counts as HTTP/1, too.",
            Protocol::ALL.map(spoken).map(|(labels, spoken)| (labels, spoken.opened)),
        ),
        counters(
            "weir_protocol_requests_total",
            "Requests received, with any result.",
            [Protocol::Http1, Protocol::Http2].map(spoken).map(|(labels, spoken)| (labels, spoken.requests)),
        ),
        counters(
            "weir_upstream_errors_total",
            "Requests that the app did not answer, by reason.",
            REASONS.into_iter().zip(proxy.failures.get()).map(|(reason, n)| ([("reason", reason)], n)),
        ),
        histogram(
            "weir_upstream_seconds",
            "Time from the beginning of a request to the app, with the time of an upload, until its response begins.",
            proxy.upstream_time.values(),
        ),
    ]
}
