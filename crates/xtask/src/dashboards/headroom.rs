//! The queries for limits and their headroom over several pods, and a test of these queries with promtool.
//!
//! In scope Pod, each pod has its own limit, so the limits of the pods add up. In scope Fleet, all pods of a cluster have
//! one limit. In scope Shared, all pods that use the store have one limit, and several clusters can use one store.

use super::questions::{SCRAPE, fill};

/// The headroom of each rule: of a rule without a key, or of the key that is nearest to its limit, in the pod with the
/// least. Agents do not know it for keys that a store or the operator counts.
///
/// A limit with a short period changes between two scrapes. So the value is the average of the interval, or 0 if the rule
/// without a key refused a request in it. The rate of the admitted requests does not show the headroom: a rule that
/// refuses all requests admits none, and a window of a day can be used up within a minute.
fn headroom() -> String {
    let of_rules = "min by (rule) (avg_over_time(weir_rule_headroom_ratio{LABELS}[$__rate_interval]))";
    let refused = "rate(weir_requests_total{LABELS,decision=~'limited|shadow_limited'}[$__rate_interval])";
    format!(
        "(0 * (sum by (rule) ({refused}) > 0) and {of_rules} or {of_rules} or min by (rule) (weir_key_headroom_ratio{{LABELS}}))"
    )
}

/// Replaces the names of these queries in boards.yaml.
pub(super) fn filled(boards: &str) -> String {
    let names = [("EFFECTIVE_LIMITS", limits()), ("RATES_IN_USE", rates_in_use()), ("HEADROOM", headroom())];
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

/// The admitted requests of each rule without a key, as a share of the rate of its tightest limit, in all pods together.
/// The number of requests says nothing about the units of a weighted rule.
fn rates_in_use() -> String {
    let admitted = "sum by (rule) (rate(weir_requests_total{LABELS,decision='allowed'}[$__rate_interval]))";
    let others = "(weir_key_table_capacity{LABELS} or weir_rule_weighted{LABELS})";
    format!("{admitted} / min by (rule) (({}) unless on (rule) {others})", limits())
}

/// Creates a test for promtool. Two pods in each of two clusters admit 25 requests a minute each.
pub(super) fn promtool_test() -> String {
    const LABELS: &str = "namespace=\"shop\",policy=\"p\"";
    // The rule, its scope, the limit in all pods together, and the used share of it. Each pod reports a limit of 100 a
    // minute.
    let cases = [
        ("pod", "Pod", 400, Some(0.25)),
        ("fleet", "Fleet", 200, Some(0.5)),
        ("shared", "Shared", 100, Some(1.0)),
        ("weighted", "Pod", 400, None),
    ];
    let (mut input, mut limit, mut used) = (String::new(), String::new(), String::new());
    for (rule, scope, total, share) in cases {
        for (cluster, pod) in [("east", "a"), ("east", "b"), ("west", "c"), ("west", "d")] {
            let of = format!("cluster=\"{cluster}\",pod=\"{pod}\",{LABELS},rule=\"{rule}\"");
            let labels = format!("{of},limit=\"l\",scope=\"{scope}\"");
            let series = [
                (format!("weir_requests_total{{{of},decision=\"allowed\"}}"), "0+25x9"),
                (format!("weir_limit_requests{{{labels}}}"), "100x9"),
                (format!("weir_limit_period_seconds{{{labels}}}"), "60x9"),
            ];
            let weighted = share.is_none().then(|| (format!("weir_rule_weighted{{{of}}}"), "1x9"));
            let series = series.into_iter().chain(weighted);
            input.extend(series.map(|(name, values)| line(&name, values)));
        }
        limit += &format!("    - {{labels: '{{rule=\"{rule}\",limit=\"l\"}}', value: {total}}}\n");
        used.extend(share.map(|share| format!("    - {{labels: '{{rule=\"{rule}\"}}', value: {share}}}\n")));
    }
    let of_all = |expr: &str| fill(expr, 8 * 60 - SCRAPE).replace("LABELS", LABELS);
    format!(
        "rule_files: []\ntests:\n- interval: 1m\n  input_series:\n{input}  promql_expr_test:\n  \
         - expr: round(60 * ({}), 0.001)\n    eval_time: 9m\n    exp_samples:\n{limit}  \
         - expr: round({}, 0.001)\n    eval_time: 9m\n    exp_samples:\n{used}{}",
        of_all(&limits()),
        of_all(&rates_in_use()),
        test_of_headroom(&fill(&headroom(), 4 * 60 - SCRAPE).replace("LABELS", LABELS))
    )
}

/// One pod has a window of an hour for 5,000 requests, and uses it up in 250 s: at 20 requests a second, 16.8 times as
/// fast as its rate. Then it refuses all requests, until the next hour begins.
fn test_of_headroom(expr: &str) -> String {
    let of = |rule: &str, pod: &str| format!("{{namespace=\"shop\",policy=\"p\",rule=\"{rule}\",pod=\"{pod}\"}}");
    let counted = |decision: &str| of("hour", "a").replace('}', &format!(",decision=\"{decision}\"}}"));
    let series = [
        (
            format!("weir_rule_headroom_ratio{}", of("hour", "a")),
            "1 0.76 0.52 0.28 0.04 0x54 1 0.76 0.52 0.28 0.04 0x55",
        ),
        (format!("weir_requests_total{}", counted("allowed")), "0+1200x4 5000x54 5000+1200x4 10000x55"),
        (format!("weir_requests_total{}", counted("limited")), "0x4 1000+1200x54 67000x4 68000+1200x55"),
        // Another pod has the same limit, and hardly any requests.
        (format!("weir_rule_headroom_ratio{}", of("hour", "b")), "0.99x120"),
        // A limit of a second is refilled at each scrape, but it refuses some requests in between.
        (format!("weir_rule_headroom_ratio{}", of("second", "a")), "0.9x120"),
        (format!("weir_requests_total{}", of("second", "a").replace('}', ",decision=\"shadow_limited\"}")), "0+6x120"),
        (format!("weir_key_headroom_ratio{}", of("keys", "a")), "0.3x120"),
    ];
    let input: String = series.iter().map(|(name, values)| line(name, values)).collect();
    // The minute, and the headroom of the rule with the hour: the average of the last four values.
    let cases = [(3, 0.64), (30, 0.0), (58, 0.0), (63, 0.64), (90, 0.0)].map(|(minute, left)| {
        format!(
            "  - expr: round({expr}, 0.001)\n    eval_time: {minute}m30s\n    exp_samples:\n    \
             - {{labels: '{{rule=\"hour\"}}', value: {left}}}\n    - {{labels: '{{rule=\"second\"}}', value: 0}}\n    \
             - {{labels: '{{rule=\"keys\"}}', value: 0.3}}\n"
        )
    });
    format!("- interval: 1m\n  input_series:\n{input}  promql_expr_test:\n{}", cases.concat())
}

fn line(series: &str, values: &str) -> String {
    format!("  - {{series: '{series}', values: '{values}'}}\n")
}
