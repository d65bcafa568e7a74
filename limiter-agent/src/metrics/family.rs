//! Families of the text format, built from plain numbers.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// A family; one without metrics is left out of a scrape.
pub(super) fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

pub(super) fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(float(value));
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

pub(super) fn gauge(labels: &[(&str, &str)], value: u64) -> Metric {
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
