//! Writes the results of a suite in three forms: JSON for programs, Markdown for readers, and charts as SVG. All forms
//! contain the same figures, and no figure is omitted. The data of the charts are in a separate JSON file, from which
//! the charts can be drawn again.

mod machine;
mod part;
mod plot;

use std::{collections::BTreeMap, fmt::Write as _, io::ErrorKind, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use self::machine::{Machine, versions};
pub(crate) use self::{
    machine::{go_version, program_version},
    part::{Measured, Part},
    plot::{Bars, Chart, LimitLine, Lines, Series},
};
use crate::stats::{Spread, figure};

/// The description of the method of most suites.
const TAKING_TURNS: &str = "Contenders take turns, repetition by repetition. A figure is the median of the \
    repetitions, ± half of the distance between their quartiles. The JSON file also has the lowest and the highest \
    value.";

/// The folder for the data of the charts.
const CHARTS: &str = "charts";

/// The results of one suite.
#[derive(Serialize)]
pub(crate) struct Report {
    name: &'static str,
    title: &'static str,
    about: String,
    /// True for a quick run, whose figures are not meaningful.
    quick: bool,
    #[serde(skip)]
    command: String,
    /// The explanation of the figures.
    #[serde(skip)]
    method: &'static str,
    machine: Machine,
    /// The machines of the parts that this run keeps, if they were measured on another machine.
    other_machines: BTreeMap<String, Machine>,
    versions: Vec<(String, String)>,
    aims: Vec<Aim>,
    tables: Vec<Table>,
    /// Figures for programs, by name. Only the JSON contains them.
    #[serde(flatten)]
    records: BTreeMap<&'static str, serde_json::Value>,
    #[serde(skip)]
    charts: Vec<Chart>,
}

/// An aim, with the result of this run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Aim {
    pub(crate) aim: String,
    pub(crate) found: String,
    pub(crate) met: bool,
}

/// A table with contenders as rows, and figures as columns.
#[derive(Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) unit: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    pub(crate) cells: Vec<Cell>,
}

/// A cell of a table: a figure or a text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    /// The figure was not measured, because it is not meaningful for this contender.
    None,
    Measured(Spread),
    Number(f64),
    /// The figure of Weir as a multiple of a peer's figure.
    Ratio {
        ratio: f64,
    },
    Text(String),
}

