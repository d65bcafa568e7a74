//! The board of all policies and pods. It shows whether policies are enforced, how fast changes reach the
//! agents, and the state of limits across pods.

use super::{
    across,
    grafana::{Board, Colour, Kind, Link, Panel, Query, Row, Unit, happened},
    shared,
};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-fleet",
        title: "Weir / Fleet",
        description: "The state of all policies and their pods, and the work of the operator.",
        variables: &[],
        selector: r#"cluster=~"$cluster""#,
        annotation: None,
        rows: vec![
            now(),
            operator(),
            alerts(),
            traffic(),
            enforcement(),
            pushes(),
            across::reached(),
            across::trips(),
            across::seats(),
            across::operator(),
            faults(),
        ],
    }
}

/// Green if the share is 1, otherwise red.
const WHOLE: (Colour, &[(f64, Colour)]) = (Colour::Fault, &[(1.0, Colour::Good)]);

fn now() -> Row {
    let policies = Query::of_how_many(
        r#"sum(max by (cluster) (weir_operator_policies{LABELS,accepted="true"}))"#,
        "sum(max by (cluster, accepted) (weir_operator_policies{LABELS}))",
        "{{part}} of {{whole}}",
    );
    let pods = Query::of_how_many(
        r#"sum(max by (cluster) (weir_operator_pods{LABELS,state="enforcing"}))"#,
        "sum(max by (cluster, state) (weir_operator_pods{LABELS}))",
        "{{part}} of {{whole}}",
    );
    Row {
        title: "Now",
        height: 4,
        panels: vec![
            Panel::new(Kind::Stat, "Alerts", Unit::Count)
                .about("The number of firing alerts of Weir.")
                .queries([Query::new(
                    r#"count(ALERTS{LABELS,alertname=~"Weir.+",alertstate="firing"}) or vector(0)"#,
                    "firing",
                )])
                .from(Colour::Good, &[(1.0, Colour::Fault)]),
            Panel::new(Kind::Stat, "Policies accepted", Unit::Share)
                .about("Policies that the operator accepts, as a share of all. The status of a refused policy contains the reason.")
                .queries([policies])
                .from(WHOLE.0, WHOLE.1)
                .or_says("no policies"),
            Panel::new(Kind::Stat, "Pods that enforce", Unit::Share)
                .about("Pods that enforce all their policies, as a share of the targeted pods.")
                .queries([pods])
                .from(WHOLE.0, WHOLE.1)
                .or_says("no pods are targeted"),
            Panel::new(Kind::Stat, "Agents scraped", Unit::Count)
                .about("Agents that Prometheus scrapes, by version.")
                .queries([Query::new("count by (version) (weir_build_info{LABELS})", "version {{version}}")]),
            shared::limited(),
            shared::unmatched(),
        ],
    }
}

