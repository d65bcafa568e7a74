//! Prints the output for people: a table with a line for each second, notes and a summary. Without a terminal, it is
//! plain text.

use std::{
    cell::RefCell,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use super::{
    Figures, TOLERANCE,
    agents::{Agent, Enforcement},
    policy::{Limit, PolicyFile},
    rates::{Interval, show},
    record::Recording,
    style::Style,
};
use crate::clock;

/// The output stream. It uses colours only on a terminal.
pub(crate) struct Screen {
    to_stderr: bool,
    colours: bool,
    /// The lines so far, if they are recorded.
    recording: Option<RefCell<Recording>>,
}

impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        let terminal = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        Self { to_stderr: json, colours: terminal && std::env::var_os("NO_COLOR").is_none(), recording: None }
    }

    /// Starts to record every line, with its time.
    pub(super) fn record(&mut self) {
        self.recording = Some(RefCell::default());
    }

    /// The recording, if there is one.
    pub(super) fn recording(self) -> Option<Recording> {
        self.recording.map(RefCell::into_inner)
    }

    pub(crate) fn note(&self, text: &str) {
        self.line(Style::Dim, text);
    }

    pub(crate) fn header(&self) {
        self.line(Style::Bold, "    time    offered    allowed    limited    enforcing    revision");
    }

    pub(crate) fn row(&self, second: u64, counts: &Interval, enforcement: &Enforcement) {
        let Interval { offered, allowed, limited, .. } = counts;
        let enforcing = format!("{}/{}", enforcement.enforcing, enforcement.agents);
        let revision = enforcement.revision.as_deref().unwrap_or("-");
        self.line(
            Style::Plain,
            &format!("{second:>6} s {offered:>10} {allowed:>10} {limited:>10} {enforcing:>12}    {revision}"),
        );
    }

    pub(crate) fn changed(&self, before: &Limit, after: &Limit, took: Duration, agents: usize) {
        self.line(
            Style::Bold,
            &format!(
                "         policy.yaml rewritten: {before} -> {after}; the last of {agents} agents enforced it {:.1} ms later",
                took.as_secs_f64() * 1e3
            ),
        );
    }

    pub(super) fn summary(&self, figures: &Figures, enforced: &str, agrees: bool) {
        let Figures { offered, allowed, limited, propagation_ms, agents, .. } = figures;
        self.line(Style::Plain, "");
        self.line(Style::Plain, &format!("requests      {offered} offered, {allowed} allowed, {limited} limited"));
        for (when, limit, measured) in [
            ("before", figures.limit_before, figures.measured_before),
            ("after ", figures.limit_after, figures.measured_after),
        ] {
            let off = (measured - limit) / limit * 100.0;
            self.line(
                Style::Plain,
                &format!("rate {when}   policy {}/s, measured {measured:.1}/s ({off:+.1} %)", show(limit)),
            );
        }
        self.line(
            Style::Plain,
            &format!("propagation   {propagation_ms} ms from the write of the file to the last of {agents} agents"),
        );
        self.line(Style::Plain, &format!("status file   {enforced} agents enforce the newest revision"));
        let percent = TOLERANCE * 100.0;
        if agrees {
            self.line(Style::Good, &format!("OK: measured agrees with the policy within {percent} %"));
        } else {
            self.line(Style::Bad, &format!("FAILED: measured differs from the policy by more than {percent} %"));
        }
    }

    pub(crate) fn failed(&self, error: &anyhow::Error, logs: &[(String, String)]) {
        for (name, tail) in logs {
            self.line(Style::Dim, &format!("--- end of the log of {name}\n{tail}"));
        }
        self.line(Style::Bad, &format!("FAILED: {error:#}"));
    }

    pub(crate) fn try_by_hand(&self, agents: &[Agent], policy: &PolicyFile) {
        let Some(agent) = agents.first() else { return };
        let (listen, control, telemetry) = (agent.listen, agent.control, agent.telemetry);
        let (policy, status) = (policy.path.display(), policy.status().display().to_string());
        self.line(Style::Bold, "\nstill up; Ctrl-C ends it. Try:");
        for text in [
            format!("curl -i http://{listen}/                       # a request through the first agent"),
            format!("for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' http://{listen}/; done"),
            format!("curl -s http://{control}/v1/status             # the policies in force, and the counts"),
            format!("curl -s http://{control}/v1/config             # the snapshot in force"),
            format!(
                "curl -s http://{control}/v1/config | curl -i -X PUT --data-binary @- http://{control}/v1/config   # the same snapshot again changes nothing"
            ),
            format!("curl -s http://{telemetry}/metrics | grep ^weir_"),
            format!("sed -i 's/requests: .*/requests: 3/' {policy}     # or use your editor"),
            format!("cat {status}"),
        ] {
            self.line(Style::Plain, &format!("  {text}"));
        }
        for (number, agent) in agents.iter().enumerate().skip(1) {
            self.line(
                Style::Plain,
                &format!("  # agent {}: http://{} control http://{}", number + 1, agent.listen, agent.control),
            );
        }
    }

    fn line(&self, style: Style, text: &str) {
        if let Some(recording) = &self.recording {
            recording.borrow_mut().line(clock::now(), style, text);
        }
        let code = if self.colours { style.code() } else { "" };
        let end = if code.is_empty() { "" } else { "\x1b[0m" };
        // An error is ignored: if the reader of the output has ended, the demo must still stop its processes.
        let _ = if self.to_stderr {
            writeln!(std::io::stderr(), "{code}{text}{end}")
        } else {
            writeln!(std::io::stdout(), "{code}{text}{end}")
        };
    }
}
