//! One policy: what was asked of it, what it did, how near its limits are, and what changed when.

use super::grafana::{Annotation, Board, Kind, Panel, Query, Row, Unit, Variable};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-policy",
        title: "Weir / Policy",
        description: "What a RateLimitPolicy lets through and refuses, in all pods together, by rule.",
        variables: &[
            Variable { name: "namespace", query: "label_values(weir_policy_info, namespace)", many: false },
            Variable {
                name: "policy",
                query: r#"label_values(weir_policy_info{namespace="$namespace"}, policy)"#,
                many: false,
            },
            Variable {
                name: "rule",
                query: r#"label_values(weir_requests_total{namespace="$namespace",policy="$policy"}, rule)"#,
                many: true,
            },
        ],
        annotation: Some(Annotation {
            name: "Limits changed",
            expr: r#"count by (revision) (weir_policy_info{namespace="$namespace",policy="$policy"}) unless count by (revision) (weir_policy_info{namespace="$namespace",policy="$policy"} offset 1m)"#,
            text: "revision {{revision}}",
        }),
        rows: vec![now(), decisions(), limits(), waits(), pods(), keys()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        height: 5,
        panels: vec![
            Panel {
                title: "Offered",
                description: "Requests per second that matched each rule, whatever was decided.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Stat,
                queries: vec![Query::new(
                    r#"sum by (rule) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#,
                    "{{rule}}",
                )],
            },
            Panel {
                title: "Limited share",
                description: "Share of the requests of each rule that were refused.",
                unit: Unit::Share,
                kind: Kind::Stat,
                queries: vec![Query::new(LIMITED_SHARE, "{{rule}}")],
            },
            Panel {
                title: "Pods that enforce it",
                description: "Pods whose agent has the policy in force, by mode; the policy's status says of how many.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![Query::new(
                    r#"count by (mode) (weir_policy_info{namespace="$namespace",policy="$policy"})"#,
                    "{{mode}}",
                )],
            },
            Panel {
                title: "Revisions in force",
                description: "Different revisions that pods have in force: one, but for the moment of a change.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![Query::new(
                    r#"count(count by (revision) (weir_policy_info{namespace="$namespace",policy="$policy"}))"#,
                    "revisions",
                )],
            },
        ],
    }
}

/// Zero, not nothing, for a rule that has refused no request yet.
const LIMITED_SHARE: &str = r#"(sum by (rule) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule",decision="limited"}[$__rate_interval])) or 0 * sum by (rule) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))) / sum by (rule) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#;

fn decisions() -> Row {
    Row {
        title: "Requests",
        height: 8,
        panels: vec![
            Panel {
                title: "Decisions",
                description: "Requests per second by rule and decision; shadow_limited would have been refused in mode Enforce.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Stacked,
                queries: vec![Query::new(
                    r#"sum by (rule, decision) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#,
                    "{{rule}} {{decision}}",
                )],
            },
            Panel {
                title: "Limited share over time",
                description: "Share of the requests of each rule that were refused.",
                unit: Unit::Share,
                kind: Kind::Lines,
                queries: vec![Query::new(LIMITED_SHARE, "{{rule}}")],
            },
        ],
    }
}

fn limits() -> Row {
    Row {
        title: "Limits",
        height: 8,
        panels: vec![
            Panel {
                title: "Effective limit",
                description: "What the limits of each rule admit in all pods together (for a rule with a key: for each of its keys), as a rate; steps are changes.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (rule, limit) (weir_limit_requests{namespace="$namespace",policy="$policy",rule=~"$rule"} / weir_limit_period_seconds)"#,
                    "{{rule}}/{{limit}}",
                )],
            },
            Panel {
                title: "Headroom",
                description: "Share of the tightest limit of each rule without a key that nobody uses, in all pods together; 0 means that it refuses.",
                unit: Unit::Share,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"clamp_min(1 - sum by (rule) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule",decision="allowed"}[$__rate_interval])) / min by (rule) (sum by (rule, limit) (weir_limit_requests{namespace="$namespace",policy="$policy",rule=~"$rule"} / weir_limit_period_seconds unless on (namespace, policy, rule) weir_key_table_capacity)), 0)"#,
                    "{{rule}}",
                )],
            },
        ],
    }
}

fn waits() -> Row {
    Row {
        title: "Waiting",
        height: 8,
        panels: vec![
            Panel {
                title: "Wait for a turn",
                description: "How long requests waited that had to and got their turn, in rules with onLimit Wait.",
                unit: Unit::Seconds,
                kind: Kind::Lines,
                queries: vec![
                    Query::new(
                        r#"histogram_quantile(0.5, sum by (rule, le) (rate(weir_wait_seconds_bucket{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval])))"#,
                        "{{rule}} P50",
                    ),
                    Query::new(
                        r#"histogram_quantile(0.99, sum by (rule, le) (rate(weir_wait_seconds_bucket{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval])))"#,
                        "{{rule}} P99",
                    ),
                ],
            },
            Panel {
                title: "Too late",
                description: "Requests per second that were not answered within the policy's deadline.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (rule) (rate(weir_deadline_expired_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#,
                    "{{rule}}",
                )],
            },
            Panel {
                title: "Requests that waited",
                description: "Requests per second that had to wait and got their turn.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (rule) (rate(weir_wait_seconds_count{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#,
                    "{{rule}}",
                )],
            },
        ],
    }
}

fn pods() -> Row {
    Row {
        title: "Pods",
        height: 8,
        panels: vec![
            Panel {
                title: "Allowed by pod",
                description: "Requests per second that the rules of each pod let through, counted once for each rule: limits hold in each pod, so uneven pods refuse early.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (pod) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule",decision="allowed"}[$__rate_interval]))"#,
                    "{{pod}}",
                )],
            },
            Panel {
                title: "Busiest pod against the mean",
                description: "Requests offered to the busiest pod over the mean of all pods: 1 is an even spread.",
                unit: Unit::Count,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"max(sum by (pod) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))) / avg(sum by (pod) (rate(weir_requests_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval])))"#,
                    "busiest / mean",
                )],
            },
        ],
    }
}

fn keys() -> Row {
    Row {
        title: "Keys",
        height: 8,
        panels: vec![
            Panel {
                title: "Key table occupancy",
                description: "Keys that the fullest pod tracks, of those that it may (maxKeys); beyond, keys are counted in the overflow.",
                unit: Unit::Share,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"max by (rule) (weir_key_table_keys{namespace="$namespace",policy="$policy",rule=~"$rule"} / weir_key_table_capacity)"#,
                    "{{rule}}",
                )],
            },
            Panel {
                title: "Evictions and overflow",
                description: "Idle keys given up for others, and requests counted in the overflow because a table was full.",
                unit: Unit::PerSecond,
                kind: Kind::Lines,
                queries: vec![
                    Query::new(
                        r#"sum by (rule) (rate(weir_key_evictions_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#,
                        "{{rule}} evictions",
                    ),
                    Query::new(
                        r#"sum by (rule) (rate(weir_key_overflow_total{namespace="$namespace",policy="$policy",rule=~"$rule"}[$__rate_interval]))"#,
                        "{{rule}} overflow",
                    ),
                ],
            },
        ],
    }
}
