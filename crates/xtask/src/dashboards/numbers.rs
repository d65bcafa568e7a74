//! A test with promtool of the numbers that the dashboards show first.

use super::{
    boards,
    questions::{SCRAPE, fill},
};

/// What Prometheus has, and what the panels of the first board show at minute 30.
const ALERTS: [(&str, &str); 3] = [
    ("alertname=\"WeirNoLeader\",alertstate=\"firing\"", "1x30"),
    // Evaluated once an hour.
    ("alertname=\"WeirLimitNeverReached\",alertstate=\"firing\"", "1 _x29"),
    ("alertname=\"WeirPodsDrifted\",alertstate=\"firing\"", "1x20 stale"),
];

/// The pods with their counters. Only a proxy counts the requests of a protocol.
const COUNTERS: [(&str, &str, &str); 3] = [
    ("weir_unmatched_requests_total", "proxy", "0+15x30"),
    ("weir_protocol_requests_total", "proxy", "0+60x30"),
    ("weir_unmatched_requests_total", "rate-limit-service", "0+300x30"),
];

/// Creates a test for promtool: which alerts count, and which share of the requests no rule matched.
pub(super) fn promtool_test() -> String {
    let [fleet, ..] = boards();
    let shown = [("Alerts", "'{}'", "2"), ("Matched by no rule", "'{}'", "0.25")];
    let shown = shown.map(|(title, labels, value)| {
        let panel = fleet.panels().find(|panel| panel.title == title).expect("the board has the panel");
        let expr = fill(&fleet.written(&panel.queries[0].expr), 2 * 60 - SCRAPE);
        format!("  - expr: {expr}\n    eval_time: 30m\n    exp_samples:\n    - {{labels: {labels}, value: {value}}}\n")
    });
    let alerts = ALERTS.map(|(labels, values)| format!("  - {{series: 'ALERTS{{{labels}}}', values: '{values}'}}\n"));
    let counters =
        COUNTERS.map(|(name, pod, values)| format!("  - {{series: '{name}{{pod=\"{pod}\"}}', values: '{values}'}}\n"));
    format!(
        "rule_files: []\ntests:\n- interval: 1m\n  input_series:\n{}{}  promql_expr_test:\n{}",
        alerts.concat(),
        counters.concat(),
        shown.concat()
    )
}
