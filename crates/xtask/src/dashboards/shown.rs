//! Checks the page's report: every panel has data, no text is cut off, and each colour has one meaning.

use std::collections::BTreeMap;

use super::{
    grafana::{APART, Board, Colour, FIXED, Kind, Panel, RESERVED, distance},
    page::{Entry, Shown, ShownPanel},
};

/// Lists all faults, with their places.
pub(super) fn faults(boards: &[Board], shown: &[Shown]) -> Vec<String> {
    let mut all = Vec::new();
    for board in boards {
        for theme in ["light", "dark"] {
            let here = format!("{} in {theme}", board.uid);
            match shown.iter().find(|shown| shown.uid == board.uid && shown.theme == theme) {
                None => all.push(format!("{here}: not shown")),
                Some(shown) => {
                    all.extend(shown.errors.iter().map(|error| format!("{here}: the console shows: {error}")));
                    let of_board = board.panels().flat_map(|panel| of_panel(panel, shown));
                    all.extend(of_board.map(|fault| format!("{here}: {fault}")));
                }
            }
        }
    }
    all
}

fn of_panel(panel: &Panel, shown: &Shown) -> Vec<String> {
    let Some(found) = shown.panels.iter().find(|found| found.title == panel.title) else {
        return vec![format!("{}: not shown", panel.title)];
    };
    let mut faults = Vec::new();
    if let Some(text) = &found.empty {
        faults.push(format!("shows nothing but {text:?}"));
    } else if let Kind::Stat | Kind::Word(..) = &panel.kind {
        faults.extend(of_values(panel, found, &shown.colours));
    } else if let Kind::Table(columns) = &panel.kind {
        // A label that no series has gets no column.
        let first = found.rows.first().map_or("", String::as_str);
        let rest = columns.iter().fold(first, |rest, (_, heading)| rest.strip_prefix(heading).unwrap_or(rest));
        if first.is_empty() || !rest.is_empty() || found.rows.len() < 2 {
            faults.push(format!("shows the rows {:?}", found.rows));
        }
    } else {
        faults.extend(of_lines(found, &shown.colours));
    }
    faults.extend(found.overflows.iter().map(|text| format!("has no room for {text:?}")));
    faults.extend(found.unknown_unit.iter().map(|unit| format!("Grafana does not know the unit {unit}")));
    faults.into_iter().map(|fault| format!("{}: {fault}", panel.title)).collect()
}

/// Checks that each large value has the colour of its threshold.
fn of_values(panel: &Panel, found: &ShownPanel, colours: &BTreeMap<String, String>) -> Vec<String> {
    if found.values.is_empty() {
        return vec!["shows no value".to_owned()];
    }
    let wrong = found.values.iter().filter_map(|value| {
        let wanted = colours.get(panel.colour_at(value.number).id());
        let (title, number, colour) = (&value.title, value.number, &value.colour);
        (wanted != Some(colour)).then(|| format!("{title} is {number} in {colour}, not in {wanted:?}"))
    });
    wrong.collect()
}

/// Checks that a panel has lines, and that no other series looks like a decision.
fn of_lines(found: &ShownPanel, colours: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    if found.canvases == 0 || found.legend.is_empty() {
        faults.push(format!("draws {} canvases with {} series", found.canvases, found.legend.len()));
    }
    for Entry { name, colour } in &found.legend {
        if let Some((_, _, wanted)) = FIXED.into_iter().find(|(fixed, _, _)| fixed == name) {
            if colours.get(wanted.id()) != Some(colour) {
                faults.push(format!("{name} is {colour}, not {}", described(wanted, colours)));
            }
        } else if let Some(near) = RESERVED.into_iter().find(|reserved| looks_like(colour, colours.get(reserved.id())))
        {
            faults.push(format!("{name} is {colour}, which looks like {}", described(near, colours)));
        }
    }
    faults
}

/// Returns true if two colours are too similar. The colours are in the format of the browser.
fn looks_like(one: &str, other: Option<&String>) -> bool {
    match (rgb(one), other.and_then(|other| rgb(other))) {
        (Some(one), Some(other)) => distance(one, other) < APART,
        _ => false,
    }
}