impl Report {
    pub(crate) fn new(
        name: &'static str,
        title: &'static str,
        about: impl Into<String>,
        quick: bool,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            name,
            title,
            about: about.into(),
            quick,
            command: format!("cargo xtask bench {name}"),
            method: TAKING_TURNS,
            machine: Machine::read()?,
            other_machines: BTreeMap::new(),
            versions: versions()?,
            aims: Vec::new(),
            tables: Vec::new(),
            records: BTreeMap::new(),
            charts: Vec::new(),
        })
    }

    /// Sets a command and a method other than the default ones.
    pub(crate) fn written_by(&mut self, command: &str, method: &'static str) {
        command.clone_into(&mut self.command);
        self.method = method;
    }

    /// Adds figures that are only in the JSON.
    pub(crate) fn record(&mut self, name: &'static str, figures: &impl Serialize) -> anyhow::Result<()> {
        self.records.insert(name, serde_json::to_value(figures).with_context(|| format!("write {name}"))?);
        Ok(())
    }

    /// Adds versions of programs that are not dependencies of this package.
    pub(crate) fn add_versions<N: Into<String>>(&mut self, versions: impl IntoIterator<Item = (N, String)>) {
        self.versions.extend(versions.into_iter().map(|(name, version)| (name.into(), version)));
    }

    pub(crate) fn aim(&mut self, aim: impl Into<String>, found: impl Into<String>, met: bool) {
        self.aims.push(Aim { aim: aim.into(), found: found.into(), met });
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(crate) fn chart(&mut self, chart: impl Into<Chart>) {
        self.charts.push(chart.into());
    }

    /// Adds what an earlier run of this suite wrote to the folder, in each part that this run does not repeat. A part
    /// begins the text of its aims, the titles of its tables and the names of its charts with `<part>:` or `<part>-`.
    pub(crate) fn keep(&mut self, folder: &Path, kept: &[&str]) -> anyhow::Result<()> {
        let Some(earlier) = read::<Earlier>(&folder.join(format!("{}.json", self.name)))? else { return Ok(()) };
        if earlier.quick != self.quick {
            return Ok(());
        }
        let keeps = |text: &str| kept.iter().any(|part| text.starts_with(part));
        self.aims.extend(earlier.aims.into_iter().filter(|aim| keeps(&aim.aim)));
        self.tables.extend(earlier.tables.into_iter().filter(|table| keeps(&table.title)));
        let charts: Option<Vec<Chart>> = read(&folder.join(CHARTS).join(format!("{}.json", self.name)))?;
        self.charts.extend(charts.unwrap_or_default().into_iter().filter(|chart| keeps(chart.name())));
        let news =
            earlier.versions.into_iter().filter(|(name, _)| self.versions.iter().all(|(known, _)| known != name));
        let news: Vec<_> = news.collect();
        self.versions.extend(news);
        for part in kept {
            let machine = earlier.other_machines.get(*part).unwrap_or(&earlier.machine);
            if *machine != self.machine {
                self.other_machines.insert((*part).to_owned(), machine.clone());
            }
        }
        self.aims.sort_by(|one, other| part(&one.aim).cmp(part(&other.aim)));
        self.tables.sort_by(|one, other| part(&one.title).cmp(part(&other.title)));
        self.charts.sort_by(|one, other| part(one.name()).cmp(part(other.name())));
        Ok(())
    }

    /// Writes `<name>.json`, `<name>.md`, `charts/<name>.json` and the charts into the folder.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder.join(CHARTS)).with_context(|| format!("make {}", folder.display()))?;
        let put = |file: String, text: String| {
            let path = folder.join(file);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        put(format!("{}.json", self.name), serde_json::to_string_pretty(self)? + "\n")?;
        put(format!("{}.md", self.name), self.markdown())?;
        put(format!("{CHARTS}/{}.json", self.name), serde_json::to_string(&self.charts)? + "\n")?;
        draw(folder, self.name, &self.charts)?;
        eprintln!("bench: {} written to {}", self.name, folder.display());
        Ok(())
    }

    /// A sentence for each other machine, with the parts that were measured on it.
    fn other_machines(&self) -> String {
        let mut parts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (part, machine) in &self.other_machines {
            parts.entry(machine.to_string()).or_default().push(part);
        }
        parts.iter().map(|(machine, parts)| format!("{} on {machine}. ", parts.join(", "))).collect()
    }

    fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        if self.quick {
            text += "**A quick run, which only tests the benchmark: its figures are not meaningful.**\n\n";
        }
        let versions: Vec<_> = self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{}\n\nWritten by `{}` on {}. {}Versions: {}. {}\n\n",
            self.about,
            self.command,
            self.machine,
            self.other_machines(),
            versions.join(", "),
            self.method,
        );
        if !self.aims.is_empty() {
            text += "| aim | found | |\n|---|---|---|\n";
            for Aim { aim, found, met } in &self.aims {
                let found = shown(found);
                let _ = writeln!(text, "| {aim} | {found} | {} |", if *met { "met" } else { "**missed**" });
            }
            text.push('\n');
        }
        for chart in &self.charts {
            let _ = write!(text, "![{}]({})\n\n", chart.title(), chart_file(self.name, chart));
        }
        for table in &self.tables {
            table.markdown(&mut text);
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

/// What a run can keep of an earlier one.
#[derive(Deserialize)]
struct Earlier {
    quick: bool,
    machine: Machine,
    #[serde(default)]
    other_machines: BTreeMap<String, Machine>,
    versions: Vec<(String, String)>,
    aims: Vec<Aim>,
    tables: Vec<Table>,
}

/// The content of a JSON file; none if there is no such file.
fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display())).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// The part to which a title or a name belongs.
fn part(text: &str) -> &str {
    text.split([':', '-']).next().unwrap_or_default()
}

