//! The board of one policy: its requests and decisions, the headroom of its limits, and its changes.

use super::{
    grafana::{Annotation, Board, Choice, Colour, Kind, Link, Panel, Query, Row, Unit, Variable},
    headroom::{self, KEY_HEADROOM},
    shared,
};

pub(super) fn board() -> Board {
    Board {
        uid: "weir-policy",
        title: "Weir / Policy",
        description: "The decisions of one RateLimitPolicy by rule, summed over all pods.",
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
        rows: vec![now(), decisions(), limits(), waits(), in_flight(), pods(), keys()],
    }
}

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
            Panel::new(Kind::Stat, "Pods that enforce it", Unit::Share)
                .about("Pods that acknowledged the policy's newest revision, as a share of the targeted pods.")
                .queries([pods])
                .from(Colour::Fault, &[(1.0, Colour::Good)])
                .or_says("it targets no pod"),
            Panel::new(Kind::Stat, "Revisions in force", Unit::Count)
                .about("The number of different revisions in force. It is one, except during a change.")
                .queries([Query::new(
                    r#"count(count by (revision) (weir_policy_info{cluster=~"$cluster",namespace="$namespace",policy="$policy"}))"#,
                    "in all pods",
                )])
                .from(Colour::Good, &[(2.0, Colour::Warning)])
                .or_says("no pod has it"),
            Panel::new(Kind::Stat, "Offered", Unit::RequestsPerSecond)
                .about("Requests per second that matched the policy's rules, with any decision. A request that matches several rules counts once for each.")
                .queries([Query::new("sum(rate(weir_requests_total{LABELS}[$__rate_interval]))", "for all rules")])
                .or_says("no requests"),
            shared::limited(),
            Panel::new(Kind::Stat, "Refusals", Unit::Count)
                .about("The number of refused requests in this time.")
                .queries([Query::new(
                    r#"round(sum(increase(weir_requests_total{LABELS,decision="limited"}[$__range])))"#,
                    "in this time",
                )])
                .from(Colour::Plain, &[(1.0, Colour::Limited)])
                .or_says("no rule can refuse"),
            Panel::new(Kind::Stat, "Least headroom", Unit::Share)
                .about("The remaining share of the limit that is most used: the limit of a rule, or of one of its keys.")
                .queries([Query::new(
                    format!("bottomk(1, {} or {KEY_HEADROOM})", headroom::of_rules()),
                    "of {{rule}}",
                )])
                .from(Colour::Limited, &[(0.1, Colour::Warning), (0.25, Colour::Good)])
                .or_says("no requests"),
        ],
    }
}

/// The share of refused requests. It is zero, not missing, for a rule that has refused no request yet.
const LIMITED_SHARE: &str = r#"(sum by (rule) (rate(weir_requests_total{LABELS,decision="limited"}[$__rate_interval])) or 0 * sum by (rule) (rate(weir_requests_total{LABELS}[$__rate_interval]))) / sum by (rule) (rate(weir_requests_total{LABELS}[$__rate_interval]))"#;

fn decisions() -> Row {
    Row {
        title: "Requests",
        height: 8,
        panels: vec![
            shared::decisions(
                "Decisions of the policy's rules per second; a request that matches several rules counts once for each. Waiting requests were admitted later. Shadow requests would have been refused in mode Enforce.",
            ),
            Panel::new(Kind::Lines, "Limited share by rule", Unit::Share)
                .about("The share of refused requests of each rule.")
                .queries([Query::new(LIMITED_SHARE, "{{rule}}")]),
        ],
    }
}

fn limits() -> Row {
    Row {
        title: "Limits",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Effective limit", Unit::RequestsPerSecond)
                .about("The rate that the limits of each rule admit, in all pods together. For a rule with a key, it is the rate of each key. In scope Pod, each further pod adds its limit. Steps show changes of the policy.")
                .queries([Query::new(headroom::limits(), "{{rule}}/{{limit}}")]),
            Panel::new(Kind::Lines, "Headroom of rules without a key", Unit::Share)
                .about("The unused share of the tightest limit of each rule, in all pods together. 0 means that the rule refuses requests.")
                .queries([Query::new(headroom::of_rules(), "{{rule}}")])
                .or_says("All of its rules have a key."),
            Panel::new(Kind::Lines, "Headroom of keys", Unit::Share)
                .about("For each rule of scope Pod with a key: the remaining share of the key that is nearest to its limit. 0 means that this key is refused.")
                .queries([Query::new(KEY_HEADROOM, "{{rule}}")])
                .or_says("No rule of scope Pod has a key."),
        ],
    }
}