fn operator() -> Row {
    let pushes = Query::of_how_many(
        &happened(r#"weir_operator_pushes_total{LABELS,result="applied"}"#),
        &happened("weir_operator_pushes_total{LABELS}"),
        "{{part}} of {{whole}}",
    );
    let writes = Query::of_how_many(
        &happened(r#"weir_operator_status_writes_total{LABELS,result="ok"}"#),
        &happened("weir_operator_status_writes_total{LABELS}"),
        "{{part}} of {{whole}}",
    );
    Row {
        title: "Operator",
        height: 4,
        panels: vec![
            Panel::new(Kind::Word("leads", "none"), "Leader", Unit::Count)
                .about("The operator that leads, and the number of operators. Without a leader, no change of a policy is pushed.")
                .queries([Query::new(
                    r#"(max by (pod) (weir_operator_leader{LABELS} == 1) or on () label_replace(vector(0), "pod", "nobody", "", "")) * on () group_left (whole) count_values("whole", count(weir_operator_leader{LABELS}))"#,
                    "{{pod}} of {{whole}}",
                )])
                .from(Colour::Fault, &[(1.0, Colour::Good)])
                .or_says("no operator is scraped"),
            Panel::new(Kind::Stat, "Lease used up", Unit::Share)
                .about("Time since the last observed renewal of the Lease, as a share of the Lease's duration. At 100 %, another operator can take over. 0 without a Lease.")
                .queries([Query::new(
                    "max(weir_operator_lease_age_seconds{LABELS} / (weir_operator_lease_duration_seconds{LABELS} > 0) or weir_operator_lease_age_seconds{LABELS})",
                    "since the last renewal",
                )])
                .from(Colour::Good, &[(0.75, Colour::Warning), (1.0, Colour::Fault)])
                .or_says("no operator is scraped"),
            Panel::new(Kind::Stat, "Leader changes", Unit::Count)
                .about("The number of times that an operator began or stopped to lead in this time.")
                .queries([Query::new(happened("weir_operator_leader_transitions_total{LABELS}"), "in this time")])
                .from(Colour::Plain, &[(3.0, Colour::Warning)])
                .or_says("no operator is scraped"),
            Panel::new(Kind::Stat, "Pushes applied", Unit::Share)
                .about("Snapshots that agents applied, as a share of all pushes in this time. Failed pushes are repeated.")
                .queries([pushes])
                .from(Colour::Fault, &[(0.9, Colour::Warning), (1.0, Colour::Good)])
                .or_says("none in this time"),
            Panel::new(Kind::Stat, "Statuses written", Unit::Share)
                .about("Successful writes of policy statuses, as a share of all in this time. Failed writes are repeated.")
                .queries([writes])
                .from(Colour::Fault, &[(0.9, Colour::Warning), (1.0, Colour::Good)])
                .or_says("none in this time"),
            shared::certificate(),
        ],
    }
}

fn alerts() -> Row {
    const COLUMNS: &[(&str, &str)] = &[
        ("alertname", "Alert"),
        ("alertstate", "State"),
        ("severity", "Severity"),
        ("namespace", "Namespace"),
        ("policy", "Policy"),
        ("rule", "Rule"),
        ("pod", "Pod"),
    ];
    // Grafana shows the text for an empty table also in the cells of labels that an alert does not have.
    let named = ["namespace", "policy", "rule", "pod"].into_iter().fold(
        r#"max by (alertname, alertstate, severity, namespace, policy, rule, pod) (ALERTS{LABELS,alertname=~"Weir.+"})"#.to_owned(),
        |alerts, label| format!("label_replace({alerts}, '{label}', '-', '{label}', '')"),
    );
    Row {
        title: "Alerts",
        height: 7,
        panels: vec![
            Panel::new(Kind::Table(COLUMNS), "Alerts that fire or are about to", Unit::Count)
                .about("Alerts of the chart's rules, as Prometheus evaluates them. docs/alerts.md describes the reaction to each alert.")
                .queries([Query::new(named, "{{alertname}}")])
                .or_says("Nothing fires."),
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
            Panel::new(Kind::Lines, "Policies that refuse most", Unit::RequestsPerSecond)
                .about("The seven policies with the most refusals per second; click a policy to open its dashboard.")
                .queries([shared::most(
                    7,
                    "namespace, policy",
                    r#"weir_requests_total{LABELS,decision="limited"}"#,
                    "{{namespace}}/{{policy}}",
                )])
                .leads_to(Link::Policy),
        ],
    }
}

fn enforcement() -> Row {
    Row {
        title: "Enforcement",
        height: 8,
        panels: vec![
            Panel::new(Kind::Stacked, "Pods by state", Unit::Count)
                .about("Targeted pods over time. Drifted pods do not enforce their policies, and the status of the policy names them.")
                .queries([Query::new(
                    "sum by (state) (max by (cluster, state) (weir_operator_pods{LABELS}))",
                    "{{state}}",
                )]),
            Panel::new(Kind::Lines, "From change to last acknowledgement", Unit::Seconds)
                .about("The time from the operator's receipt of a changed policy until the last of its pods acknowledged the revision.")
                .queries(shared::quantiles("weir_operator_propagation_seconds_bucket{LABELS}")),
        ],
    }
}

fn pushes() -> Row {
    Row {
        title: "Pushes",
        height: 8,
        panels: vec![
            Panel::new(Kind::Bars, "Pushes by result", Unit::Count)
                .about(
                    "Snapshots sent to agents, by result. All results except applied are retried with growing pauses.",
                )
                .queries([Query::events("result", "weir_operator_pushes_total{LABELS}", "{{result}}")]),
            Panel::new(Kind::Lines, "Push duration", Unit::Seconds)
                .about("The time from sending a snapshot until the agent's answer.")
                .queries(shared::quantiles("weir_operator_push_duration_seconds_bucket{LABELS}")),
        ],
    }
}

fn faults() -> Row {
    Row {
        title: "What else may go wrong",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Requests that no rule matches", Unit::RequestsPerSecond)
                .about(
                    "Requests per second that pass because no rule matches them, in the five namespaces with the most.",
                )
                .queries([shared::most(5, "namespace", "weir_unmatched_requests_total{LABELS}", "{{namespace}}")]),
            Panel::new(Kind::Bars, "Snapshots that agents refused", Unit::Count)
                .about("Snapshots that agents did not apply, by result. The last good snapshot stays in force.")
                .queries([Query::events(
                    "result",
                    r#"weir_snapshots_total{LABELS,result!~"applied|unchanged"}"#,
                    "{{result}}",
                )]),
            Panel::new(Kind::Bars, "Status writes", Unit::Count)
                .about("Writes of policy statuses, by result. An idle operator writes none.")
                .queries([Query::events("result", "weir_operator_status_writes_total{LABELS}", "{{result}}")]),
        ],
    }
}
