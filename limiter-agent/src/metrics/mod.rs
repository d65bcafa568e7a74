//! What Prometheus sees. The only module that knows the prometheus crate.
//!
//! Nothing is counted here: a scrape reads the counters that the proxy and the rules in force keep anyway, so that they
//! cannot disagree with the status, no request pays for a label, and the series of a rule go when the rule does. Labels
//! come from closed sets, never from a request.

mod family;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use prometheus::{
    TEXT_FORMAT, TextEncoder,
    core::Collector,
    process_collector::ProcessCollector,
    proto::{Metric, MetricFamily, MetricType},
};

use self::family::{counter, family, gauge, histogram};

use crate::{
    apply::{OUTCOMES, Snapshots, unix_millis},
    control::{HANDSHAKES, RELOADS, Tls},
    proxy::{Proxy, REASONS},
    rules::{Policy, Rule},
};

/// What a scrape reads.
#[derive(Debug)]
pub(crate) struct Metrics {
    proxy: Arc<Proxy>,
    snapshots: Arc<Snapshots>,
    /// None: the control port is plain HTTP.
    tls: Option<Arc<Tls>>,
    process: ProcessCollector,
}

impl Metrics {
    pub(crate) fn new(proxy: Arc<Proxy>, snapshots: Arc<Snapshots>, tls: Option<Arc<Tls>>) -> Self {
        Self { proxy, snapshots, tls, process: ProcessCollector::for_self() }
    }

    /// Of what [`Metrics::render`] returns.
    pub(crate) const CONTENT_TYPE: &str = TEXT_FORMAT;

    /// All metrics in the text format.
    pub(crate) fn render(&self) -> Result<String, prometheus::Error> {
        let rules = self.proxy.rules.load();
        let each =
            || rules.policies().iter().flat_map(|policy| policy.rules.iter().map(move |rule| (&**policy, &**rule)));
        let keyed = || each().filter_map(|(policy, rule)| Some((policy, rule, rule.keys()?)));
        let (sequence, revision) = match rules.snapshot() {
            Some((snapshot, since)) => {
                (snapshot.sequence, Some((snapshot.revision.as_str(), unix_millis(since) / 1000)))
            }
            None => (0, None),
        };
        let (revision, since) = revision.unzip();
        let mut families = vec![
            family(
                "weir_requests_total",
                "Requests that matched a rule, by what it decided.",
                MetricType::COUNTER,
                each().flat_map(|(policy, rule)| decisions(policy, rule)).collect(),
            ),
            family(
                "weir_upstream_errors_total",
                "Requests that the app did not answer, by reason.",
                MetricType::COUNTER,
                REASONS
                    .iter()
                    .zip(self.proxy.failures.get())
                    .map(|(reason, n)| counter(&[("reason", reason)], n))
                    .collect(),
            ),
            family(
                "weir_upstream_seconds",
                "From sending a request to the app until its response begins.",
                MetricType::HISTOGRAM,
                vec![histogram(&[], &self.proxy.upstream_time.snapshot())],
            ),
            family(
                "weir_wait_seconds",
                "How long requests waited for their turn that had to and got it; in shadow mode, would have waited.",
                MetricType::HISTOGRAM,
                each()
                    .filter(|(_, rule)| rule.is_patient())
                    .map(|(policy, rule)| histogram(&named(policy, rule), &rule.waits()))
                    .collect(),
            ),
            family(
                "weir_connections",
                "Client connections open now.",
                MetricType::GAUGE,
                vec![gauge(&[], self.proxy.connections.load(Relaxed))],
            ),
            family(
                "weir_snapshot_sequence",
                "Sequence of the snapshot in force; 0 before the first.",
                MetricType::GAUGE,
                vec![gauge(&[], sequence)],
            ),
            family(
                "weir_snapshot_info",
                "The revision in force, and whether it was pushed, or is from the bootstrap snapshot or the cache.",
                MetricType::GAUGE,
                revision
                    .zip(self.snapshots.origin())
                    .map(|(revision, origin)| gauge(&[("revision", revision), ("origin", origin.name())], 1))
                    .into_iter()
                    .collect(),
            ),
            family(
                "weir_snapshot_in_force_since_timestamp_seconds",
                "Unix time at which the revision in force came into force.",
                MetricType::GAUGE,
                since.map(|since| gauge(&[], since)).into_iter().collect(),
            ),
            family(
                "weir_snapshots_total",
                "Snapshots put to the control port, by result.",
                MetricType::COUNTER,
                OUTCOMES
                    .iter()
                    .zip(self.snapshots.outcomes())
                    .map(|(result, n)| counter(&[("result", result)], n))
                    .collect(),
            ),
            family(
                "weir_key_table_keys",
                "Keys that a rule tracks now.",
                MetricType::GAUGE,
                keyed().map(|(policy, rule, keys)| gauge(&named(policy, rule), keys.tracked)).collect(),
            ),
            family(
                "weir_key_table_capacity",
                "Keys that a rule tracks at most.",
                MetricType::GAUGE,
                keyed().map(|(policy, rule, keys)| gauge(&named(policy, rule), keys.capacity)).collect(),
            ),
            family(
                "weir_key_evictions_total",
                "Idle keys that a rule has given up to make room for others.",
                MetricType::COUNTER,
                keyed().map(|(policy, rule, keys)| counter(&named(policy, rule), keys.evicted)).collect(),
            ),
            family(
                "weir_key_overflow_total",
                "Requests counted against the shared overflow of a rule, because its table of keys was full.",
                MetricType::COUNTER,
                keyed().map(|(policy, rule, keys)| counter(&named(policy, rule), keys.overflowed)).collect(),
            ),
            family(
                "weir_build_info",
                "The agent's version.",
                MetricType::GAUGE,
                vec![gauge(&[("version", env!("CARGO_PKG_VERSION"))], 1)],
            ),
        ];
        families.extend(self.tls.iter().flat_map(|tls| control_tls(tls)));
        families.extend(self.process.collect());
        // The encoder refuses a family without metrics.
        let families: Vec<_> = families.into_iter().filter(|family| !family.get_metric().is_empty()).collect();
        TextEncoder::new().encode_to_string(&families)
    }
}

