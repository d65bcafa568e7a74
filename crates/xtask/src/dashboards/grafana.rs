//! A dashboard as Grafana reads it, from the few things that differ between panels.
//!
//! Every panel has a unit, a description and a legend, because its constructor asks for them. Places are given in rows
//! from left to right, so that no panel lies over another.

use serde_json::{Value, json};

/// Grafana's grid is so many columns wide.
const COLUMNS: u32 = 24;

/// What a panel shows of the data source of the board.
const SOURCE: &str = "${datasource}";

/// A page.
pub(crate) struct Board {
    /// Also the name of its file.
    pub(crate) uid: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) variables: &'static [Variable],
    /// Marked in every panel over time.
    pub(crate) annotation: Option<Annotation>,
    pub(crate) rows: Vec<Row>,
}

/// What a reader chooses at the top of a page.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// `label_values(…)` of a series that only exists where there is something to choose.
    pub(crate) query: &'static str,
    /// Several at once, and all of them to begin with.
    pub(crate) many: bool,
}

/// Moments that a query finds.
pub(crate) struct Annotation {
    pub(crate) name: &'static str,
    pub(crate) expr: &'static str,
    pub(crate) text: &'static str,
}

/// Panels beside each other.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) height: u32,
    pub(crate) panels: Vec<Panel>,
}

/// One picture.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) unit: Unit,
    pub(crate) kind: Kind,
    pub(crate) queries: Vec<Query>,
}

/// An expression, and what its series are called.
pub(crate) struct Query {
    pub(crate) expr: &'static str,
    pub(crate) legend: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The last value, large.
    Stat,
    Lines,
    /// Lines that add up.
    Stacked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Count,
    RequestsPerSecond,
    PerSecond,
    /// Of one.
    Share,
    Seconds,
    Bytes,
    Cores,
}

impl Unit {
    /// As Grafana has it.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Count | Self::Cores => "short",
            Self::RequestsPerSecond => "reqps",
            Self::PerSecond => "ops",
            Self::Share => "percentunit",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
        }
    }
}

impl Query {
    pub(crate) const fn new(expr: &'static str, legend: &'static str) -> Self {
        Self { expr, legend }
    }
}

impl Board {
    pub(crate) fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    /// The file's text.
    pub(crate) fn json(&self) -> String {
        let mut panels = Vec::new();
        let mut id = 0;
        let mut next = || {
            id += 1;
            id
        };
        let mut y = 0;
        for row in &self.rows {
            panels.push(json!({
                "id": next(), "type": "row", "title": row.title, "collapsed": false, "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            }));
            y += 1;
            let width = COLUMNS / u32::try_from(row.panels.len()).expect("a row has a handful of panels");
            for (column, panel) in (0..).zip(&row.panels) {
                panels.push(panel.json(next(), &json!({"x": column * width, "y": y, "w": width, "h": row.height})));
            }
            y += row.height;
        }
        let board = json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["weir"],
            "schemaVersion": 39,
            "editable": true,
            "graphTooltip": 1, // one cursor for all panels
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "10s",
            "timezone": "browser",
            "links": [{
                "title": "Weir", "type": "dashboards", "tags": ["weir"], "asDropdown": false, "includeVars": true,
                "keepTime": true,
            }],
            "templating": {"list": self.variables()},
            "annotations": {"list": self.annotation.iter().map(Annotation::json).collect::<Vec<_>>()},
            "panels": panels,
        });
        let mut text = serde_json::to_string_pretty(&board).expect("no map has keys that are not strings");
        text.push('\n');
        text
    }

    fn variables(&self) -> Vec<Value> {
        let source = json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0,
        });
        let chosen = self.variables.iter().map(|variable| {
            let mut value = json!({
                "name": variable.name,
                "label": variable.name,
                "type": "query",
                "datasource": {"type": "prometheus", "uid": SOURCE},
                "query": {"query": variable.query, "refId": "variable"},
                "definition": variable.query,
                "refresh": 2, // when the time range changes
                "sort": 1,
                "multi": variable.many,
                "includeAll": variable.many,
            });
            if variable.many {
                value["allValue"] = json!(".+");
                value["current"] = json!({"text": ["All"], "value": ["$__all"]});
            }
            value
        });
        std::iter::once(source).chain(chosen).collect()
    }
}

impl Annotation {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "enable": true,
            "iconColor": "blue",
            "expr": self.expr,
            "titleFormat": self.name,
            "textFormat": self.text,
            "step": "15s",
        })
    }
}

impl Panel {
    fn json(&self, id: u32, place: &Value) -> Value {
        let targets = self.queries.iter().zip('A'..).map(|(query, letter)| {
            json!({
                "refId": letter.to_string(),
                "datasource": {"type": "prometheus", "uid": SOURCE},
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": self.kind == Kind::Stat,
                "range": self.kind != Kind::Stat,
            })
        });
        let mut defaults = json!({"unit": self.unit.id(), "min": 0});
        if self.unit == Unit::Share {
            defaults["max"] = json!(1);
        }
        let options = if self.kind == Kind::Stat {
            json!({
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                "textMode": "value_and_name", "colorMode": "value", "graphMode": "none",
            })
        } else {
            let stacking = if self.kind == Kind::Stacked { "normal" } else { "none" };
            defaults["custom"] = json!({
                "drawStyle": "line", "lineWidth": 1, "showPoints": "never", "spanNulls": false,
                "fillOpacity": if self.kind == Kind::Stacked { 40 } else { 8 },
                "stacking": {"mode": stacking, "group": "A"},
            });
            json!({
                "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": true},
                "tooltip": {"mode": "multi", "sort": "desc"},
            })
        };
        json!({
            "id": id,
            "type": if self.kind == Kind::Stat { "stat" } else { "timeseries" },
            "title": self.title,
            "description": self.description,
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "gridPos": place,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}
