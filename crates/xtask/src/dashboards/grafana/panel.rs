//! One panel: its queries, and the way in which Grafana shows the results.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{
    Board, Colour, SOURCE,
    colour::{fixed, shades},
};

/// A panel of a dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) description: String,
    unit: Unit,
    pub(crate) kind: Kind,
    #[serde(deserialize_with = "queries")]
    pub(crate) queries: Vec<Query>,
    /// The colour for values below all thresholds, and the colour from each threshold on. A panel over time shows them
    /// as lines.
    #[serde(default)]
    thresholds: (Colour, Vec<(f64, Colour)>),
    /// The text of a panel that can correctly be without data.
    nothing: Option<String>,
    /// Whether the bars count events that the demo does not have, so that their numbers are zero there.
    #[serde(default)]
    pub(crate) is_zero_in_demo: bool,
    link: Option<Link>,
}

/// A query: an expression, and the legend of its series.
pub(crate) struct Query {
    /// The expression in PromQL. The label matchers of the board replace `LABELS`.
    pub(crate) expr: String,
    pub(crate) legend: String,
    /// For bars: the labels by which events are summed, and the counter.
    pub(crate) events: Option<(String, String)>,
}

/// The kinds of queries, as boards.yaml has them.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Written {
    Expr {
        expr: String,
        legend: String,
    },
    /// The events of a counter in each interval, summed by these labels.
    Events {
        events: String,
        by: String,
        legend: String,
    },
    /// The share of `part` in `whole`. The name of the series contains both numbers.
    Share {
        part: String,
        whole: String,
        legend: String,
    },
    /// Lines for the series of a counter with the highest rate over the whole time range. The legend has room for a few
    /// series, so they must not change with time.
    Most {
        most: u8,
        by: String,
        of: String,
        legend: String,
    },
    /// Lines for the series of a gauge with the highest values.
    Highest {
        highest: u8,
        by: String,
        of: String,
        legend: String,
    },
    /// The median and the 99th percentile of a histogram.
    Quantiles {
        quantiles: String,
    },
}

#[derive(PartialEq, Eq, Deserialize)]
pub(crate) enum Kind {
    /// The last value in large digits, with its name below.
    Stat,
    /// The last value as a word: the first word for 1, the second for 0.
    Word(String, String),
    Lines,
    /// Stacked lines.
    Stacked,
    /// The number of rare events in each interval ([`Query::events`]). Their rate would be a very small number.
    Bars,
    /// A table with a row for each series. Its columns are these labels, with these headings.
    Table(Vec<(String, String)>),
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum Unit {
    Count,
    RequestsPerSecond,
    /// A share, from 0 to 1.
    Share,
    Seconds,
    Bytes,
    Cores,
}

/// The board to which a series links.
#[derive(Clone, Copy, Deserialize)]
enum Link {
    /// The board of the policy in its labels.
    Policy,
    /// The board of the agent in its labels.
    Agent,
}

impl Unit {
    /// Grafana's name of the unit.
    fn id(self) -> &'static str {
        match self {
            Self::Count | Self::Cores => "short",
            Self::RequestsPerSecond => "reqps",
            Self::Share => "percentunit",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
        }
    }
}

impl Link {
    fn json(self) -> Value {
        let (title, to) = match self {
            Self::Policy => ("Policy ${__field.labels.policy}", "weir-policy?var-policy=${__field.labels.policy}"),
            Self::Agent => ("Agent of ${__field.labels.pod}", "weir-agent?var-pod=${__field.labels.pod}"),
        };
        let rest = "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}";
        json!({"title": title, "url": format!("/d/{to}&var-namespace=${{__field.labels.namespace}}&{rest}")})
    }
}

/// The number of events in each interval: the last value of the counter minus its last value of the interval before.
///
/// `increase(counter[$__interval])` loses every event between the last scrape of an interval and the first scrape of
/// the next one. `rate` over a longer window extrapolates, so one event becomes a fraction. Both ignore the first value
/// of a series. With this expression, the intervals add up to the counter. A new series counts from 0, and a counter
/// that has restarted at a lower value, too. A gap of up to an hour in the scrapes loses no event.
fn events(by: &str, counter: &str) -> String {
    let now = format!("last_over_time({counter}[$__rate_interval])");
    let before = format!("last_over_time({counter}[1h] offset $__interval)");
    format!("sum by ({by}) ({now} - ({before} <= {now} or 0 * {now}))")
}

