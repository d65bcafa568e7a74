//! One policy: its requests and decisions, how near its limits are, and what changed when.

use super::{
    grafana::{Annotation, Board, Choice, Colour, Kind, Link, Panel, Query, Row, Unit, Variable},
    shared,
};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-policy",
        title: "Weir / Policy",
        description: "What a RateLimitPolicy lets through and refuses, in all pods together, by rule.",
        variables: &[
            Variable {
                name: "namespace",
                query: r#"label_values(weir_policy_info{cluster=~"$cluster"}, namespace)"#,
                choice: Choice::One,
            },
            Variable {
                name: "policy",
                query: r#"label_values(weir_policy_info{cluster=~"$cluster",namespace="$namespace"}, policy)"#,
                choice: Choice::One,
            },
            Variable {
                name: "rule",
                query: r#"label_values(weir_requests_total{cluster=~"$cluster",namespace="$namespace",policy="$policy"}, rule)"#,
                choice: Choice::Many,
            },
        ],
        selector: r#"cluster=~"$cluster",namespace="$namespace",policy="$policy",rule=~"$rule""#,
        annotation: Some(Annotation {
            name: "Limits changed",
            expr: r#"count by (revision) (weir_policy_info{cluster=~"$cluster",namespace="$namespace",policy="$policy"}) unless count by (revision) (weir_policy_info{cluster=~"$cluster",namespace="$namespace",policy="$policy"} offset 1m)"#,
        }),
        rows: vec![now(), decisions(), limits(), waits(), pods(), keys()],
    }
}

/// For the tightest limit of each rule without a key, in all pods together.
const HEADROOM: &str = r"clamp_min(1 - sum by (rule) (rate(weir_requests_total{LABELS,decision='allowed'}[$__rate_interval])) / min by (rule) (sum by (rule, limit) (weir_limit_requests{LABELS} / weir_limit_period_seconds unless on (cluster, namespace, policy, rule) weir_key_table_capacity)), 0)";

/// For the key that is nearest to its limit, in its pod.
const KEY_HEADROOM: &str = "min by (rule) (weir_key_headroom_ratio{LABELS})";

fn now() -> Row {
    let pods = Query::of_how_many(
        r#"sum(max by (cluster) (weir_operator_policy_pods{cluster=~"$cluster",namespace="$namespace",policy="$policy",state="enforcing"}))"#,
        r#"sum(max by (cluster, state) (weir_operator_policy_pods{cluster=~"$cluster",namespace="$namespace",policy="$policy"}))"#,
        "{{part}} of {{whole}}",
    );
    Row {
        title: "Now",
        height: 4,
        panels: vec![
            Panel::new(
                Kind::Stat,
                "Pods that enforce it",
                "Pods that acknowledged the policy's newest revision, of those that it targets.",
                Unit::Share,
                vec![pods],
            )
            .from(Colour::Fault, &[(1.0, Colour::Good)])
            .or_says("it targets no pod"),
            Panel::new(
                Kind::Stat,
                "Revisions in force",
                "Different revisions that pods have in force: one, except during a change.",
                Unit::Count,
                vec![Query::new(
                    r#"count(count by (revision) (weir_policy_info{cluster=~"$cluster",namespace="$namespace",policy="$policy"}))"#,
                    "in all pods",
                )],
            )
            .from(Colour::Good, &[(2.0, Colour::Warning)])
            .or_says("no pod has it"),
            Panel::new(
                Kind::Stat,
                "Offered",
                "Requests per second that matched its rules, whatever was decided; one that matches several counts once for each.",
                Unit::RequestsPerSecond,
                vec![Query::new("sum(rate(weir_requests_total{LABELS}[$__rate_interval]))", "for all rules")],
            )
            .or_says("no requests"),
            shared::limited(),
            Panel::new(
                Kind::Stat,
                "Refusals",
                "How many requests were refused in this time.",
                Unit::Count,
                vec![Query::new(
                    r#"round(sum(increase(weir_requests_total{LABELS,decision="limited"}[$__range])))"#,
                    "in this time",
                )],
            )
            .from(Colour::Plain, &[(1.0, Colour::Limited)])
            .or_says("no rule can refuse"),
            Panel::new(
                Kind::Stat,
                "Least headroom",
                "What is left of the limit that is nearest to its end: of a rule, or of one of its keys.",
                Unit::Share,
                vec![Query::new(
                    format!("bottomk(1, {HEADROOM} or {KEY_HEADROOM})"),
                    "of {{rule}}",
                )],
            )
            .from(Colour::Limited, &[(0.1, Colour::Warning), (0.25, Colour::Good)])
            .or_says("no requests"),
        ],
    }
}

/// Zero instead of nothing for a rule that has refused no request yet.
const LIMITED_SHARE: &str = r#"(sum by (rule) (rate(weir_requests_total{LABELS,decision="limited"}[$__rate_interval])) or 0 * sum by (rule) (rate(weir_requests_total{LABELS}[$__rate_interval]))) / sum by (rule) (rate(weir_requests_total{LABELS}[$__rate_interval]))"#;

