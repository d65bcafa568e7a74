//! The metrics for Prometheus.
//!
//! This module counts nothing. A scrape reads the counters that the proxy, the rate limit service and the rules in force
//! keep for other purposes. The metrics of rules, stores, snapshots and the control port come from `weir-client`
//! (`crates/client/src/metrics.rs`), which lists them. This module adds the metrics of the port for clients:
//!
//! | metric | labels | what |
//! |---|---|---|
//! | `weir_connections` | | client connections open now |
//! | `weir_connections_accepted_total` | | client connections since the start |
//! | `weir_connections_evicted_total` | | client connections closed to admit others within `--max-connections`, or to free memory |
//! | `weir_connections_parked` | | open client connections that are idle and have no buffer |
//! | `weir_service_questions_total` | `result` | with `weir-agent rls`: questions of proxies, by their answer |
//! | `weir_quota_streams` | | with `weir-agent rls`: data planes with an open quota stream |
//! | `weir_quota_buckets` | | quota buckets of all data planes |
//! | `weir_quota_buckets_refused_total` | | reports about buckets beyond the maximum of a data plane |
//! | `weir_quota_assignments_total` | `kind` | assignments to data planes |
//! | `weir_quota_tokens_total` | | units that were charged in advance and assigned to data planes |
//! | `weir_quota_requests_total` | `decision` | requests that data planes reported |
//! | `weir_protocol_connections` | `protocol` | open client connections that have sent at least one byte |
//! | `weir_protocol_connections_total` | `protocol` | all such connections; an upgraded one also counts as `http1` |
//! | `weir_protocol_requests_total` | `protocol` | requests received, with any result |
//! | `weir_upstream_seconds` | | histogram: from the beginning of a request to the app, with the time of an upload, until the response begins |
//! | `weir_upstream_errors_total` | `reason` | requests that the app did not answer: it `refused` a connection, `connect_timeout`, `handshake`, `closed`, `protocol`, `response_timeout`, the agent had no file `descriptors` for a connection, or the app left too many uploads `unread` |
//!
//! The `process_*` metrics that Prometheus recommends are included, with CPU time in fractions of a second. With whole
//! seconds, rates would be zero or far too high for minutes.

use std::sync::atomic::Ordering::Relaxed;

use prometheus::{core::Collector, process_collector::ProcessCollector, proto::MetricFamily};
use weir_client::{
    Client,
    agent::{counter, counters, gauge, gauges, histogram, text},
};

use crate::{
    clock,
    front::Front,
    proxy::{Protocol, Proxy, REASONS},
    service::{ASSIGNMENTS, RESULTS, RateLimitService},
};

const CPU: &str = "process_cpu_seconds_total";

/// The sources that a scrape reads.
#[derive(Debug)]
pub(crate) struct Metrics {
    front: Front,
    client: Client,
    process: ProcessCollector,
}

impl Metrics {
    pub(crate) fn new(front: Front, client: Client) -> Self {
        Self { front, client, process: ProcessCollector::for_self() }
    }

    /// All metrics in the text format.
    pub(crate) fn render(&self) -> Result<String, prometheus::Error> {
        let mut families = match &self.front {
            Front::Proxy(proxy) => of_proxy(proxy).to_vec(),
            Front::Service(service) => of_service(service).to_vec(),
        };
        families.extend(self.client.metric_families());
        let whole_seconds = |family: &MetricFamily| family.name() == CPU;
        families.extend(self.process.collect().into_iter().filter(|family| !whole_seconds(family)));
        families.push(counter(CPU, "CPU time that the agent has used.", clock::processor()));
        text(families)
    }
}

/// Metric families about clients and the app, independent of the rules.
fn of_proxy(proxy: &Proxy) -> [MetricFamily; 9] {
    let traffic = &proxy.traffic;
    let counts = |protocol: Protocol| ([("protocol", protocol.name())], traffic.counts(protocol));
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
            Protocol::ALL.map(counts).map(|(labels, counts)| (labels, counts.open)),
        ),
        counters(
            "weir_protocol_connections_total",
            "Client connections so far, by protocol; an upgraded connection counts as HTTP/1, too.",
            Protocol::ALL.map(counts).map(|(labels, counts)| (labels, counts.opened)),
        ),
        counters(
            "weir_protocol_requests_total",
            "Requests received, with any result.",
            [Protocol::Http1, Protocol::Http2].map(counts).map(|(labels, counts)| (labels, counts.requests)),
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

/// Metric families of the rate limit service, independent of the rules.
fn of_service(service: &RateLimitService) -> [MetricFamily; 10] {
    let quotas = &service.quotas;
    let (streams, buckets) = quotas.size();
    let assignments = ASSIGNMENTS.into_iter().zip(quotas.assignments());
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
            quotas.refused_buckets.load(Relaxed),
        ),
        counters(
            "weir_quota_assignments_total",
            "Assignments to data planes, by their kind: tokens, allow_all, deny_all, or abandon.",
            assignments.map(|(kind, count)| ([("kind", kind)], count)),
        ),
        counter(
            "weir_quota_tokens_total",
            "Units that were charged to limits in advance and assigned to data planes.",
            quotas.tokens.load(Relaxed),
        ),
        counters(
            "weir_quota_requests_total",
            "Requests that data planes reported, by their decision: allowed or denied.",
            [("allowed", &quotas.allowed), ("denied", &quotas.denied)]
                .map(|(decision, count)| ([("decision", decision)], count.load(Relaxed))),
        ),
    ]
}
