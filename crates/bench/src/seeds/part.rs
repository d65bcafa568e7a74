//! What one seed adds to the report: its number stands before each title and name.

use crate::report::{Bars, Lines, Report, Table};

pub(super) struct Part<'a> {
    pub(super) report: &'a mut Report,
    pub(super) number: &'static str,
}

impl Part<'_> {
    pub(super) fn aim(&mut self, aim: &str, found: impl Into<String>, met: bool) {
        self.report.aim(format!("{}: {aim}", self.number), found, met);
    }

    pub(super) fn table(&mut self, table: Table) {
        self.report.table(Table { title: format!("{}: {}", self.number, table.title), ..table });
    }

    pub(super) fn bars(&mut self, bars: Bars) {
        let (name, title) = (format!("{}-{}", self.number, bars.name), format!("{}: {}", self.number, bars.title));
        self.report.chart(Bars { name, title, ..bars });
    }

    pub(super) fn lines(&mut self, lines: Lines) {
        let (name, title) = (format!("{}-{}", self.number, lines.name), format!("{}: {}", self.number, lines.title));
        self.report.chart(Lines { name, title, ..lines });
    }

    pub(super) fn versions(&mut self, versions: impl IntoIterator<Item = (String, String)>) {
        self.report.add_versions(versions);
    }
}
