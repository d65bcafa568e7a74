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

mod proxy;
mod service;

use prometheus::{core::Collector, process_collector::ProcessCollector, proto::MetricFamily};
use weir_client::{
    Client,
    agent::{counter, text},
};

use crate::{clock, front::Front};

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
            Front::Proxy(proxy) => proxy::families(proxy).to_vec(),
            Front::Service(service) => service::families(service).to_vec(),
        };
        families.extend(self.client.metric_families());
        let whole_seconds = |family: &MetricFamily| family.name() == CPU;
        families.extend(self.process.collect().into_iter().filter(|family| !whole_seconds(family)));
        families.push(counter(CPU, "CPU time that the agent has used.", clock::processor()));
        text(families)
    }
}