/// Replaces `HAPPENED(counter)` by the number of events in the time range of the board: the sum of the bars.
fn filled(expr: &str) -> String {
    let Some((before, rest)) = expr.split_once("HAPPENED(") else { return expr.to_owned() };
    let (counter, after) = rest.split_once(')').expect("HAPPENED(counter)");
    format!("{before}sum_over_time(({})[$__range:$__interval]){}", events("", counter), filled(after))
}

/// Reads the queries of a panel.
fn queries<'de, D: Deserializer<'de>>(panel: D) -> Result<Vec<Query>, D::Error> {
    Ok(Vec::<Written>::deserialize(panel)?.into_iter().flat_map(Written::queries).collect())
}

impl Written {
    fn queries(self) -> Vec<Query> {
        vec![match self {
            Self::Expr { expr, legend } => Query::new(filled(&expr), legend),
            Self::Events { events, by, legend } => Query::events(&by, &events, legend),
            Self::Share { part, whole, legend } => {
                let (part, whole) = (filled(&part), filled(&whole));
                let named = |name, number| format!(" * on () group_left ({name}) count_values(\"{name}\", {number})");
                let share = format!("({part}) / ({whole} > 0)");
                Query::new(share + &named("part", &part) + &named("whole", &whole), legend)
            }
            Self::Most { most, by, of, legend } => {
                let lines = format!("sum by ({by}) (rate({of}[$__rate_interval]))");
                let highest = format!("topk({most}, sum by ({by}) (rate({of}[$__range] @ end())))");
                Query::new(format!("{lines} and {highest}"), legend)
            }
            Self::Highest { highest, by, of, legend } => {
                Query::new(format!("sum by ({by}) ({of}) and topk({highest}, sum by ({by}) ({of} @ end()))"), legend)
            }
            Self::Quantiles { quantiles } => {
                let quantile = |(quantile, name): (&str, &str)| {
                    let buckets = format!("sum by (le) (rate({quantiles}[$__rate_interval]))");
                    Query::new(format!("histogram_quantile({quantile}, {buckets})"), name.to_owned())
                };
                return [("0.5", "P50"), ("0.99", "P99")].map(quantile).into();
            }
        }]
    }
}

impl Query {
    fn new(expr: String, legend: String) -> Self {
        Self { expr, legend, events: None }
    }

    /// The events in each interval, summed by these labels.
    pub(crate) fn events(by: &str, counter: &str, legend: String) -> Self {
        Self { events: Some((by.to_owned(), counter.to_owned())), ..Self::new(events(by, counter), legend) }
    }
}

impl Panel {
    /// The colour of a value.
    pub(crate) fn colour_at(&self, value: f64) -> Colour {
        let (less, steps) = &self.thresholds;
        steps.iter().rev().find(|(from, _)| value >= *from).map_or(*less, |(_, colour)| *colour)
    }

    /// Returns true if the queries cover a time range, not only the current time.
    pub(crate) fn is_over_time(&self) -> bool {
        matches!(self.kind, Kind::Lines | Kind::Stacked | Kind::Bars)
    }

    /// Returns true if the panel counts events in intervals. The intervals are at least a minute, so each contains a
    /// scrape, and bars are not too thin.
    pub(crate) fn has_intervals(&self) -> bool {
        self.queries.iter().any(|query| query.expr.contains("$__interval"))
    }

    pub(super) fn json(&self, board: &Board, id: u32, place: &Value) -> Value {
        let over_time = self.is_over_time();
        let targets = self.queries.iter().zip('A'..).map(|(query, letter)| {
            let mut target = json!({
                "refId": letter.to_string(),
                "datasource": {"type": "prometheus", "uid": SOURCE},
                "editorMode": "code",
                "expr": board.written(&query.expr),
                "legendFormat": query.legend,
                "instant": !over_time,
                "range": over_time,
            });
            if let Kind::Table(_) = self.kind {
                target["format"] = json!("table");
            }
            target
        });
        let kind = match &self.kind {
            Kind::Stat | Kind::Word(..) => "stat",
            Kind::Lines | Kind::Stacked | Kind::Bars => "timeseries",
            Kind::Table(_) => "table",
        };
        let mut panel = json!({
            "id": id,
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "gridPos": place,
            "fieldConfig": {"defaults": self.defaults(), "overrides": self.overrides()},
            "options": self.options(place),
            "targets": targets.collect::<Vec<_>>(),
        });
        if self.has_intervals() {
            panel["interval"] = json!("1m");
        }
        if let Kind::Table(columns) = &self.kind {
            panel["transformations"] = organized(columns);
        }
        panel
    }

