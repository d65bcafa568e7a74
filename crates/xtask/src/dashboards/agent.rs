//! One agent: the proxy in a pod, its resource usage, and whether the app behind it answers.

use super::{
    grafana::{Annotation, Board, Choice, Colour, Kind, Link, Panel, Query, Row, Unit, Variable},
    shared,
};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-agent",
        title: "Weir / Agent",
        description: "The limiter in one pod: traffic, the app's answers, connections, and what it takes of the machine.",
        variables: &[
            Variable {
                name: "namespace",
                query: r#"label_values(weir_build_info{cluster=~"$cluster"}, namespace)"#,
                choice: Choice::One,
            },
            Variable {
                name: "pod",
                query: r#"label_values(weir_build_info{cluster=~"$cluster",namespace="$namespace"}, pod)"#,
                choice: Choice::Many,
            },
        ],
        selector: r#"cluster=~"$cluster",namespace="$namespace",pod=~"$pod""#,
        annotation: Some(Annotation {
            name: "Snapshot in force",
            expr: "changes(weir_snapshot_in_force_since_timestamp_seconds{LABELS}[1m]) > 0",
        }),
        rows: vec![now(), traffic(), connections(), app(), cost(), snapshots()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        height: 4,
        panels: vec![
            Panel::new(
                Kind::Stat,
                "Version",
                "The agents' version, and how many have it.",
                Unit::Count,
                vec![Query::new("count by (version) (weir_build_info{LABELS})", "version {{version}}")],
            ),
            Panel::new(
                Kind::Stat,
                "In force for",
                "How long the snapshot in force has been, where it changed last.",
                Unit::Seconds,
                vec![Query::new(
                    "bottomk(1, time() - weir_snapshot_in_force_since_timestamp_seconds{LABELS})",
                    "{{pod}}",
                )],
            )
            .or_says("no snapshot is"),
            Panel::new(
                Kind::Stat,
                "Connections",
                "Client connections that are open now.",
                Unit::Count,
                vec![Query::new("sum(weir_connections{LABELS})", "open")],
            ),
            shared::limited(),
            shared::unmatched(),
            shared::certificate(),
        ],
    }
}

fn traffic() -> Row {
    Row {
        title: "Traffic",
        height: 8,
        panels: vec![
            shared::decisions(
                "Decisions of all rules per second; a request that matches several rules counts once for each. Waiting ones got their turn later; shadow ones would have been refused in mode Enforce.",
            ),
            Panel::new(
                Kind::Lines,
                "Limited by policy",
                "Refusals per second of the seven policies with the most; a click on one leads to its dashboard.",
                Unit::RequestsPerSecond,
                vec![shared::most(
                    7,
                    "namespace, policy",
                    r#"weir_requests_total{LABELS,decision="limited"}"#,
                    "{{policy}}",
                )],
            )
            .leads_to(Link::Policy)
            .or_says("No policy is in force."),
        ],
    }
}

fn connections() -> Row {
    Row {
        title: "Connections",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "Open connections",
                "Client connections that are open, by what they speak; those that wait for a request are idle.",
                Unit::Count,
                vec![Query::new("sum by (protocol) (weir_protocol_connections{LABELS})", "{{protocol}}")],
            ),
            Panel::new(
                Kind::Lines,
                "Requests that no rule matches",
                "Requests per second that pass because no rule is about them, in the seven pods with the most.",
                Unit::RequestsPerSecond,
                vec![shared::most(7, "pod", "weir_unmatched_requests_total{LABELS}", "{{pod}}")],
            ),
        ],
    }
}

fn app() -> Row {
    Row {
        title: "App",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "Time until the app answers",
                "From sending a request to the app until its response begins.",
                Unit::Seconds,
                shared::quantiles("weir_upstream_seconds_bucket{LABELS}"),
            ),
            Panel::new(
                Kind::Bars,
                "Requests that the app did not answer",
                "Requests that ended with an error of the agent's own, by reason.",
                Unit::Count,
                vec![Query::events("reason", "weir_upstream_errors_total{LABELS}", "{{reason}}")],
            ),
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "Cost",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Lines,
                "CPU",
                "Cores that the agent uses, of the five pods where it uses most.",
                Unit::Cores,
                vec![shared::most(5, "pod", r#"process_cpu_seconds_total{LABELS,container="weir-agent"}"#, "{{pod}}")],
            ),
            Panel::new(
                Kind::Lines,
                "Memory",
                "Resident memory of the agent, of the five pods where it is most.",
                Unit::Bytes,
                vec![shared::highest(5, "pod", r#"process_resident_memory_bytes{LABELS,container="weir-agent"}"#, "{{pod}}")],
            ),
            Panel::new(
                Kind::Lines,
                "File descriptors",
                "Open file descriptors, of those that the agent may have; of the five pods where it is most.",
                Unit::Share,
                vec![Query::new(
                    r#"max by (pod) (process_open_fds{LABELS,container="weir-agent"} / process_max_fds) and topk(5, max by (pod) (process_open_fds{LABELS,container="weir-agent"} @ end()))"#,
                    "{{pod}}",
                )],
            )
            .from(Colour::Plain, &[(0.8, Colour::Fault)]),
        ],
    }
}

fn snapshots() -> Row {
    Row {
        title: "Snapshots and keys",
        height: 8,
        panels: vec![
            Panel::new(
                Kind::Bars,
                "Snapshots by result",
                "Snapshots that were put to the control port, by what came of them.",
                Unit::Count,
                vec![Query::events("result", "weir_snapshots_total{LABELS}", "{{result}}")],
            ),
            Panel::new(
                Kind::Bars,
                "Loads of keys for tokens",
                "Attempts to load the keys that tokens are verified with, by result; after one that failed, the keys from before stay in use.",
                Unit::Count,
                vec![Query::events("result", "weir_jwks_loads_total{LABELS}", "{{result}}")],
            )
            .or_says("No agent has keys for tokens."),
            Panel::new(
                Kind::Stacked,
                "Keys tracked",
                "Keys that the tables of rules hold, of the seven rules with the most.",
                Unit::Count,
                vec![shared::highest(7, "policy, rule", "weir_key_table_keys{LABELS}", "{{policy}}/{{rule}}")],
            )
            .or_says("No rule has a key."),
        ],
    }
}
