//! Renders the result of a check in each format.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{CheckReport, CheckResult, Checked, INVALID, NO_POLICY, OutputFormat, Problem, lint};

impl CheckReport {
    /// Returns the result in a format. The text ends with a line break.
    pub fn render(&self, format: OutputFormat) -> String {
        match format {
            OutputFormat::Text => self.text(),
            OutputFormat::Json => lines(&self.json()),
            OutputFormat::Github => self.github(),
            OutputFormat::Sarif => lines(&self.sarif()),
        }
    }

    fn problems(&self) -> impl Iterator<Item = (&Checked, &Problem)> {
        self.files.iter().flat_map(|file| file.problems.iter().map(move |problem| (file, problem)))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Checked { name, policies, problems } in &self.files {
            for problem in problems {
                let (place, warning) = (problem.finding.place, if problem.is_warning { "warning: " } else { "" });
                let _ = writeln!(text, "{name}:{place}: {warning}{}", problem.finding.fault);
            }
            if problems.iter().all(|problem| problem.is_warning) {
                let noun = if *policies == 1 { "policy" } else { "policies" };
                let _ = writeln!(text, "{name}: ok ({policies} {noun})");
            }
        }
        for (name, problem) in &self.unreadable {
            let _ = writeln!(text, "{name}: {problem}");
        }
        text
    }

    fn json(&self) -> Value {
        let problem = |problem: &Problem| {
            json!({
                "line": problem.finding.place.line,
                "column": problem.finding.place.column,
                "severity": severity(problem),
                "rule": problem.rule,
                "path": problem.finding.fault.path,
                "message": problem.finding.fault.message,
            })
        };
        let files = self.files.iter().map(|file| {
            let problems: Vec<Value> = file.problems.iter().map(problem).collect();
            json!({"file": file.name, "policies": file.policies, "problems": problems})
        });
        let unreadable = self.unreadable.iter().map(|(file, message)| json!({"file": file, "message": message}));
        let verdict = match self.result() {
            CheckResult::Good => "good",
            CheckResult::Faulty => "faulty",
            CheckResult::Unreadable => "unreadable",
        };
        json!({
            "verdict": verdict,
            "files": files.collect::<Vec<_>>(),
            "unreadable": unreadable.collect::<Vec<_>>(),
        })
    }

    fn github(&self) -> String {
        let mut text = String::new();
        for (file, problem) in self.problems() {
            let (severity, place) = (severity(problem), problem.finding.place);
            let (name, message) = (property(&file.name), data(&problem.finding.fault.to_string()));
            let _ = writeln!(text, "::{severity} file={name},line={},col={}::{message}", place.line, place.column);
        }
        for (name, problem) in &self.unreadable {
            let _ = writeln!(text, "::error file={}::{}", property(name), data(problem));
        }
        text
    }

    fn sarif(&self) -> Value {
        let mut results: Vec<Value> = Vec::new();
        for (file, problem) in self.problems() {
            let place = problem.finding.place;
            results.push(json!({
                "ruleId": problem.rule,
                "level": severity(problem),
                "message": {"text": problem.finding.fault.to_string()},
                "locations": [{"physicalLocation": {
                    "artifactLocation": {"uri": uri(&file.name)},
                    "region": {"startLine": place.line, "startColumn": place.column},
                }}],
            }));
        }
        let notifications = self.unreadable.iter().map(|(name, problem)| {
            json!({
                "level": "error",
                "message": {"text": problem},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri(name)}}}],
            })
        });
        let described = [(INVALID, "A cluster would refuse the policy."), (NO_POLICY, "A required policy is missing.")];
        let rules = described.into_iter().chain(lint::RULES);
        let rules = rules.map(|(id, text)| json!({"id": id, "shortDescription": {"text": text}}));
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {
                    "name": "weir-operator check",
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": rules.collect::<Vec<_>>(),
                }},
                "columnKind": "unicodeCodePoints",
                "invocations": [{
                    "executionSuccessful": self.unreadable.is_empty(),
                    "toolExecutionNotifications": notifications.collect::<Vec<_>>(),
                }],
                "results": results,
            }],
        })
    }
}

fn severity(problem: &Problem) -> &'static str {
    if problem.is_warning { "warning" } else { "error" }
}

fn lines(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Escapes a message for GitHub.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property for GitHub.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns a path as a relative URI reference.
fn uri(path: &str) -> String {
    let mut uri = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}
