//! A test with promtool of the numbers that the dashboards show first, and of the marks of changes.

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
        "rule_files: []\ntests:\n- interval: 1m\n  input_series:\n{}{}  promql_expr_test:\n{}{}",
        alerts.concat(),
        counters.concat(),
        shown.concat(),
        test_of_marks()
    )
}

/// A policy and a snapshot change at minute 7. For ranges of an hour, of two days, and of a week, Grafana evaluates the
/// query of the mark at steps of 15 s, 90 s, and 5 min. The first step after the change finds it, and the later ones do
/// not.
fn test_of_marks() -> String {
    let input = "  - {series: 'weir_policy_info{namespace=\"default\",policy=\"checkout\",revision=\"a\"}', values: '1x83'}\n  \
        - {series: 'weir_policy_info{namespace=\"default\",policy=\"checkout\",revision=\"b\"}', values: '_x84 1x280'}\n  \
        - {series: 'weir_snapshot_in_force_since_timestamp_seconds{namespace=\"default\"}', values: '100x83 520x280'}\n";
    let [_, policy, agent] = boards();
    let mut cases = String::new();
    for (board, labels) in [(policy, "{revision=\"b\"}"), (agent, "{namespace=\"default\"}")] {
        let mark = board.annotation.as_ref().expect("the board marks changes");
        // The agents have a pod, which the series of this test do not.
        let expr = board.written(&mark.expr).replace(",pod=~\"$pod\"", "");
        for (step, found, later) in [(15, "7m", "7m30s"), (90, "7m30s", "10m30s"), (300, "10m", "20m")] {
            let (expr, sample) = (fill(&expr, step), format!("{{labels: '{labels}', value: 1}}"));
            for (at, samples) in [(found, sample.as_str()), (later, "")] {
                cases += &format!("  - expr: {expr}\n    eval_time: {at}\n    exp_samples: [{samples}]\n");
            }
        }
    }
    format!("- interval: 5s\n  input_series:\n{input}  promql_expr_test:\n{cases}")
}
