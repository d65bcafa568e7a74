//! All policies and pods: whether what should be enforced is, and how fast changes arrive.

use super::grafana::{Board, Kind, Panel, Query, Row, Unit};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-fleet",
        title: "Weir / Fleet",
        description: "Whether every policy is in force in every pod that it targets, and what the operator does about it.",
        variables: &[],
        annotation: None,
        rows: vec![now(), enforcement(), pushes(), traffic(), operator()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        height: 4,
        panels: vec![
            Panel {
                title: "Policies",
                description: "Policies, by whether the operator accepts them; a policy that is not says why in its status.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![
                    Query::new(r#"max(weir_operator_policies{accepted="true"})"#, "accepted"),
                    Query::new(r#"max(weir_operator_policies{accepted="false"})"#, "refused"),
                ],
            },
            Panel {
                title: "Pods",
                description: "Targeted pods: enforcing all that targets them, about to, or drifted from it.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![Query::new("max by (state) (weir_operator_pods)", "{{state}}")],
            },
            Panel {
                title: "Agents seen by Prometheus",
                description: "Agents that answer scrapes, by version.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![Query::new("count by (version) (weir_build_info)", "{{version}}")],
            },
            Panel {
                title: "Limited share of all",
                description: "Share of all decisions of all rules that were refusals.",
                unit: Unit::Share,
                kind: Kind::Stat,
                queries: vec![Query::new(
                    r#"sum(rate(weir_requests_total{decision="limited"}[$__rate_interval])) / sum(rate(weir_requests_total[$__rate_interval]))"#,
                    "limited",
                )],
            },
        ],
    }
}

fn enforcement() -> Row {
    Row {
        title: "Enforcement",
        height: 8,
        panels: vec![
            Panel {
                title: "Pods by state",
                description: "Targeted pods over time; drifted ones do not enforce what they should, and the policy's status names them.",
                unit: Unit::Count,
                kind: Kind::Stacked,
                queries: vec![Query::new("max by (state) (weir_operator_pods)", "{{state}}")],
            },
            Panel {
                title: "From change to last acknowledgement",
                description: "Time from seeing a changed policy until the last of its pods acknowledged the revision.",
                unit: Unit::Seconds,
                kind: Kind::Lines,
                queries: vec![
                    Query::new(
                        "histogram_quantile(0.5, sum by (le) (rate(weir_operator_propagation_seconds_bucket[$__rate_interval])))",
                        "P50",
                    ),
                    Query::new(
                        "histogram_quantile(0.99, sum by (le) (rate(weir_operator_propagation_seconds_bucket[$__rate_interval])))",
                        "P99",
                    ),
                ],
            },
        ],
    }
}

fn pushes() -> Row {
    Row {
        title: "Pushes",
        height: 8,
        panels: vec![
            Panel {
                title: "Pushes by result",
                description: "Snapshots sent to agents per second; anything but applied is retried with growing pauses.",
                unit: Unit::PerSecond,
                kind: Kind::Stacked,
                queries: vec![Query::new(
                    "sum by (result) (rate(weir_operator_pushes_total[$__rate_interval]))",
                    "{{result}}",
                )],
            },
            Panel {
                title: "Push duration",
                description: "Time from sending a snapshot to the agent's answer.",
                unit: Unit::Seconds,
                kind: Kind::Lines,
                queries: vec![
                    Query::new(
                        "histogram_quantile(0.5, sum by (le) (rate(weir_operator_push_duration_seconds_bucket[$__rate_interval])))",
                        "P50",
                    ),
                    Query::new(
                        "histogram_quantile(0.99, sum by (le) (rate(weir_operator_push_duration_seconds_bucket[$__rate_interval])))",
                        "P99",
                    ),
                ],
            },
        ],
    }
}

fn traffic() -> Row {
    Row {
        title: "Traffic",
        height: 8,
        panels: vec![
            Panel {
                title: "Decisions of all policies",
                description: "Decisions of all rules per second; a request that matches several rules counts once for each.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Stacked,
                queries: vec![Query::new(
                    "sum by (decision) (rate(weir_requests_total[$__rate_interval]))",
                    "{{decision}}",
                )],
            },
            Panel {
                title: "Policies that refuse most",
                description: "The ten policies with the most refusals per second.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"topk(10, sum by (namespace, policy) (rate(weir_requests_total{decision="limited"}[$__rate_interval])))"#,
                    "{{namespace}}/{{policy}}",
                )],
            },
        ],
    }
}

fn operator() -> Row {
    Row {
        title: "Operator",
        height: 8,
        panels: vec![
            Panel {
                title: "Status writes",
                description: "Writes of policy statuses per second, by result: none at rest.",
                unit: Unit::PerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    "sum by (result) (rate(weir_operator_status_writes_total[$__rate_interval]))",
                    "{{result}}",
                )],
            },
            Panel {
                title: "Snapshots that agents refused",
                description: "Snapshots per second that agents did not take, by result; the last good one stays in force.",
                unit: Unit::PerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (result) (rate(weir_snapshots_total{result!~"applied|unchanged"}[$__rate_interval]))"#,
                    "{{result}}",
                )],
            },
        ],
    }
}
