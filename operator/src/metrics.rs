//! The operator's own metrics. One metric has a series per policy, for alerts that name policies. No metric has a
//! series per pod, and all other labels have a fixed set of values.
//!
//! | metric | labels | what |
//! |---|---|---|
//! | `weir_operator_build_info` | `version` | 1 |
//! | `weir_operator_leader` | | 1 while this operator leads, 0 while it is a standby |
//! | `weir_operator_leader_transitions_total` | | how often this operator began or stopped leading |
//! | `weir_operator_lease_age_seconds` | | time since any operator was last seen to create or renew the Lease |
//! | `weir_operator_lease_duration_seconds` | | after this time without a renewal, another operator can take the Lease; 0 in standalone mode |
//! | `weir_operator_policies` | `accepted` | policies without faults (`true`) or with faults (`false`); a target that does not exist is no fault, and neither is a snapshot that is too large |
//! | `weir_operator_policy_files` | `state` | standalone mode: files that are `good`, broken with their last good content in force (`kept`), or `broken` |
//! | `weir_operator_lost_namespaces` | | watched namespaces in which the operator may not list all kinds, and that it leaves out |
//! | `weir_operator_pods` | `state` | targeted pods that are `enforcing`, `pending` or `drifted` |
//! | `weir_operator_policy_pods` | `namespace`, `policy`, `state` | the same for the pods of each policy; only the leader exports it |
//! | `weir_operator_pushes_total` | `result` | snapshots sent to agents: `applied`, or the kind of failure |
//! | `weir_operator_push_duration_seconds` | | histogram: from sending a snapshot to its answer |
//! | `weir_operator_propagation_seconds` | | histogram: from a changed policy to the acknowledgement of its last pod |
//! | `weir_operator_contested_agents` | | agents to which another operator also pushes |
//! | `weir_operator_status_writes_total` | `result` | writes of statuses: `ok` or `error` |
//! | `weir_operator_pod_reviews_total` | `outcome` | pods that the injection webhook reviewed |
//! | `weir_operator_identities_total` | `result` | requests of agents for a certificate |
//! | `weir_operator_fleet_questions_total` | `outcome` | scope Fleet: questions of agents that were `counted` or `refused` |
//! | `weir_operator_fleet_keys` | | scope Fleet: keys that are not at full credit |
//! | `weir_operator_fleet_absent_pods` | | scope Fleet: pods whose agents may decide with their share of the limits |
//! | `weir_operator_fleet_collecting` | | scope Fleet: 1 while a new leader collects the levels that agents know, and counts no question |

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::Collector, exponential_buckets, process_collector::ProcessCollector, proto::Counter,
};

use crate::world::ObjectKey;

/// Handles to every metric. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    pushes: IntCounterVec,
    push_duration: Histogram,
    propagation: Histogram,
    policies: IntGaugeVec,
    files: IntGaugeVec,
    lost_namespaces: IntGauge,
    pods: IntGaugeVec,
    policy_pods: IntGaugeVec,
    contested: IntGauge,
    status_writes: IntCounterVec,
    reviews: IntCounterVec,
    identities: IntCounterVec,
    fleet_questions: IntCounterVec,
    fleet_keys: IntGauge,
    fleet_absent_pods: IntGauge,
    fleet_collecting: IntGauge,
    leader: IntGauge,
    leader_transitions: IntCounter,
    lease_age: Gauge,
    lease_duration: Gauge,
    /// The time at which the last write to the Lease was observed, in microseconds since boot; 0 for never.
    lease_seen: Arc<AtomicU64>,
}

/// Counts one agent to which another operator also pushes, until the value is dropped.
#[derive(Debug)]
pub(crate) struct Contest(IntGauge);

impl Drop for Contest {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The results of a push, as labels. All series exist from the start, because Prometheus detects no increase in a
/// series that begins at 1.
pub(crate) const PUSH_RESULTS: [&str; 6] = ["applied", "timeout", "unreachable", "untrusted", "garbage", "refused"];

/// The results of a status write.
const WRITE_RESULTS: [&str; 2] = ["ok", "error"];

/// The outcomes of a review of a pod.
const REVIEW_OUTCOMES: [&str; 6] = ["injected", "untouched", "declined", "unfit", "wrong", "refused"];

/// The results of a request for a certificate.
const IDENTITY_RESULTS: [&str; 6] = ["issued", "malformed", "unauthenticated", "no_pod", "busy", "unavailable"];

/// What the operator did with questions about limits of scope Fleet.
const FLEET_OUTCOMES: [&str; 2] = ["counted", "refused"];

/// The number of pods in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// Pods that enforce all policies that target them.
    pub enforcing: usize,
    /// Pods that have not answered yet, or that will get a change soon.
    pub pending: usize,
    /// Pods that do not enforce all policies that target them.
    pub drifted: usize,
}

