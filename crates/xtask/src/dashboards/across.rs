//! The rows about limits that several pods have together: the stores as the agents reach them, and the operator, which
//! counts for the rules of scope Fleet. To agents, the operator is the store `operator`.

use super::{
    grafana::{Colour, Kind, Panel, Query, Row, Unit},
    shared,
};

/// The store of rules of scope Fleet, and those of rules of scope Shared.
const FLEET: &str = r#"store="operator""#;
const SHARED: &str = r#"store!="operator""#;

/// Which pods reach their stores.
pub(super) fn reached() -> Row {
    const COLUMNS: &[(&str, &str)] = &[("store", "Store"), ("namespace", "Namespace"), ("pod", "Pod")];
    Row {
        title: "Limits across pods",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Pods without their store", Unit::Count)
                .about("The number of pods that do not reach each store. The store operator counts for the rules of scope Fleet. The other stores count for rules of scope Shared.")
                .queries([Query::new(
                    "count by (store) (weir_store_up{LABELS} == 0) or 0 * count by (store) (weir_store_up{LABELS})",
                    "{{store}}",
                )])
                .or_says("No rule has scope Shared or Fleet."),
            Panel::new(Kind::Table(COLUMNS), "Which pods", Unit::Count)
                .about("Up to 20 pods that do not reach a store. In scope Fleet, they enforce their share of the limits. In scope Shared, onStoreLoss decides.")
                .queries([Query::new(
                    "topk(20, max by (store, namespace, pod) (weir_store_up{LABELS} == 0))",
                    "{{pod}}",
                )])
                .or_says("Every pod reaches its stores."),
        ],
    }
}

/// The round trips to the stores.
pub(super) fn trips() -> Row {
    let quantile = |quantile: &str, stores: &str, legend: &'static str| {
        let buckets =
            format!("sum by (le) (rate(weir_store_latency_seconds_bucket{{LABELS,{stores}}}[$__rate_interval]))");
        Query::new(format!("histogram_quantile({quantile}, {buckets})"), legend)
    };
    Row {
        title: "Round trips",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Round trips per second", Unit::Count)
                .about("Questions of agents to their stores per second, of the seven stores with the most.")
                .queries([shared::most(7, "store", "weir_store_trips_total{LABELS}", "{{store}}")])
                .or_says("No rule has scope Shared or Fleet."),
            Panel::new(Kind::Lines, "Time of a round trip", Unit::Seconds)
                .about("The time from a question of an agent to the answer, in all pods together, for the operator (Fleet) and for all other stores (Shared).")
                .queries([
                    quantile("0.5", FLEET, "P50 Fleet"),
                    quantile("0.99", FLEET, "P99 Fleet"),
                    quantile("0.5", SHARED, "P50 Shared"),
                    quantile("0.99", SHARED, "P99 Shared"),
                ])
                .or_says("No rule has scope Shared or Fleet."),
        ],
    }
}

/// What agents do to save round trips.
pub(super) fn seats() -> Row {
    let each = |scope: &str, stores: &str, legend: &'static str| {
        // Only the series of limits have the scope.
        let requests = format!(
            "sum(rate(weir_requests_total{{LABELS}}[$__rate_interval]) and ignoring (decision, limit, scope) weir_limit_requests{{LABELS,scope=\"{scope}\"}})"
        );
        let trips = format!("sum(rate(weir_store_trips_total{{LABELS,{stores}}}[$__rate_interval]))");
        Query::new(format!("{trips} / ({requests} > 0)"), legend)
    };
    let seats = |counter: &str, legend: &'static str| {
        Query::new(format!("sum(rate(weir_store_seats_{counter}_total{{LABELS}}[$__rate_interval]))"), legend)
    };
    Row {
        title: "Seats",
        height: 8,
        panels: vec![
            Panel::new(Kind::Lines, "Round trips per request", Unit::Count)
                .about("Round trips, divided by the requests that rules of this scope matched. Usually less than 1, because an agent takes seats for later requests of a busy key, and remembers which keys are refused.")
                .queries([each("Fleet", FLEET, "Fleet"), each("Shared", SHARED, "Shared")])
                .or_says("No requests match a rule of scope Shared or Fleet."),
            Panel::new(Kind::Lines, "Seats per second", Unit::Count)
                .about("Seats are units that an agent takes in advance. It returns seats that it does not use. Lost seats were charged and not used, for example because they expired.")
                .queries([seats("leased", "leased"), seats("returned", "returned"), seats("lost", "lost")])
                .or_says("No rule has scope Shared or Fleet."),
        ],
    }
}

/// The operator as the counter of scope Fleet.
pub(super) fn operator() -> Row {
    Row {
        title: "Scope Fleet",
        height: 8,
        panels: vec![
            Panel::new(Kind::Stacked, "Questions to the operator per second", Unit::Count)
                .about("Questions of agents about keys, by outcome. The operator refuses questions that are not valid, or for which it has no room. The agent then decides with its share.")
                .queries([Query::new(
                    "sum by (outcome) (rate(weir_operator_fleet_questions_total{LABELS}[$__rate_interval]))",
                    "{{outcome}}",
                )])
                .or_says("No operator is scraped."),
            Panel::new(Kind::Lines, "Keys that the operator counts", Unit::Count)
                .about("Keys that are not at full credit. The operator keeps at most 900,000 keys, and 225,000 of one rule. Agents decide on further keys with their shares.")
                .queries([Query::new("sum(max by (cluster) (weir_operator_fleet_keys{LABELS}))", "keys")])
                .from(Colour::Plain, &[(900_000.0, Colour::Warning)])
                .or_says("No operator is scraped."),
            Panel::new(Kind::Lines, "Pods that may use their share", Unit::Count)
                .about("Pods for which the operator keeps a share of the limits free, because they may be cut off. A new leader first collects the levels that agents know, for at most 10 s, and counts no question.")
                .queries([
                    Query::new("sum(max by (cluster) (weir_operator_fleet_absent_pods{LABELS}))", "absent pods"),
                    Query::new("sum(max by (cluster) (weir_operator_fleet_collecting{LABELS}))", "leaders that collect"),
                ])
                .or_says("No operator is scraped."),
        ],
    }
}
