//! Compares figures on pages with the benchmarks. A comment after a number names its source: the suite, the table, the
//! row and the column of `docs/benchmarks/<suite>.json`. The page decides how many digits it shows, at least two.
//!
//! ```text
//! 0.78<!-- bench: proxy / CPU per request, µs / weir-agent / proxied -->
//! ```

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;
use serde::Deserialize;

const OPEN: &str = "<!-- bench: ";
const CLOSE: &str = " -->";

/// The results of all suites, by their names.
pub(super) struct Results(BTreeMap<String, Suite>);

#[derive(Deserialize)]
struct Suite {
    tables: Vec<Table>,
}

#[derive(Deserialize)]
struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    contender: String,
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cell {
    Number(f64),
    Measured {
        median: f64,
    },
    Ratio {
        ratio: f64,
    },
    /// The cell is not a number.
    Other(serde::de::IgnoredAny),
}

/// A page with the figures of the benchmarks.
pub(super) struct Renewed {
    pub(super) text: String,
    pub(super) figures: usize,
    /// The lines with faults, and the faults.
    pub(super) faults: Vec<(usize, String)>,
}

impl Results {
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut suites = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else { continue };
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let suite = serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
            suites.insert(name.to_owned(), suite);
        }
        Ok(Self(suites))
    }

    /// Replaces each marked number by the number in the benchmark.
    pub(super) fn renew(&self, page: &str) -> Renewed {
        let mut renewed = Renewed { text: String::new(), figures: 0, faults: Vec::new() };
        let mut rest = page;
        while let Some((before, marked)) = rest.split_once(OPEN) {
            let (source, after) = marked.split_once(CLOSE).unwrap_or((marked, ""));
            let shown = &before
                [before.trim_end_matches(|letter: char| letter.is_ascii_digit() || ".,".contains(letter)).len()..];
            renewed.text.push_str(before.strip_suffix(shown).unwrap_or(before));
            renewed.figures += 1;
            let (number, fault) = match self.find(source) {
                Ok(value) => {
                    let number = round(value, digits(shown));
                    let fault = (number != shown).then(|| format!("{shown:?} is {number} in the benchmark: {source}"));
                    (number, fault)
                }
                Err(fault) => (shown.to_owned(), Some(fault)),
            };
            let line = renewed.text.matches('\n').count() + 1;
            renewed.faults.extend(fault.map(|fault| (line, fault)));
            renewed.text.extend([&number, OPEN, source, CLOSE]);
            rest = after;
        }
        renewed.text.push_str(rest);
        renewed
    }

    fn find(&self, source: &str) -> Result<f64, String> {
        let [suite, table, row, column] = source.split(" / ").collect::<Vec<_>>()[..] else {
            return Err(format!("{source:?} is not: suite / table / row / column"));
        };
        let suite = self.0.get(suite).ok_or_else(|| format!("there is no docs/benchmarks/{suite}.json"))?;
        let table = only(suite.tables.iter().filter(|one| one.title == table), "table", table)?;
        let row = only(table.rows.iter().filter(|one| one.contender == row), "row", row)?;
        let cells = table.columns.iter().zip(&row.cells).filter(|(name, _)| *name == column);
        match only(cells, "column", column)?.1 {
            Cell::Number(value) | Cell::Measured { median: value } | Cell::Ratio { ratio: value } => Ok(*value),
            Cell::Other(_) => Err(format!("there is no number at {source}")),
        }
    }
}

fn only<T>(mut found: impl Iterator<Item = T>, what: &str, name: &str) -> Result<T, String> {
    let first = found.next().ok_or_else(|| format!("there is no {what} {name:?}"))?;
    if found.next().is_some() { Err(format!("more than one {what} is {name:?}")) } else { Ok(first) }
}

/// Counts the digits of a number on a page. Zeros at the end of a whole number can come from rounding, so they do not
/// count.
fn digits(shown: &str) -> i32 {
    let number = shown.replace(',', "");
    let counted = if number.contains('.') { number.as_str() } else { number.trim_end_matches('0') };
    let counted = counted.trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
    i32::try_from(counted).unwrap_or(i32::MAX).clamp(2, 6)
}

fn round(value: f64, digits: i32) -> String {
    // The number of digits before the decimal point. Rounding can add one: 9.96 becomes 10.
    let whole = |value: f64| format!("{:.0}", value.abs().log10().floor()).parse().unwrap_or(0) + 1;
    let unit = |value: f64| 10_f64.powi(digits - whole(value));
    let rounded = (value * unit(value)).round() / unit(value);
    let decimals = usize::try_from(digits - whole(rounded)).unwrap_or(0);
    let number = format!("{rounded:.decimals$}");
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let commas = whole.char_indices().map(|(at, digit)| {
        let comma = at > 0 && (whole.len() - at).is_multiple_of(3) && whole.len() > 3;
        if comma { format!(",{digit}") } else { digit.to_string() }
    });
    commas.collect::<String>() + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let text = r#"{"name": "x", "tables": [{"title": "T, µs", "columns": ["a", "b", "b"], "rows": [
            {"contender": "r", "cells": [{"median": 23.4, "low": 1.0}, 35004.0, 1.0]},
            {"contender": "s", "cells": [{"ratio": 0.779}, "word", null]}]}]}"#;
        Results(BTreeMap::from([("x".to_owned(), serde_json::from_str(text).expect("results"))]))
    }

    fn renewed(page: &str) -> (String, Vec<(usize, String)>) {
        let renewed = results().renew(page);
        (renewed.text, renewed.faults)
    }

    #[test]
    fn a_true_number_stays() {
        for shown in ["23", "23.4", "23.40"] {
            let page = format!("\nabout {shown}<!-- bench: x / T, µs / r / a --> µs\n");
            assert_eq!(renewed(&page), (page, Vec::new()));
        }
    }

    #[test]
    fn a_wrong_number_is_found_and_replaced() {
        let (text, faults) = renewed("\n| 1,024<!-- bench: x / T, µs / s / a --> | 5 |\n");
        assert_eq!(text, "\n| 0.7790<!-- bench: x / T, µs / s / a --> | 5 |\n");
        assert_eq!(faults, [(2, "\"1,024\" is 0.7790 in the benchmark: x / T, µs / s / a".to_owned())]);
        assert_eq!(renewed(&text).1, []);
    }

    #[test]
    fn a_source_that_does_not_exist_is_found() {
        for (source, fault) in [
            ("x", "\"x\" is not: suite / table / row / column"),
            ("y / T, µs / r / a", "there is no docs/benchmarks/y.json"),
            ("x / t / r / a", "there is no table \"t\""),
            ("x / T, µs / q / a", "there is no row \"q\""),
            ("x / T, µs / r / b", "more than one column is \"b\""),
            ("x / T, µs / s / c", "there is no column \"c\""),
        ] {
            let page = format!("1<!-- bench: {source} -->");
            assert_eq!(renewed(&page), (page, vec![(1, fault.to_owned())]));
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_digits_that_a_page_shows() {
        for (value, shown) in [
            (35_004.0, "35,000"),
            (78_794.0, "78,800"),
            (9.96, "10"),
            (10.35, "10.4"),
            (0.077, "0.077"),
            (168.3, "168"),
            (1_234_567.0, "1,200,000"),
            (1.0, "1.0"),
        ] {
            assert_eq!(round(value, digits(shown)), shown);
        }
    }
}