/// Parses a colour such as `rgb(1, 2, 3)`.
fn rgb(colour: &str) -> Option<[u8; 3]> {
    let values = colour.strip_prefix("rgb(")?.strip_suffix(')')?.split(", ").map(|value| value.parse().ok());
    values.collect::<Option<Vec<_>>>()?.try_into().ok()
}

fn described(colour: Colour, colours: &BTreeMap<String, String>) -> String {
    let shade = colours.get(colour.id()).map_or("which the board does not have", String::as_str);
    format!("{} ({shade})", colour.id())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BOARD: &str = "
        {uid: b, title: B, description: '', variables: [], selector: '', rows: [{title: R, height: 4, panels: [
            {kind: Stat, title: Share, unit: Share, description: '', queries: [], thresholds: [Fault, [[1.0, Good]]]},
            {kind: Lines, title: Lines, unit: Count, description: '', queries: []},
            {kind: !Table [[a, A], [b, B]], title: Table, unit: Count, description: '', queries: []},
        ]}]}";

    fn found(change: impl Fn(&mut serde_json::Value)) -> Vec<String> {
        let both = ["light", "dark"].map(|theme| {
            let mut shown = json!({
                "uid": "b", "theme": theme, "errors": [],
                "colours": {"light-green": "rgb(0, 9, 0)", "#ba2e19": "rgb(200, 0, 40)", "#fb9a23": "rgb(255, 120, 10)"},
                "panels": [
                    {"title": "Share", "values": [{"title": "2 of 2", "number": 1.0, "colour": "rgb(0, 9, 0)"}]},
                    {"title": "Lines", "canvases": 1, "legend": [
                        {"name": "limited", "colour": "rgb(255, 120, 10)"}, {"name": "mine", "colour": "rgb(1, 1, 1)"},
                    ]},
                    {"title": "Table", "rows": ["AB", "12"]},
                ],
            });
            for panel in shown["panels"].as_array_mut().expect("panels") {
                for (field, value) in [("canvases", json!(0)), ("rows", json!([])), ("values", json!([])), ("legend", json!([])), ("overflows", json!([]))] {
                    if panel[field].is_null() {
                        panel[field] = value;
                    }
                }
            }
            if theme == "dark" {
                change(&mut shown);
            }
            serde_json::from_value(shown).expect("a report of a page")
        });
        faults(&[serde_yaml::from_str(BOARD).expect("a board")], &both)
    }

    #[test]
    fn a_page_that_shows_everything_has_no_fault() {
        assert_eq!(found(|_| {}), [""; 0]);
    }

    #[test]
    fn every_fault_is_found_with_its_place() {
        type Change = fn(&mut serde_json::Value);
        let cases: [(Change, &str); 9] = [
            (|page| page["uid"] = json!("other"), "b in dark: not shown"),
            (|page| page["errors"] = json!(["oh"]), "b in dark: the console shows: oh"),
            (|page| page["panels"][1]["empty"] = json!("No data"), "b in dark: Lines: shows nothing but \"No data\""),
            (|page| page["panels"][1]["canvases"] = json!(0), "b in dark: Lines: draws 0 canvases with 2 series"),
            (|page| page["panels"][1]["overflows"] = json!(["mine"]), "b in dark: Lines: has no room for \"mine\""),
            (
                |page| page["panels"][1]["legend"][0]["colour"] = json!("rgb(1, 1, 1)"),
                "b in dark: Lines: limited is rgb(1, 1, 1), not #fb9a23 (rgb(255, 120, 10))",
            ),
            (
                |page| page["panels"][1]["legend"][1]["colour"] = json!("rgb(250, 110, 30)"),
                "b in dark: Lines: mine is rgb(250, 110, 30), which looks like #fb9a23 (rgb(255, 120, 10))",
            ),
            (
                |page| page["panels"][0]["values"][0]["number"] = json!(0.5),
                "b in dark: Share: 2 of 2 is 0.5 in rgb(0, 9, 0), not in Some(\"rgb(200, 0, 40)\")",
            ),
            (|page| page["panels"][2]["rows"] = json!(["AB"]), "b in dark: Table: shows the rows [\"AB\"]"),
        ];
        for (change, expected) in cases {
            assert_eq!(found(change), [expected]);
        }
    }
}
