//! Builds metric families of the text format from plain numbers. A scrape omits families without metrics.

use std::time::Duration;

use prometheus::proto::{self, Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use weir_enforce::histogram::{BOUNDS, HistogramValues};

/// The labels of a family with one metric.
pub(super) const NO_LABELS: [(&str, &str); 0] = [];

/// The value of a counter or a gauge.
pub trait Number {
    /// The value as Prometheus stores it.
    fn float(self) -> f64;
}

impl Number for u64 {
    /// A float is exact up to 2^53. A sequence, in microseconds of Unix time, reaches this value in the year 2255.
    #[expect(clippy::cast_precision_loss, reason = "values below 2^53 are exact")]
    fn float(self) -> f64 {
        self as f64
    }
}

impl Number for Duration {
    /// In seconds.
    fn float(self) -> f64 {
        self.as_secs_f64()
    }
}

/// A part, and the whole, which must not be zero.
impl Number for (u64, u64) {
    fn float(self) -> f64 {
        self.0.float() / self.1.float()
    }
}

/// A counter without labels.
pub fn counter(name: &str, help: &str, value: impl Number) -> MetricFamily {
    counters(name, help, [(NO_LABELS, value)])
}

/// Counters, by their labels.
pub fn counters<'a, L, V>(name: &str, help: &str, values: impl IntoIterator<Item = (L, V)>) -> MetricFamily
where
    L: AsRef<[(&'a str, &'a str)]>,
    V: Number,
{
    family(name, help, MetricType::COUNTER, values, |metric, value| {
        let mut counter = Counter::default();
        counter.set_value(value.float());
        metric.set_counter(counter);
    })
}

/// A gauge without labels.
pub fn gauge(name: &str, help: &str, value: impl Number) -> MetricFamily {
    gauges(name, help, [(NO_LABELS, value)])
}

/// Gauges, by their labels.
pub fn gauges<'a, L, V>(name: &str, help: &str, values: impl IntoIterator<Item = (L, V)>) -> MetricFamily
where
    L: AsRef<[(&'a str, &'a str)]>,
    V: Number,
{
    family(name, help, MetricType::GAUGE, values, |metric, value| {
        let mut gauge = Gauge::default();
        gauge.set_value(value.float());
        metric.set_gauge(gauge);
    })
}

/// A histogram without labels.
pub fn histogram(name: &str, help: &str, value: HistogramValues) -> MetricFamily {
    histograms(name, help, [(NO_LABELS, value)])
}

/// Histograms, by their labels.
pub(super) fn histograms<'a, L>(
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (L, HistogramValues)>,
) -> MetricFamily
where
    L: AsRef<[(&'a str, &'a str)]>,
{
    family(name, help, MetricType::HISTOGRAM, values, |metric, value| {
        let mut cumulative = 0;
        let mut buckets = Vec::new();
        for (bound, count) in BOUNDS.iter().zip(value.buckets) {
            cumulative += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound.as_secs_f64());
            bucket.set_cumulative_count(cumulative);
            buckets.push(bucket);
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(value.buckets.iter().sum());
        histogram.set_sample_sum(value.sum.as_secs_f64());
        metric.set_histogram(histogram);
    })
}

fn family<'a, L, V>(
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl IntoIterator<Item = (L, V)>,
    set: impl Fn(&mut Metric, V),
) -> MetricFamily
where
    L: AsRef<[(&'a str, &'a str)]>,
{
    let metrics = values.into_iter().map(|(labels, value)| {
        let mut metric = Metric::from_label(pairs(labels.as_ref()));
        set(&mut metric, value);
        metric
    });
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics.collect());
    family
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