    fn defaults(&self) -> Value {
        let mut defaults = json!({"unit": self.unit.id(), "min": 0, "thresholds": self.steps()});
        if self.unit == Unit::Share && !self.is_over_time() {
            defaults["max"] = json!(1);
        }
        if let Some(nothing) = &self.nothing {
            defaults["noValue"] = json!(nothing);
        }
        if let Some(link) = self.link {
            defaults["links"] = json!([link.json()]);
        }
        if self.is_over_time() {
            defaults["color"] = shades();
            defaults["custom"] = self.drawn();
            // Some shares can exceed 1, such as the keys of a table together with those in its overflow.
            if self.unit == Unit::Share {
                defaults["custom"]["axisSoftMax"] = json!(1);
            }
        } else {
            defaults["color"] = json!({"mode": "thresholds"});
        }
        match &self.kind {
            Kind::Bars => defaults["decimals"] = json!(0),
            Kind::Word(one, zero) => {
                let words = json!({"1": {"text": one, "index": 0}, "0": {"text": zero, "index": 1}});
                defaults["mappings"] = json!([{"type": "value", "options": words}]);
            }
            _ => {}
        }
        defaults
    }

    /// The style of lines.
    fn drawn(&self) -> Value {
        let bars = self.kind == Kind::Bars;
        let adds_up = bars || self.kind == Kind::Stacked;
        json!({
            "drawStyle": if bars { "bars" } else { "line" },
            "lineWidth": if bars { 0 } else { 1 },
            "showPoints": "never",
            "spanNulls": false,
            "fillOpacity": if bars { 80 } else if adds_up { 40 } else { 8 },
            "stacking": {"mode": if adds_up { "normal" } else { "none" }, "group": "A"},
            "thresholdsStyle": {"mode": if self.thresholds.1.is_empty() { "off" } else { "dashed" }},
        })
    }

    fn steps(&self) -> Value {
        let (less, steps) = &self.thresholds;
        let steps = steps.iter().map(|(from, colour)| json!({"value": from, "color": colour.id()}));
        let all = std::iter::once(json!({"value": null, "color": less.id()})).chain(steps);
        json!({"mode": "absolute", "steps": all.collect::<Vec<_>>()})
    }

    /// The overrides for the series with fixed colours.
    fn overrides(&self) -> Vec<Value> {
        if !self.is_over_time() {
            return Vec::new();
        }
        let legends: Vec<_> = self.queries.iter().map(|query| query.legend.as_str()).collect();
        fixed(&legends).map(|(name, colour)| colour.of_series(name)).collect()
    }

    fn options(&self, place: &Value) -> Value {
        match &self.kind {
            Kind::Stat | Kind::Word(..) => json!({
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                "textMode": "value_and_name",
                "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "wideLayout": false,
            }),
            Kind::Lines | Kind::Stacked | Kind::Bars => {
                // A wide panel has its legend as a table at the right, with the height of the panel. A narrow panel has
                // it as a list below the graph.
                let wide = place["w"].as_u64().is_some_and(|width| width >= 12);
                let legend = if wide {
                    // Grafana's names of the value, and of its column.
                    let (value, column) =
                        if self.kind == Kind::Bars { ("sum", "Total") } else { ("lastNotNull", "Last *") };
                    json!({
                        "displayMode": "table", "placement": "right", "calcs": [value], "showLegend": true,
                        "sortBy": column, "sortDesc": true,
                    })
                } else {
                    json!({"displayMode": "list", "placement": "bottom", "calcs": [], "showLegend": true})
                };
                json!({"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}})
            }
            Kind::Table(_) => json!({"showHeader": true, "cellHeight": "sm", "sortBy": []}),
        }
    }
}

/// The transformation that shows only these columns, in this order.
fn organized(columns: &[(String, String)]) -> Value {
    let names = columns.iter().map(|(label, heading)| (label.clone(), json!(heading)));
    let order = columns.iter().zip(0..).map(|((label, _), place)| (label.clone(), json!(place)));
    json!([{
        "id": "organize",
        "options": {
            "excludeByName": {"Time": true, "Value": true},
            "renameByName": names.collect::<serde_json::Map<_, _>>(),
            "indexByName": order.collect::<serde_json::Map<_, _>>(),
        },
    }])
}
