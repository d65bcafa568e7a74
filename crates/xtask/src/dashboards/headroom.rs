//! The queries for limits over several pods, and a test of these queries with promtool.
//!
//! In scope Pod, each pod has its own limit, so the limits of the pods add up. In scope Fleet, all pods of a cluster have
//! one limit. In scope Shared, all pods that use the store have one limit, and several clusters can use one store.

use super::questions::{SCRAPE, fill};

/// The headroom of the key that is nearest to its limit, in its pod. Agents do not know it for keys that a store or the
/// operator counts.
const OF_KEYS: &str = "min by (rule) (weir_key_headroom_ratio{LABELS})";

/// Replaces the names of these queries in boards.yaml.
pub(super) fn filled(boards: &str) -> String {
    let names =
        [("EFFECTIVE_LIMITS", limits()), ("HEADROOM_OF_RULES", of_rules()), ("HEADROOM_OF_KEYS", OF_KEYS.to_owned())];
    names.into_iter().fold(boards.to_owned(), |text, (name, query)| text.replace(name, &query))
}

/// The rate of each limit, in all pods together. A rule can have series of several scopes, because its scope changes,
/// or because agents of an earlier version export no scope. Then the limit over several pods counts.
fn limits() -> String {
    let rates = |scope: &str| format!("(weir_limit_requests{{LABELS,scope{scope}}} / weir_limit_period_seconds)");
    format!(
        "sum by (rule, limit) (max by (cluster, rule, limit) {}) or max by (rule, limit) {} or sum by (rule, limit) {}",
        rates("='Fleet'"),
        rates("='Shared'"),
        rates("!~'Fleet|Shared'")
    )
}

/// The headroom of the tightest limit of each rule without a key, in all pods together. The number of requests says
/// nothing about the units of a weighted rule.
fn of_rules() -> String {
    let admitted = "sum by (rule) (rate(weir_requests_total{LABELS,decision='allowed'}[$__rate_interval]))";
    let others = "(weir_key_table_capacity{LABELS} or weir_rule_weighted{LABELS})";
    format!("clamp_min(1 - {admitted} / min by (rule) (({}) unless on (rule) {others}), 0)", limits())
}

/// Creates a test for promtool. Two pods in each of two clusters admit 25 requests a minute each.
pub(super) fn promtool_test() -> String {
    const LABELS: &str = "namespace=\"shop\",policy=\"p\"";
    // The rule, its scope, the limit in all pods together, and its headroom. Each pod reports a limit of 100 a minute.
    let cases = [
        ("pod", "Pod", 400, Some(0.75)),
        ("fleet", "Fleet", 200, Some(0.5)),
        ("shared", "Shared", 100, Some(0.0)),
        ("weighted", "Pod", 400, None),
    ];
    let (mut input, mut limit, mut headroom) = (String::new(), String::new(), String::new());
    for (rule, scope, total, left) in cases {
        for (cluster, pod) in [("east", "a"), ("east", "b"), ("west", "c"), ("west", "d")] {
            let of = format!("cluster=\"{cluster}\",pod=\"{pod}\",{LABELS},rule=\"{rule}\"");
            let labels = format!("{of},limit=\"l\",scope=\"{scope}\"");
            let series = [
                (format!("weir_requests_total{{{of},decision=\"allowed\"}}"), "0+25x9"),
                (format!("weir_limit_requests{{{labels}}}"), "100x9"),
                (format!("weir_limit_period_seconds{{{labels}}}"), "60x9"),
            ];
            let weighted = left.is_none().then(|| (format!("weir_rule_weighted{{{of}}}"), "1x9"));
            let series = series.into_iter().chain(weighted);
            input.extend(series.map(|(name, values)| format!("  - {{series: '{name}', values: '{values}'}}\n")));
        }
        limit += &format!("    - {{labels: '{{rule=\"{rule}\",limit=\"l\"}}', value: {total}}}\n");
        headroom.extend(left.map(|left| format!("    - {{labels: '{{rule=\"{rule}\"}}', value: {left}}}\n")));
    }
    let of_all = |expr: &str| fill(expr, 8 * 60 - SCRAPE).replace("LABELS", LABELS);
    format!(
        "rule_files: []\ntests:\n- interval: 1m\n  input_series:\n{input}  promql_expr_test:\n  \
         - expr: round(60 * ({}), 0.001)\n    eval_time: 9m\n    exp_samples:\n{limit}  \
         - expr: round({}, 0.001)\n    eval_time: 9m\n    exp_samples:\n{headroom}",
        of_all(&limits()),
        of_all(&of_rules())
    )
}
