//! What Prometheus sees. The only module that knows the prometheus crate.
//!
//! Nothing is counted here: a scrape reads the counters that the proxy and the rules in force keep anyway, so that they
//! cannot disagree with the status, no request pays for a label, and the series of a rule go when the rule does. Labels
//! come from closed sets, never from a request.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use prometheus::{
    TEXT_FORMAT, TextEncoder,
    proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType},
};

use crate::{
    apply::{OUTCOMES, Snapshots},
    proxy::{Proxy, REASONS},
    rules::{Policy, Rule},
};

/// What a scrape reads.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) snapshots: Arc<Snapshots>,
}

impl Metrics {
    /// Of what [`Metrics::render`] returns.
    pub(crate) const CONTENT_TYPE: &str = TEXT_FORMAT;

    /// All metrics in the text format.
    pub(crate) fn render(&self) -> Result<String, prometheus::Error> {
        let rules = self.proxy.rules.load();
        let each =
            || rules.policies().iter().flat_map(|policy| policy.rules.iter().map(move |rule| (&**policy, &**rule)));
        let keyed = || each().filter_map(|(policy, rule)| Some((policy, rule, rule.keys()?)));
        let (sequence, revision) = match rules.snapshot() {
            Some((snapshot, _)) => (snapshot.sequence, Some(snapshot.revision.as_str())),
            None => (0, None),
        };
        let families = [
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
                "The revision in force.",
                MetricType::GAUGE,
                revision.map(|revision| gauge(&[("revision", revision)], 1)).into_iter().collect(),
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
        // The encoder refuses a family without metrics.
        let families: Vec<_> = families.into_iter().filter(|family| !family.get_metric().is_empty()).collect();
        TextEncoder::new().encode_to_string(&families)
    }
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

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(float(value));
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

fn gauge(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(float(value));
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_gauge(gauge);
    metric
}

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    labels
        .iter()
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        })
        .collect()
}

/// Prometheus counts in floats: exact up to 2^53, which a sequence in microseconds of Unix time reaches in the year 2255.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn float(value: u64) -> f64 {
    value as f64
}
