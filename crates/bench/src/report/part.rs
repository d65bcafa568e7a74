//! What one part of a benchmark adds to the report: its name stands before each title and name.

use super::{Bars, Lines, Report, Table};

pub(crate) struct Part<'a> {
    pub(crate) report: &'a mut Report,
    /// Empty if the report has no parts.
    pub(crate) name: &'static str,
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

    pub(crate) fn versions(&mut self, versions: impl IntoIterator<Item = (String, String)>) {
        self.report.add_versions(versions);
    }
}
