//! The operator's own metrics. Labels come from closed sets; nothing here is proportional to pods or policies.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder, exponential_buckets,
};

/// Handles to every metric. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    pushes: IntCounterVec,
    push_duration: Histogram,
    propagation: Histogram,
    policies: IntGaugeVec,
    pods: IntGaugeVec,
    status_writes: IntCounterVec,
    reviews: IntCounterVec,
}

/// How many pods are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// Enforce everything that targets them.
    pub enforcing: usize,
    /// Have not answered yet, or are about to get a change.
    pub pending: usize,
    /// Do not enforce what they should.
    pub drifted: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label: &str| {
            let metric = IntCounterVec::new(Opts::new(name, help), &[label]).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let gauges = |name: &str, help: &str, label: &str| {
            let metric = IntGaugeVec::new(Opts::new(name, help), &[label]).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        let seconds = |name: &str, help: &str| {
            let buckets = exponential_buckets(0.001, 2.0, 14).expect("the bounds are positive");
            let metric =
                Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)).expect("the name is well-formed");
            registry.register(Box::new(metric.clone())).expect("each name is registered once");
            metric
        };
        Self {
            pushes: counters("weir_operator_pushes_total", "Snapshots sent to agents, by result.", "result"),
            push_duration: seconds(
                "weir_operator_push_duration_seconds",
                "Time from sending a snapshot to its answer.",
            ),
            propagation: seconds(
                "weir_operator_propagation_seconds",
                "Time from seeing a changed policy to the acknowledgement of its last pod.",
            ),
            policies: gauges("weir_operator_policies", "Policies, by whether they are accepted.", "accepted"),
            pods: gauges("weir_operator_pods", "Targeted pods, by state.", "state"),
            status_writes: counters("weir_operator_status_writes_total", "Status writes, by result.", "result"),
            reviews: counters(
                "weir_operator_pod_reviews_total",
                "Pods that the injection webhook was asked about, by what became of them.",
                "outcome",
            ),
            registry,
        }
    }
}

impl Metrics {
    /// A push ended.
    pub fn pushed(&self, result: &str, took: Duration) {
        self.pushes.with_label_values(&[result]).inc();
        self.push_duration.observe(took.as_secs_f64());
    }

    /// The last pod of a changed policy acknowledged it.
    pub fn propagated(&self, took: Duration) {
        self.propagation.observe(took.as_secs_f64());
    }

    /// A status was written, or could not be.
    pub fn status_written(&self, ok: bool) {
        self.status_writes.with_label_values(&[if ok { "ok" } else { "error" }]).inc();
    }

    /// The injection webhook answered for a pod.
    pub fn reviewed(&self, outcome: &str) {
        self.reviews.with_label_values(&[outcome]).inc();
    }

    /// How many policies are accepted and how many are not.
    pub fn set_policies(&self, accepted: usize, refused: usize) {
        self.policies.with_label_values(&["true"]).set(gauge(accepted));
        self.policies.with_label_values(&["false"]).set(gauge(refused));
    }

    /// How the targeted pods are.
    pub fn set_pods(&self, counts: PodCounts) {
        self.pods.with_label_values(&["enforcing"]).set(gauge(counts.enforcing));
        self.pods.with_label_values(&["pending"]).set(gauge(counts.pending));
        self.pods.with_label_values(&["drifted"]).set(gauge(counts.drifted));
    }

    /// Everything in the Prometheus text format.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).expect("the text encoder writes to a string")
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