/// Draws the charts of all suites in the folder again.
pub(crate) fn redraw(folder: &Path) -> anyhow::Result<()> {
    let data = folder.join(CHARTS);
    for entry in std::fs::read_dir(&data).with_context(|| format!("list {}", data.display()))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let charts: Vec<Chart> = serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))?;
        draw(folder, name, &charts)?;
    }
    Ok(())
}

fn draw(folder: &Path, name: &str, charts: &[Chart]) -> anyhow::Result<()> {
    for chart in charts {
        let path = folder.join(chart_file(name, chart));
        std::fs::write(&path, chart.svg()).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn chart_file(name: &str, chart: &Chart) -> String {
    format!("{name}-{}.svg", chart.name())
}

/// Escapes a name such as `Mutex<HashMap>`, so that Markdown does not read it as a tag.
fn shown(name: &str) -> String {
    name.replace('<', "\\<")
}

impl Table {
    /// Creates a table without a note. The unit is the heading of the column of contenders.
    pub(crate) fn new(
        title: impl Into<String>,
        unit: &str,
        columns: impl IntoIterator<Item = impl Into<String>>,
        rows: impl IntoIterator<Item = Row>,
    ) -> Self {
        Self {
            title: title.into(),
            note: String::new(),
            unit: unit.to_owned(),
            columns: columns.into_iter().map(Into::into).collect(),
            rows: rows.into_iter().collect(),
        }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    fn markdown(&self, text: &mut String) {
        let _ = write!(text, "## {}\n\n", self.title);
        if !self.note.is_empty() {
            let _ = write!(text, "{}\n\n", self.note);
        }
        let _ = writeln!(text, "| {} | {} |", self.unit, self.columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(self.columns.len()));
        for row in &self.rows {
            let cells: Vec<_> = row.cells.iter().map(Cell::text).collect();
            let _ = writeln!(text, "| {} | {} |", shown(&row.contender), cells.join(" | "));
        }
        text.push('\n');
    }
}

impl Row {
    pub(crate) fn new(contender: impl Into<String>, cells: impl IntoIterator<Item = Cell>) -> Self {
        Self { contender: contender.into(), cells: cells.into_iter().collect() }
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Measured(spread) => measured(*spread),
            Self::Number(number) => figure(*number),
            Self::Ratio { ratio } if !ratio.is_finite() => String::new(),
            Self::Ratio { ratio } if *ratio < 10.0 => format!("{ratio:.2}×"),
            Self::Ratio { ratio } => format!("{}×", figure(*ratio)),
            Self::Text(text) => text.clone(),
        }
    }
}

/// Formats the median, with half of the interquartile range in percent of the median. If that is more than the median,
/// it shows both quartiles.
fn measured(spread: Spread) -> String {
    let [lower, upper] = spread.quartiles;
    let percent = (upper - lower) / 2.0 / spread.median * 100.0;
    let median = figure(spread.median);
    if spread.repetitions < 2 || !percent.is_finite() || percent < 0.5 {
        median
    } else if percent > 100.0 {
        format!("{median} ({} to {})", figure(lower), figure(upper))
    } else {
        format!("{median} ±{percent:.0} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_has_all_that_was_handed_in() {
        let mut report = Report::new("core", "Decisions", "What it is.", true).expect("this is a checkout");
        report.aim("faster", "2×", true);
        report.aim("smaller", "no", false);
        let spread = Spread { median: 10.0, low: 1.0, quartiles: [9.0, 11.0], high: 20.0, repetitions: 9 };
        let row = Row::new("Mutex<HashMap>", [Cell::Measured(spread), Cell::Ratio { ratio: 1.5 }, Cell::None]);
        report.table(Table::new("Admitted", "ns", ["1 thread", "ratio", "none"], [row]).note("A note."));
        let text = report.markdown();
        assert!(text.contains("its figures are not meaningful"), "{text}");
        assert!(text.contains("| faster | 2× | met |\n| smaller | no | **missed** |"), "{text}");
        assert!(text.contains("| ns | 1 thread | ratio | none |\n|---|---:|---:|---:|\n"), "{text}");
        assert!(text.contains("| Mutex\\<HashMap> | 10.0 ±10 % | 1.50× |  |"), "{text}");
        assert!(text.contains("governor 0."), "{text}");
    }

    #[test]
    fn charts_are_drawn_again_as_they_were() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let mut report = Report::new("core", "Decisions", "What it is.", true)?;
        let series = Series { name: "weir".to_owned(), points: vec![(1.0, 0.1), (2.0, 1.0 / 3.0)] };
        report.chart(Lines { name: "one".to_owned(), series: vec![series], ..Lines::default() });
        report.write(folder.path())?;
        let drawn = folder.path().join("core-one.svg");
        let first = std::fs::read_to_string(&drawn)?;
        std::fs::remove_file(&drawn)?;
        redraw(folder.path())?;
        assert_eq!(std::fs::read_to_string(&drawn)?, first);
        Ok(())
    }

    #[test]
    fn parts_that_are_not_repeated_stay_in_their_order() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let run = |parts: &[(&str, f64)], kept: &[&str]| {
            let mut report = Report::new("seeds", "Seeds", "What it is.", true)?;
            for (part, number) in parts {
                report.aim(format!("{part}: fast"), "yes", true);
                let cells = [
                    Cell::Measured(Spread::of(vec![*number])),
                    Cell::Number(*number),
                    Cell::Ratio { ratio: *number },
                    Cell::Text("so".to_owned()),
                    Cell::None,
                ];
                report.table(Table::new(format!("{part}: times"), "ms", ["x"; 5], [Row::new("weir", cells)]));
                report.chart(Lines { name: format!("{part}-times"), ..Lines::default() });
            }
            report.keep(folder.path(), kept)?;
            report.write(folder.path())?;
            anyhow::Ok(std::fs::read_to_string(folder.path().join("seeds.md"))?)
        };
        let first = run(&[("000", 1.5), ("001", 2.5), ("002", 3.5)], &[])?;
        assert_eq!(run(&[("001", 2.5)], &["000", "002"])?, first);
        let changed = run(&[("002", 7.5), ("000", 1.5)], &["001"])?;
        assert_eq!(changed, first.replace("3.5", "7.5"));

        // Figures that were measured elsewhere name that machine, as long as they are kept.
        let json = folder.path().join("seeds.json");
        let here = Machine::read()?.to_string();
        let elsewhere = serde_json::from_slice::<serde_json::Value>(&std::fs::read(&json)?)?;
        let cpu = elsewhere["machine"]["cpu"].as_str().expect("a name").to_owned();
        std::fs::write(&json, std::fs::read_to_string(&json)?.replace(&cpu, "another CPU"))?;
        let other = here.replace(&cpu, "another CPU");
        let of_two = run(&[("001", 2.5)], &["000", "002"])?;
        assert!(of_two.contains(&format!("on {here}. 000, 002 on {other}. Versions")), "{of_two}");
        let of_one = run(&[("002", 7.5)], &["000", "001"])?;
        assert!(of_one.contains(&format!("on {here}. 000 on {other}. Versions")), "{of_one}");
        Ok(())
    }

    #[test]
    fn a_wide_spread_is_told_by_its_quartiles() {
        let spread = Spread { median: 2.0, low: 1.0, quartiles: [1.0, 50.0], high: 60.0, repetitions: 3 };
        assert_eq!(measured(spread), "2.00 (1.00 to 50.0)");
        assert_eq!(measured(Spread { repetitions: 1, ..spread }), "2.00");
    }
}