fn control_tls(tls: &Tls) -> [MetricFamily; 3] {
    let counters = |names: &[&str], label, counts: &[u64]| {
        names.iter().zip(counts).map(|(name, n)| counter(&[(label, name)], *n)).collect()
    };
    [
        family(
            "weir_control_certificate_expiry_timestamp_seconds",
            "Unix time at which the control port's certificate expires.",
            MetricType::GAUGE,
            vec![gauge(&[], tls.not_after())],
        ),
        family(
            "weir_control_certificate_reloads_total",
            "Changes of the control port's certificate files, by result; a rejected one left the old ones in use.",
            MetricType::COUNTER,
            counters(&RELOADS, "result", &tls.reloads()),
        ),
        family(
            "weir_control_handshakes_total",
            "TLS handshakes on the control port, by result.",
            MetricType::COUNTER,
            counters(&HANDSHAKES, "result", &tls.handshakes()),
        ),
    ]
}

fn named<'a>(policy: &'a Policy, rule: &'a Rule) -> [(&'static str, &'a str); 3] {
    [("namespace", &policy.namespace), ("policy", &policy.name), ("rule", &rule.name)]
}

fn decisions(policy: &Policy, rule: &Rule) -> Vec<Metric> {
    let counts = rule.counts();
    let decided = [
        ("allowed", counts.allowed),
        ("limited", counts.limited),
        ("shadow_limited", counts.shadow_limited),
        ("bypassed", counts.bypassed),
    ];
    let [namespace, policy_name, rule_name] = named(policy, rule);
    decided
        .into_iter()
        // A rule that was the other kind of rule before keeps what it counted then.
        .filter(|&(decision, count)| (decision == "bypassed") == rule.is_bypass() || count > 0)
        .map(|(decision, count)| counter(&[namespace, policy_name, rule_name, ("decision", decision)], count))
        .collect()
}
