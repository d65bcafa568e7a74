//! The board of one agent: the proxy in a pod, its resource usage, and the responses of the app behind it.

use super::{
    grafana::{Annotation, Board, Choice, Colour, Kind, Link, Panel, Query, Row, Unit, Variable},
    shared,
};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-agent",
        title: "Weir / Agent",
        description: "The agent in one pod: traffic, the app's responses, connections and resource usage.",
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
        rows: vec![now(), traffic(), connections(), service(), app(), cost(), snapshots()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        height: 4,
        panels: vec![
            Panel::new(Kind::Stat, "Version", Unit::Count)
                .about("The versions of the agents, and the number of agents of each version.")
                .queries([Query::new("count by (version) (weir_build_info{LABELS})", "version {{version}}")]),
            Panel::new(Kind::Stat, "In force for", Unit::Seconds)
                .about("The time for which the newest snapshot has been in force.")
                .queries([Query::new(
                    "bottomk(1, time() - weir_snapshot_in_force_since_timestamp_seconds{LABELS})",
                    "{{pod}}",
                )])
                .or_says("no snapshot is"),
            Panel::new(Kind::Stat, "Connections", Unit::Count)
                .about("Client connections that are open now.")
                .queries([Query::new("sum(weir_connections{LABELS})", "open")]),
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
                "Decisions of all rules per second; a request that matches several rules counts once for each. Waiting requests were admitted later. Shadow requests would have been refused in mode Enforce.",
            ),
            Panel::new(Kind::Lines, "Limited by policy", Unit::RequestsPerSecond)
                .about(
                    "Refusals per second, of the seven policies with the most; click a policy to open its dashboard.",
                )
                .queries([shared::most(
                    7,
                    "namespace, policy",
                    r#"weir_requests_total{LABELS,decision="limited"}"#,
                    "{{policy}}",
                )])
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
            Panel::new(Kind::Lines, "Open connections", Unit::Count)
                .about("Open client connections by protocol. Connections that wait for a request are idle.")
                .queries([Query::new("sum by (protocol) (weir_protocol_connections{LABELS})", "{{protocol}}")]),
            Panel::new(Kind::Lines, "Requests that no rule matches", Unit::RequestsPerSecond)
                .about("Requests per second that pass because no rule matches them, in the seven pods with the most.")
                .queries([shared::most(7, "pod", "weir_unmatched_requests_total{LABELS}", "{{pod}}")]),
        ],
    }
}

fn service() -> Row {
    const NO_QUOTAS: &str = "No proxy has a quota of a rate limit service.";
    let quotas = |legend, decision| {
        let family = format!("weir_quota_requests_total{{LABELS,decision=\"{decision}\"}}");
        Query::new(format!("sum(rate({family}[$__rate_interval]))"), legend)
    };
    Row {
        title: "Rate limit service",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Questions of proxies", Unit::RequestsPerSecond)
                .about("Questions per second to the rate limit service, by answer. Proxies such as Envoy ask them.")
                .queries([Query::new(
                    "sum by (result) (rate(weir_service_questions_total{LABELS}[$__rate_interval]))",
                    "{{result}}",
                )])
                .or_says("No pod is a rate limit service."),
            Panel::new(Kind::Lines, "Requests with a quota", Unit::RequestsPerSecond)
                .about("Requests per second that proxies decided with their quotas, and the units that they got. Units that no request used are lost.")
                .queries([
                    quotas("allowed", "allowed"),
                    quotas("limited", "denied"),
                    Query::new("sum(rate(weir_quota_tokens_total{LABELS}[$__rate_interval]))", "units sent"),
                ])
                .or_says(NO_QUOTAS),
            Panel::new(Kind::Lines, "Assignments of quotas", Unit::Count)
                .about("Assignments per second that the service sent to proxies, by kind. The kind tokens contains units.")
                .queries([Query::new(
                    "sum by (kind) (rate(weir_quota_assignments_total{LABELS}[$__rate_interval]))",
                    "{{kind}}",
                )])
                .or_says(NO_QUOTAS),
        ],
    }
}

fn app() -> Row {
    Row {
        title: "App",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Time until the app answers", Unit::Seconds)
                .about("The time from sending a request to the app until its response begins.")
                .queries(shared::quantiles("weir_upstream_seconds_bucket{LABELS}")),
            Panel::new(Kind::Bars, "Requests that the app did not answer", Unit::Count)
                .about("Requests that the agent answered with an error, by reason.")
                .queries([Query::events("reason", "weir_upstream_errors_total{LABELS}", "{{reason}}")]),
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "Cost",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "CPU", Unit::Cores)
                .about("CPU cores that the agent uses, in the five pods with the most.")
                .queries([shared::most(
                    5,
                    "pod",
                    r#"process_cpu_seconds_total{LABELS,container="weir-agent"}"#,
                    "{{pod}}",
                )]),
            Panel::new(Kind::Lines, "Memory", Unit::Bytes)
                .about("Resident memory of the agent, in the five pods with the most.")
                .queries([shared::highest(
                    5,
                    "pod",
                    r#"process_resident_memory_bytes{LABELS,container="weir-agent"}"#,
                    "{{pod}}",
                )]),
            Panel::new(Kind::Lines, "File descriptors", Unit::Share)
                .about("Open file descriptors as a share of the agent's maximum, in the five pods with the most.")
                .queries([Query::new(
                    r#"max by (pod) (process_open_fds{LABELS,container="weir-agent"} / process_max_fds) and topk(5, max by (pod) (process_open_fds{LABELS,container="weir-agent"} @ end()))"#,
                    "{{pod}}",
                )])
                .from(Colour::Plain, &[(0.8, Colour::Fault)]),
        ],
    }
}

fn snapshots() -> Row {
    Row {
        title: "Snapshots and keys",
        height: 8,
        panels: vec![
            Panel::new(Kind::Bars, "Snapshots by result", Unit::Count)
                .about("Snapshots that were sent to the agent, by result.")
                .queries([Query::events("result", "weir_snapshots_total{LABELS}", "{{result}}")]),
            Panel::new(Kind::Bars, "Loads of keys for tokens", Unit::Count)
                .about("Attempts to load the keys that verify tokens, by result. After a failed attempt, the previous keys stay in use.")
                .queries([Query::events("result", "weir_jwks_loads_total{LABELS}", "{{result}}")])
                .or_says("No agent has keys for tokens."),
            Panel::new(Kind::Stacked, "Keys tracked", Unit::Count)
                .about("Keys in the tables of rules, of the seven rules with the most.")
                .queries([shared::highest(7, "policy, rule", "weir_key_table_keys{LABELS}", "{{policy}}/{{rule}}")])
                .or_says("No rule has a key."),
        ],
    }
}
