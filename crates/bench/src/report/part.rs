//! What one part of a benchmark adds to the report: its name stands before each title and name.

use std::path::Path;

use clap::ValueEnum;

use super::{Bars, Lines, Report, Table};

/// A part that can be measured alone: what it measures and how, and the measurement with these settings.
pub(crate) type Measured<P, Settings> = (P, &'static str, fn(Settings, &mut Part<'_>) -> anyhow::Result<()>);

pub(crate) struct Part<'a> {
    pub(crate) report: &'a mut Report,
    /// Empty if the report has no parts.
    pub(crate) name: &'a str,
}

impl Report {
    /// Measures the named parts, or all if none is named, and keeps what the folder has of the others.
    pub(crate) fn measure_parts<P: ValueEnum + PartialEq, Settings: Copy>(
        &mut self,
        parts: &[Measured<P, Settings>],
        named: &[P],
        settings: Settings,
        out: &Path,
    ) -> anyhow::Result<()> {
        let names: Vec<_> = parts.iter().filter_map(|(part, ..)| part.to_possible_value()).collect();
        let mut kept = Vec::new();
        for ((part, about, measure), name) in parts.iter().zip(&names) {
            let name = name.get_name();
            self.about += &format!("\n\n**{name}.** {about}");
            if named.is_empty() || named.contains(part) {
                measure(settings, &mut Part { report: self, name })?;
            } else {
                kept.push(name);
            }
        }
        self.keep(out, &kept)
    }
}

impl Part<'_> {
    fn title(&self, title: &str) -> String {
        if self.name.is_empty() { title.to_owned() } else { format!("{}: {title}", self.name) }
    }

    fn file(&self, name: &str) -> String {
        if self.name.is_empty() { name.to_owned() } else { format!("{}-{name}", self.name) }
    }

    pub(crate) fn aim(&mut self, aim: &str, found: impl Into<String>, met: bool) {
        self.report.aim(self.title(aim), found, met);
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.report.table(Table { title: self.title(&table.title), ..table });
    }

    pub(crate) fn bars(&mut self, bars: Bars) {
        let (name, title) = (self.file(&bars.name), self.title(&bars.title));
        self.report.chart(Bars { name, title, ..bars });
    }

    pub(crate) fn lines(&mut self, lines: Lines) {
        let (name, title) = (self.file(&lines.name), self.title(&lines.title));
        self.report.chart(Lines { name, title, ..lines });
    }

    pub(crate) fn versions<N: Into<String>>(&mut self, versions: impl IntoIterator<Item = (N, String)>) {
        self.report.add_versions(versions);
    }
}
