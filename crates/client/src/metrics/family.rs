//! Builds metric families of the text format from plain numbers.

use std::time::Duration;

use prometheus::proto::{self, Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use weir_enforce::histogram::{BOUNDS, Snapshot};

/// A metric family. A scrape omits families without metrics.
pub fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// A counter.
pub fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(float(value));
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

/// A counter of seconds.
pub fn elapsed(labels: &[(&str, &str)], time: Duration) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(time.as_secs_f64());
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

/// A gauge.
pub fn gauge(labels: &[(&str, &str)], value: u64) -> Metric {
    gauge_of(labels, float(value))
}

/// A gauge of the ratio of two numbers. The second must not be zero.
pub(super) fn ratio(labels: &[(&str, &str)], (part, whole): (u64, u64)) -> Metric {
    gauge_of(labels, float(part) / float(whole))
}

/// A gauge of seconds.
pub(super) fn seconds(labels: &[(&str, &str)], value: Duration) -> Metric {
    gauge_of(labels, value.as_secs_f64())
}

fn gauge_of(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_gauge(gauge);
    metric
}

/// A histogram.
pub fn histogram(labels: &[(&str, &str)], snapshot: &Snapshot) -> Metric {
    let mut cumulative = 0;
    let mut buckets = Vec::new();
    for (bound, count) in BOUNDS.iter().zip(snapshot.buckets) {
        cumulative += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(cumulative);
        buckets.push(bucket);
    }
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets);
    histogram.set_sample_count(snapshot.buckets.iter().sum());
    histogram.set_sample_sum(snapshot.sum.as_secs_f64());
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_histogram(histogram);
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

/// Prometheus values are floats, which are exact up to 2^53. A sequence, in microseconds of Unix time, reaches this
/// value in the year 2255.
#[expect(clippy::cast_precision_loss, reason = "values below 2^53 are exact")]
fn float(value: u64) -> f64 {
    value as f64
}