fn decisions() -> Row {
    Row {
        title: "Requests",
        height: 8,
        panels: vec![
            shared::decisions(
                "Decisions of its rules per second; a request that matches several rules counts once for each. Waiting ones got their turn later; shadow ones would have been refused in mode Enforce.",
            ),
            Panel::new(
                Kind::Lines,
                "Limited share by rule",
                "Share of the requests of each rule that were refused.",
                Unit::Share,
                vec![Query::new(LIMITED_SHARE, "{{rule}}")],
            ),
        ],
    }
}

fn limits() -> Row {
    Row {
        title: "Limits",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "Effective limit",
                "What the limits of each rule admit in all pods together (for a rule with a key: for each of its keys), as a rate; steps are changes.",
                Unit::RequestsPerSecond,
                vec![Query::new(
                    "sum by (rule, limit) (weir_limit_requests{LABELS} / weir_limit_period_seconds)",
                    "{{rule}}/{{limit}}",
                )],
            ),
            Panel::new(
                Kind::Lines,
                "Headroom of rules without a key",
                "Share of the tightest limit of each rule that nobody uses, in all pods together; 0 means that it refuses.",
                Unit::Share,
                vec![Query::new(HEADROOM, "{{rule}}")],
            )
            .or_says("All of its rules have a key."),
            Panel::new(
                Kind::Lines,
                "Headroom of keys",
                "For each rule with a key: what is left to the key that is nearest to its limit; 0 means that this key is refused.",
                Unit::Share,
                vec![Query::new(KEY_HEADROOM, "{{rule}}")],
            )
            .or_says("None of its rules has a key."),
        ],
    }
}

fn waits() -> Row {
    Row {
        title: "Waiting",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "Wait for a turn",
                "How long requests waited that had to and got their turn, in rules with onLimit Wait.",
                Unit::Seconds,
                shared::quantiles("weir_wait_seconds_bucket{LABELS}"),
            )
            .or_says("None of its rules lets requests wait."),
            Panel::new(
                Kind::Lines,
                "Requests that waited",
                "Requests per second that had to wait and got their turn.",
                Unit::RequestsPerSecond,
                vec![Query::new("sum(rate(weir_wait_seconds_count{LABELS}[$__rate_interval]))", "waiting")],
            )
            .or_says("None of its rules lets requests wait."),
            Panel::new(
                Kind::Bars,
                "Too late",
                "Requests that were not answered within the policy's deadline.",
                Unit::Count,
                vec![Query::events("rule", "weir_deadline_expired_total{LABELS}", "{{rule}}")],
            )
            .or_says("It has no deadline."),
        ],
    }
}

fn pods() -> Row {
    Row {
        title: "Pods",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "Allowed by pod",
                "Requests per second that the rules of each pod let through, of the seven with the most: limits hold in each pod, so uneven pods refuse early. A click on one leads to its agent.",
                Unit::RequestsPerSecond,
                vec![shared::most(7, "namespace, pod", r#"weir_requests_total{LABELS,decision="allowed"}"#, "{{pod}}")],
            )
            .leads_to(Link::Agent),
            Panel::new(
                Kind::Lines,
                "Busiest pod against the mean",
                "Requests offered to the busiest pod over the mean of all pods: 1 is an even spread, and from 2 on it refuses what others have room for.",
                Unit::Count,
                vec![Query::new(
                    "max(sum by (pod) (rate(weir_requests_total{LABELS}[$__rate_interval]))) / avg(sum by (pod) (rate(weir_requests_total{LABELS}[$__rate_interval])))",
                    "busiest / mean",
                )],
            )
            .from(Colour::Plain, &[(2.0, Colour::Warning)]),
        ],
    }
}

fn keys() -> Row {
    Row {
        title: "Keys",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "Key table occupancy",
                "Keys that the fullest pod tracks, of those that it may (maxKeys); beyond, keys are counted in the overflow.",
                Unit::Share,
                vec![Query::new("max by (rule) (weir_key_table_keys{LABELS} / weir_key_table_capacity)", "{{rule}}")],
            )
            .from(Colour::Plain, &[(0.9, Colour::Warning)])
            .or_says("None of its rules has a key."),
            Panel::new(
                Kind::Lines,
                "Keys at their limit",
                "Share of the keys of each rule that have nothing left, in the pod with the most of them.",
                Unit::Share,
                vec![Query::new("max by (rule) (weir_key_exhausted_ratio{LABELS})", "{{rule}}")],
            )
            .or_says("None of its rules has a key."),
            Panel::new(
                Kind::Bars,
                "Full tables",
                "Requests counted in the overflow, because the table of keys was full of busy ones, and idle keys that were given up to make room.",
                Unit::Count,
                vec![
                    Query::events("", "weir_key_overflow_total{LABELS}", "requests in the overflow"),
                    Query::events("", "weir_key_evictions_total{LABELS}", "keys given up"),
                ],
            )
            .or_says("None of its rules has a key."),
        ],
    }
}
