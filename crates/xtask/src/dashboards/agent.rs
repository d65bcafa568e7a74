//! One agent: the proxy in a pod, what it costs, and whether the app behind it answers.

use super::grafana::{Annotation, Board, Kind, Panel, Query, Row, Unit, Variable};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-agent",
        title: "Weir / Agent",
        description: "The limiter in one pod: traffic, the app's answers, connections, and what it takes of the machine.",
        variables: &[
            Variable { name: "namespace", query: "label_values(weir_build_info, namespace)", many: false },
            Variable {
                name: "pod",
                query: r#"label_values(weir_build_info{namespace="$namespace"}, pod)"#,
                many: true,
            },
        ],
        annotation: Some(Annotation {
            name: "Snapshot in force",
            expr: r#"changes(weir_snapshot_in_force_since_timestamp_seconds{namespace="$namespace",pod=~"$pod"}[1m]) > 0"#,
            text: "{{pod}}",
        }),
        rows: vec![now(), traffic(), app(), cost(), snapshots()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        height: 4,
        panels: vec![
            Panel {
                title: "Version",
                description: "The agent's version, and how many agents have it.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![Query::new(
                    r#"count by (version) (weir_build_info{namespace="$namespace",pod=~"$pod"})"#,
                    "{{version}}",
                )],
            },
            Panel {
                title: "Connections",
                description: "Client connections that are open now.",
                unit: Unit::Count,
                kind: Kind::Stat,
                queries: vec![Query::new(r#"sum(weir_connections{namespace="$namespace",pod=~"$pod"})"#, "open")],
            },
            Panel {
                title: "In force for",
                description: "How long the snapshot in force has been.",
                unit: Unit::Seconds,
                kind: Kind::Stat,
                queries: vec![Query::new(
                    r#"time() - weir_snapshot_in_force_since_timestamp_seconds{namespace="$namespace",pod=~"$pod"}"#,
                    "{{pod}}",
                )],
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
                title: "Decisions by policy",
                description: "Decisions per second by policy and decision; a request that matches several rules counts once for each.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Stacked,
                queries: vec![Query::new(
                    r#"sum by (policy, decision) (rate(weir_requests_total{namespace="$namespace",pod=~"$pod"}[$__rate_interval]))"#,
                    "{{policy}} {{decision}}",
                )],
            },
            Panel {
                title: "Open connections",
                description: "Client connections that are open, by what they speak; those that wait for a request are idle.",
                unit: Unit::Count,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (protocol) (weir_protocol_connections{namespace="$namespace",pod=~"$pod"})"#,
                    "{{protocol}}",
                )],
            },
        ],
    }
}

fn app() -> Row {
    Row {
        title: "App",
        height: 8,
        panels: vec![
            Panel {
                title: "Time until the app answers",
                description: "From sending a request to the app until its response begins.",
                unit: Unit::Seconds,
                kind: Kind::Lines,
                queries: vec![
                    Query::new(
                        r#"histogram_quantile(0.5, sum by (le) (rate(weir_upstream_seconds_bucket{namespace="$namespace",pod=~"$pod"}[$__rate_interval])))"#,
                        "P50",
                    ),
                    Query::new(
                        r#"histogram_quantile(0.99, sum by (le) (rate(weir_upstream_seconds_bucket{namespace="$namespace",pod=~"$pod"}[$__rate_interval])))"#,
                        "P99",
                    ),
                ],
            },
            Panel {
                title: "Requests that the app did not answer",
                description: "Requests per second that ended with an error of the agent's own, by reason.",
                unit: Unit::RequestsPerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (reason) (rate(weir_upstream_errors_total{namespace="$namespace",pod=~"$pod"}[$__rate_interval]))"#,
                    "{{reason}}",
                )],
            },
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "Cost",
        height: 8,
        panels: vec![
            Panel {
                title: "CPU",
                description: "Cores that the agent uses.",
                unit: Unit::Cores,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"rate(process_cpu_seconds_total{namespace="$namespace",pod=~"$pod",container="weir-agent"}[$__rate_interval])"#,
                    "{{pod}}",
                )],
            },
            Panel {
                title: "Memory",
                description: "Resident memory of the agent.",
                unit: Unit::Bytes,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"process_resident_memory_bytes{namespace="$namespace",pod=~"$pod",container="weir-agent"}"#,
                    "{{pod}}",
                )],
            },
            Panel {
                title: "File descriptors",
                description: "Open file descriptors, of those that the agent may have.",
                unit: Unit::Share,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"process_open_fds{namespace="$namespace",pod=~"$pod",container="weir-agent"} / process_max_fds"#,
                    "{{pod}}",
                )],
            },
        ],
    }
}

fn snapshots() -> Row {
    Row {
        title: "Snapshots",
        height: 8,
        panels: vec![
            Panel {
                title: "Snapshots by result",
                description: "Snapshots that were put to the control port per second, by what came of them.",
                unit: Unit::PerSecond,
                kind: Kind::Lines,
                queries: vec![Query::new(
                    r#"sum by (result) (rate(weir_snapshots_total{namespace="$namespace",pod=~"$pod"}[$__rate_interval]))"#,
                    "{{result}}",
                )],
            },
            Panel {
                title: "Keys tracked",
                description: "Keys that the tables of all rules hold.",
                unit: Unit::Count,
                kind: Kind::Stacked,
                queries: vec![Query::new(
                    r#"sum by (policy, rule) (weir_key_table_keys{namespace="$namespace",pod=~"$pod"})"#,
                    "{{policy}}/{{rule}}",
                )],
            },
        ],
    }
}