fn waits() -> Row {
    Row {
        title: "Waiting",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Wait for a turn", Unit::Seconds)
                .about("The waiting time of requests that were admitted later, in rules with onLimit Wait.")
                .queries(shared::quantiles("weir_wait_seconds_bucket{LABELS}"))
                .or_says("None of its rules lets requests wait."),
            Panel::new(Kind::Lines, "Requests that waited", Unit::RequestsPerSecond)
                .about("Requests per second that had to wait and were then admitted.")
                .queries([Query::new("sum(rate(weir_wait_seconds_count{LABELS}[$__rate_interval]))", "waiting")])
                .or_says("None of its rules lets requests wait."),
            Panel::new(Kind::Bars, "Too late", Unit::Count)
                .about("Requests that were not answered within the policy's deadline.")
                .queries([Query::events("rule", "weir_deadline_expired_total{LABELS}", "{{rule}}")])
                .or_says("It has no deadline."),
        ],
    }
}

fn in_flight() -> Row {
    Row {
        title: "In flight",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Requests in flight", Unit::Count)
                .about("Requests that concurrent limits count, weighted by their cost, in all pods together.")
                .queries([Query::new("sum by (rule) (weir_in_flight_requests{LABELS})", "{{rule}}")])
                .or_says("None of its rules has a concurrent limit."),
            Panel::new(Kind::Lines, "Fullest pod", Unit::Share)
                .about("Requests in flight in the pod with the most, as a share of the limit. At 1, the pod refuses requests. For a rule with a key, each key has the limit, so the share can exceed 1.")
                .queries([Query::new(
                    "max by (rule) (weir_in_flight_requests{LABELS} / weir_limit_in_flight_requests)",
                    "{{rule}}",
                )])
                .from(Colour::Plain, &[(0.9, Colour::Warning)])
                .or_says("None of its rules has a concurrent limit."),
        ],
    }
}

fn pods() -> Row {
    Row {
        title: "Pods",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Allowed by pod", Unit::RequestsPerSecond)
                .about("Requests per second that the rules admit in each pod, of the seven pods with the most. In scope Pod, each pod has its own limits, so a pod with more load refuses earlier. Click a pod to open its agent.")
                .queries([shared::most(
                    7,
                    "namespace, pod",
                    r#"weir_requests_total{LABELS,decision="allowed"}"#,
                    "{{pod}}",
                )])
                .leads_to(Link::Agent),
            Panel::new(Kind::Lines, "Busiest pod against the mean", Unit::Count)
                .about("Requests to the busiest pod, divided by the mean of all pods. 1 means that the load is even. In scope Pod, from 2, the busiest pod refuses requests that other pods could admit.")
                .queries([Query::new(
                    "max(sum by (pod) (rate(weir_requests_total{LABELS}[$__rate_interval]))) / avg(sum by (pod) (rate(weir_requests_total{LABELS}[$__rate_interval])))",
                    "busiest / mean",
                )])
                .from(Colour::Plain, &[(2.0, Colour::Warning)]),
        ],
    }
}

fn keys() -> Row {
    Row {
        title: "Keys",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Key table occupancy", Unit::Share)
                .about("Tracked keys of the fullest pod, as a share of maxKeys. Above maxKeys, keys are counted in the overflow.")
                .queries([Query::new(
                    "max by (rule) (weir_key_table_keys{LABELS} / weir_key_table_capacity)",
                    "{{rule}}",
                )])
                .from(Colour::Plain, &[(0.9, Colour::Warning)])
                .or_says("None of its rules has a key."),
            Panel::new(Kind::Lines, "Keys at their limit", Unit::Share)
                .about("The share of keys of each rule of scope Pod that have used up their limit, in the pod with the highest share.")
                .queries([Query::new("max by (rule) (weir_key_exhausted_ratio{LABELS})", "{{rule}}")])
                .or_says("No rule of scope Pod has a key."),
            Panel::new(Kind::Bars, "Full tables", Unit::Count)
                .about("Requests that were counted in the overflow because the table was full of busy keys, and idle keys that were removed to make room.")
                .queries([
                    Query::events("", "weir_key_overflow_total{LABELS}", "requests in the overflow"),
                    Query::events("", "weir_key_evictions_total{LABELS}", "keys given up"),
                ])
                .or_says("None of its rules has a key."),
        ],
    }
}
