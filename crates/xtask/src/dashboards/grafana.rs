//! Builds a dashboard in Grafana's format from the properties that differ between panels.
//!
//! Panels are arranged in rows from left to right, so they never overlap.

mod colour;
mod panel;

use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) use self::{
    colour::{APART, Colour, FIXED, RESERVED, distance},
    panel::{Kind, Panel, Query},
};

/// The number of columns in Grafana's grid.
const COLUMNS: u32 = 24;

/// The data source of all panels, which is a variable of the board.
const SOURCE: &str = "${datasource}";

/// The schema version of these dashboards. Grafana migrates older versions when it loads them.
const SCHEMA: u32 = 42;

/// A dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Board {
    /// The UID, which is also the file name.
    pub(crate) uid: String,
    title: String,
    description: String,
    /// Every board has the variable `cluster`. Series have this label only if several clusters write to one database.
    pub(crate) variables: Vec<Variable>,
    /// The label matchers that replace `LABELS` in the board's queries. They use the board's variables.
    selector: String,
    /// The annotation in every panel over time.
    pub(crate) annotation: Option<Annotation>,
    rows: Vec<Row>,
}

/// A variable, which the user chooses at the top of a page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// The query `label_values(…)` that finds the values.
    pub(crate) query: String,
    choice: Choice,
}

#[derive(PartialEq, Eq, Deserialize)]
enum Choice {
    One,
    /// The user can choose several values. Initially, all are chosen.
    Many,
    /// The user can choose one value or all. Initially, all are chosen, which includes series without the label.
    OneOrAll,
}

/// An annotation: the points in time at which a query finds a value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Annotation {
    pub(crate) name: String,
    pub(crate) expr: String,
}

/// A row of panels, from left to right.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: String,
    height: u32,
    panels: Vec<Panel>,
}

impl Board {
    pub(crate) fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    /// Converts a query to the form that Grafana requires.
    pub(crate) fn written(&self, expr: &str) -> String {
        expr.replace("LABELS", &self.selector)
    }

    /// The content of the dashboard's file.
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
            let width = COLUMNS / u32::try_from(row.panels.len()).expect("the number of panels fits 32 bits");
            for (column, panel) in (0..).zip(&row.panels) {
                let place = json!({"x": column * width, "y": y, "w": width, "h": row.height});
                panels.push(panel.json(self, next(), &place));
            }
            y += row.height;
        }
        let board = json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["weir"],
            "schemaVersion": SCHEMA,
            "editable": true,
            "graphTooltip": 1, // one cursor for all panels
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "10s",
            "timezone": "browser",
            "links": [{
                "title": "Weir", "type": "dashboards", "tags": ["weir"], "asDropdown": false, "includeVars": true,
                "keepTime": true, "icon": "external link", "targetBlank": false, "tooltip": "The other dashboards of Weir",
                "url": "",
            }],
            "templating": {"list": self.templating()},
            "annotations": {"list": self.annotation.iter().map(|it| it.json(self)).collect::<Vec<_>>()},
            "panels": panels,
        });
        let mut text = serde_json::to_string_pretty(&board).expect("all keys are strings");
        text.push('\n');
        text
    }

    fn templating(&self) -> Vec<Value> {
        let source = json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0,
        });
        std::iter::once(source).chain(self.variables.iter().map(Variable::json)).collect()
    }
}

impl Variable {
    fn json(&self) -> Value {
        let Self { name, query, choice } = self;
        let mut value = json!({
            "name": name,
            "label": name,
            "type": "query",
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "query": {"query": query, "refId": "variable"},
            "definition": query,
            "refresh": 2, // refresh when the time range changes
            "sort": 1,
            "multi": *choice == Choice::Many,
            "includeAll": *choice != Choice::One,
        });
        match choice {
            Choice::One => {}
            Choice::Many => {
                value["allValue"] = json!(".+");
                value["current"] = json!({"text": ["All"], "value": ["$__all"]});
            }
            Choice::OneOrAll => {
                value["allValue"] = json!(".*");
                value["current"] = json!({"text": "All", "value": "$__all"});
            }
        }
        value
    }
}

impl Annotation {
    fn json(&self, board: &Board) -> Value {
        json!({
            "name": self.name,
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "enable": true,
            "hide": false,
            "iconColor": Colour::Change.id(),
            "target": {"refId": "Anno", "expr": board.written(&self.expr), "interval": "15s"},
        })
    }
}
