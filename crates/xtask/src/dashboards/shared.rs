//! Panels that several boards contain. Each panel uses the labels of its board.

use super::grafana::{Colour, Kind, Panel, Query, Unit};

/// The panel of the decisions on requests.
pub(super) fn decisions(description: &'static str) -> Panel {
    let queries = [
        Query::new(
            r#"clamp_min(sum(rate(weir_requests_total{LABELS,decision="allowed"}[$__rate_interval])) - (sum(rate(weir_wait_seconds_count{LABELS}[$__rate_interval])) or vector(0)), 0)"#,
            "allowed",
        ),
        Query::new("sum(rate(weir_wait_seconds_count{LABELS}[$__rate_interval]))", "waiting"),
        Query::new(r#"sum(rate(weir_requests_total{LABELS,decision="limited"}[$__rate_interval]))"#, "limited"),
        Query::new(r#"sum(rate(weir_requests_total{LABELS,decision="shadow_limited"}[$__rate_interval]))"#, "shadow"),
        Query::new(r#"sum(rate(weir_requests_total{LABELS,decision="bypassed"}[$__rate_interval]))"#, "bypassed"),
    ];
    Panel::new(Kind::Stacked, "Decisions", Unit::RequestsPerSecond).about(description).queries(queries)
}

/// The panel of the current share of refusals.
pub(super) fn limited() -> Panel {
    Panel::new(Kind::Stat, "Limited", Unit::Share)
        .about("The share of refusals in all decisions; a request that matches several rules counts once for each.")
        .queries([Query::new(
            r#"sum(rate(weir_requests_total{LABELS,decision="limited"}[$__rate_interval])) / sum(rate(weir_requests_total{LABELS}[$__rate_interval]))"#,
            "of all decisions",
        )])
        .from(Colour::Plain, &[(0.01, Colour::Limited), (0.5, Colour::Fault)])
        .or_says("no requests")
}

/// The panel of the current share of requests without a matching rule.
pub(super) fn unmatched() -> Panel {
    Panel::new(Kind::Stat, "Matched by no rule", Unit::Share)
        .about("The share of requests that no rule of any policy matched. They always pass.")
        .queries([Query::new(
            "sum(rate(weir_unmatched_requests_total{LABELS}[$__rate_interval])) / sum(rate(weir_protocol_requests_total{LABELS}[$__rate_interval]))",
            "of all requests",
        )])
        .from(Colour::Plain, &[(0.2, Colour::Warning), (0.8, Colour::Fault)])
        .or_says("no requests")
}

/// The panel of the time until the first certificate expires.
pub(super) fn certificate() -> Panel {
    Panel::new(Kind::Stat, "Certificate ends in", Unit::Seconds)
        .about("The time until the first certificate of a control port expires. An agent renews its certificate eight hours before, and WeirCertificateExpiresSoon fires six hours before.")
        .queries([Query::new(
            "bottomk(1, weir_control_certificate_expiry_timestamp_seconds{LABELS} - time())",
            "{{pod}}",
        )])
        .from(Colour::Fault, &[(21_600.0, Colour::Warning), (25_200.0, Colour::Good)])
        .or_says("no control port has one")
}

/// Lines for the series with the highest rate over the whole time range. The legend has room for a few series, so they
/// must not change with time.
pub(super) fn most(count: u8, by: &str, counter: &str, legend: &'static str) -> Query {
    let lines = format!("sum by ({by}) (rate({counter}[$__rate_interval]))");
    Query::new(format!("{lines} and topk({count}, sum by ({by}) (rate({counter}[$__range] @ end())))"), legend)
}

/// Lines for the series of a gauge with the highest values.
pub(super) fn highest(count: u8, by: &str, gauge: &str, legend: &'static str) -> Query {
    Query::new(format!("sum by ({by}) ({gauge}) and topk({count}, sum by ({by}) ({gauge} @ end()))"), legend)
}

/// The median and the 99th percentile of a histogram.
pub(super) fn quantiles(bucket: &str) -> [Query; 2] {
    [("0.5", "P50"), ("0.99", "P99")].map(|(quantile, name)| {
        let buckets = format!("sum by (le) (rate({bucket}[$__rate_interval]))");
        Query::new(format!("histogram_quantile({quantile}, {buckets})"), name)
    })
}