/// The number of files in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Valid files.
    pub good: usize,
    /// Broken files whose last good content is in force.
    pub kept: usize,
    /// Broken files without any content in force.
    pub broken: usize,
}

impl PodCounts {
    fn by_state(self) -> [(&'static str, usize); 3] {
        [("enforcing", self.enforcing), ("pending", self.pending), ("drifted", self.drifted)]
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label: &str, known: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), &[label]).expect("the name is well-formed");
            known.iter().for_each(|value| drop(metric.with_label_values(&[value])));
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let gauge = |name: &str, help: &str| {
            let metric = IntGauge::new(name, help).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let counter = |name: &str, help: &str| {
            let metric = IntCounter::new(name, help).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let age = |name: &str, help: &str| {
            let metric = Gauge::new(name, help).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let seconds = |name: &str, help: &str, bounds: usize| {
            let buckets = exponential_buckets(0.001, 2.0, bounds).expect("the bounds are positive");
            let metric =
                Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let build = gauges("weir_operator_build_info", "The version of the operator.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Self {
            pushes: counters(
                "weir_operator_pushes_total", "Snapshots sent to agents, by result.", "result", &PUSH_RESULTS,
            ),
            push_duration: seconds(
                "weir_operator_push_duration_seconds",
                "Time from sending a snapshot to its answer.",
                14, // up to 8 s
            ),
            propagation: seconds(
                "weir_operator_propagation_seconds",
                "Time from the first observation of a changed policy to the acknowledgement of its last pod.",
                20, // up to 9 min: pods start, and unreachable pods come back
            ),
            policies: gauges("weir_operator_policies", "Policies, by whether they are accepted.", &["accepted"]),
            files: gauges(
                "weir_operator_policy_files",
                "Policy files of standalone mode: good, kept (broken, the last good content stays in force) or broken.",
                &["state"],
            ),
            lost_namespaces: gauge(
                "weir_operator_lost_namespaces",
                "Watched namespaces in which the operator may not list all kinds, and that it leaves out.",
            ),
            pods: gauges("weir_operator_pods", "Targeted pods, by state.", &["state"]),
            policy_pods: gauges(
                "weir_operator_policy_pods",
                "Pods that a policy targets, by state. Only the leader exports this metric.",
                &["namespace", "policy", "state"],
            ),
            contested: gauge(
                "weir_operator_contested_agents",
                "Agents to which another operator also pushes: each overwrites the other's snapshots.",
            ),
            status_writes: counters(
                "weir_operator_status_writes_total", "Status writes, by result.", "result", &WRITE_RESULTS,
            ),
            reviews: counters(
                "weir_operator_pod_reviews_total",
                "Pods that the injection webhook reviewed, by result.",
                "outcome",
                &REVIEW_OUTCOMES,
            ),
            identities: counters(
                "weir_operator_identities_total",
                "Agents that asked for a certificate, by result.",
                "result",
                &IDENTITY_RESULTS,
            ),
            fleet_questions: counters(
                "weir_operator_fleet_questions_total",
                "Questions of agents about limits of scope Fleet, by result: counted or refused.",
                "outcome",
                &FLEET_OUTCOMES,
            ),
            fleet_keys: gauge("weir_operator_fleet_keys", "Keys of limits of scope Fleet that are not at full credit."),
            fleet_absent_pods: gauge(
                "weir_operator_fleet_absent_pods",
                "Pods with limits of scope Fleet whose agents may decide with their share of the limits.",
            ),
            fleet_collecting: gauge(
                "weir_operator_fleet_collecting",
                "1 while a new leader collects the levels that agents know, and counts no question; otherwise 0.",
            ),
            leader: gauge("weir_operator_leader", "1 while this operator leads, 0 while it is a standby."),
            leader_transitions: counter(
                "weir_operator_leader_transitions_total",
                "How often this operator began or stopped leading.",
            ),
            lease_age: age(
                "weir_operator_lease_age_seconds",
                "Time since the last observed creation or renewal of the lease by any operator.",
            ),
            lease_duration: age(
                "weir_operator_lease_duration_seconds",
                "Duration of the lease without a renewal: then another operator can take it. 0 in standalone mode.",
            ),
            lease_seen: Arc::default(),
            registry,
        }
    }
}

impl Metrics {
    /// Records the end of a push.
    pub fn pushed(&self, result: &str, took: Duration) {
        self.pushes.with_label_values(&[result]).inc();
        self.push_duration.observe(took.as_secs_f64());
    }

    /// Records that the last pod of a changed policy acknowledged it.
    pub fn propagated(&self, took: Duration) {
        self.propagation.observe(took.as_secs_f64());
    }

    /// Counts an agent to which another operator also pushes, until the value is dropped.
    pub(crate) fn contest(&self) -> Contest {
        self.contested.inc();
        Contest(self.contested.clone())
    }

    /// Records the result of a status write.
    pub fn status_written(&self, ok: bool) {
        self.status_writes.with_label_values(&[WRITE_RESULTS[usize::from(!ok)]]).inc();
    }

    /// Counts questions about limits of scope Fleet.
    pub(crate) fn asked(&self, counted: usize, refused: usize) {
        for (outcome, count) in FLEET_OUTCOMES.into_iter().zip([counted, refused]) {
            self.fleet_questions.with_label_values(&[outcome]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// Sets the state of the counter of scope Fleet.
    pub(crate) fn set_fleet(&self, keys: usize, absent_pods: usize, collecting: bool) {
        self.fleet_keys.set(gauge(keys));
        self.fleet_absent_pods.set(gauge(absent_pods));
        self.fleet_collecting.set(collecting.into());
    }

    /// Counts a request for a certificate.
    pub(crate) fn identified(&self, result: &str) {
        debug_assert!(IDENTITY_RESULTS.contains(&result), "{result} does not begin at 0");
        self.identities.with_label_values(&[result]).inc();
    }

    /// Records an answer of the injection webhook.
    pub fn reviewed(&self, outcome: &str) {
        debug_assert!(REVIEW_OUTCOMES.contains(&outcome), "{outcome} does not begin at 0");
        self.reviews.with_label_values(&[outcome]).inc();
    }

    /// Sets the number of accepted and refused policies.
    pub fn set_policies(&self, accepted: usize, refused: usize) {
        self.policies.with_label_values(&["true"]).set(gauge(accepted));
        self.policies.with_label_values(&["false"]).set(gauge(refused));
    }

    /// Sets the state of the policy files.
    pub fn set_files(&self, counts: FileCounts) {
        for (state, count) in [("good", counts.good), ("kept", counts.kept), ("broken", counts.broken)] {
            self.files.with_label_values(&[state]).set(gauge(count));
        }
    }

    /// Sets the number of watched namespaces that the operator cannot list.
    pub fn set_lost_namespaces(&self, count: usize) {
        self.lost_namespaces.set(gauge(count));
    }

    /// Sets the state of the targeted pods.
    pub fn set_pods(&self, counts: PodCounts) {
        for (state, count) in counts.by_state() {
            self.pods.with_label_values(&[state]).set(gauge(count));
        }
    }

    /// Sets the state of one policy's pods.
    pub fn set_policy_pods(&self, policy: &ObjectKey, counts: PodCounts) {
        let ObjectKey { namespace, name } = policy;
        for (state, count) in counts.by_state() {
            self.policy_pods.with_label_values(&[namespace, name, state]).set(gauge(count));
        }
    }

    /// Removes a deleted policy.
    pub fn forget_policy(&self, policy: &ObjectKey) {
        let ObjectKey { namespace, name } = policy;
        for (state, _) in PodCounts::default().by_state() {
            // The removal fails only if no series exists for this policy.
            let _ = self.policy_pods.remove_label_values(&[namespace, name, state]);
        }
    }

    /// Removes the counts of policies and pods, because another operator leads.
    pub fn forget_counts(&self) {
        self.policies.reset();
        self.policy_pods.reset();
        self.set_pods(PodCounts::default());
    }

    /// Records whether this operator leads.
    pub fn set_leader(&self, leads: bool) {
        if self.leader.get() != i64::from(leads) {
            self.leader_transitions.inc();
        }
        self.leader.set(i64::from(leads));
    }

    /// Sets the time for which the Lease is valid without a renewal.
    pub fn set_lease_duration(&self, duration: Duration) {
        self.lease_duration.set(duration.as_secs_f64());
    }

    /// Records the time at which a creation or renewal of the Lease was observed, as time since boot.
    pub fn lease_seen(&self, since_boot: Duration) {
        let micros = u64::try_from(since_boot.as_micros()).unwrap_or(u64::MAX);
        self.lease_seen.store(micros, Ordering::Relaxed);
    }

    /// Returns all metrics in the Prometheus text format.
    pub fn render(&self, since_boot: Duration) -> String {
        let seen = Duration::from_micros(self.lease_seen.load(Ordering::Relaxed));
        if !seen.is_zero() {
            self.lease_age.set(since_boot.saturating_sub(seen).as_secs_f64());
        }
        TextEncoder::new().encode_to_string(&self.registry.gather()).expect("the text encoder writes to a string")
    }
}

/// Returns the metrics of this process that Prometheus recommends, as text. `processor` is the CPU time that it has used,
/// because the library knows only whole seconds.
pub(crate) fn process(processor: Duration) -> String {
    let mut families = ProcessCollector::for_self().collect();
    for family in families.iter_mut().filter(|family| family.name() == "process_cpu_seconds_total") {
        let mut used = Counter::default();
        used.set_value(processor.as_secs_f64());
        family.mut_metric().iter_mut().for_each(|metric| metric.set_counter(used.clone()));
    }
    TextEncoder::new().encode_to_string(&families).expect("the text encoder writes to a string")
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_series_exists_from_the_start() {
        let (metrics, at) = (Metrics::default(), Duration::ZERO);
        let text = metrics.render(at);
        for (name, label, values) in [
            ("pushes", "result", &PUSH_RESULTS[..]),
            ("status_writes", "result", &WRITE_RESULTS),
            ("pod_reviews", "outcome", &REVIEW_OUTCOMES),
            ("identities", "result", &IDENTITY_RESULTS),
            ("fleet_questions", "outcome", &FLEET_OUTCOMES),
        ] {
            for value in values {
                let line = format!("weir_operator_{name}_total{{{label}=\"{value}\"}} 0\n");
                assert!(text.contains(&line), "no {line} in\n{text}");
            }
        }
        metrics.status_written(true);
        metrics.status_written(false);
        metrics.status_written(false);
        let text = metrics.render(at);
        assert!(text.contains("weir_operator_lease_duration_seconds 0\n"), "a test has no lease: {text}");
        assert!(text.contains("{result=\"ok\"} 1\n") && text.contains("{result=\"error\"} 2\n"), "{text}");
    }

    /// The table at the top of this file is also a page of the manual.
    #[test]
    fn the_docs_name_every_family_and_no_other() {
        let metrics = Metrics::default();
        let policy = ObjectKey { namespace: "shop".into(), name: "p".into() };
        metrics.set_policies(1, 0);
        metrics.set_files(FileCounts::default());
        metrics.set_pods(PodCounts::default());
        metrics.set_policy_pods(&policy, PodCounts::default());
        let text = metrics.render(Duration::ZERO);
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let shown: BTreeSet<_> = families.map(|(name, _)| name).collect();
        let rows = include_str!("metrics.rs").lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'));
        assert_eq!(shown, rows.map(|(name, _)| name).collect());
    }

    #[test]
    fn a_propagation_of_minutes_is_within_a_bucket() {
        let metrics = Metrics::default();
        metrics.propagated(Duration::from_secs(300));
        let text = metrics.render(Duration::ZERO);
        assert!(text.contains("weir_operator_propagation_seconds_bucket{le=\"524.288\"} 1\n"), "{text}");
    }

    #[test]
    fn a_new_leader_elsewhere_counts_the_policies() {
        let metrics = Metrics::default();
        metrics.set_policies(1, 1);
        metrics.forget_counts();
        assert!(
            !metrics.render(Duration::ZERO).contains("weir_operator_policies"),
            "the old leader counts no policies"
        );
    }

    #[test]
    fn the_cpu_time_of_the_process_has_fractions() {
        let text = process(Duration::from_millis(1250));
        assert!(text.contains("process_cpu_seconds_total 1.25\n"), "{text}");
        assert!(text.contains("process_resident_memory_bytes ") && text.contains("process_open_fds "), "{text}");
    }
}
