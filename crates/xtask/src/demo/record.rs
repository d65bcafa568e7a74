//! Records the output of the demo as an animated SVG. Every line appears when it was printed.
//!
//! The recording starts with the first line of the run, and contains all later lines.

use std::{fmt::Write as _, time::Duration};

use tokio::time::Instant;

use super::style::Style;

const WIDTH: usize = 124;
const LETTER: f64 = 7.25;
const LINE: f64 = 17.0;
const MARGIN: f64 = 14.0;

/// The lines of a run.
#[derive(Debug, Default)]
pub(super) struct Recording {
    lines: Vec<(Instant, Style, String)>,
}

impl Recording {
    pub(super) fn line(&mut self, now: Instant, style: Style, text: &str) {
        // A long line is split.
        for part in text.split('\n') {
            let letters: Vec<char> = part.chars().collect();
            let parts: Vec<String> = letters.chunks(WIDTH).map(|part| part.iter().collect()).collect();
            let empty = parts.is_empty().then(String::new);
            self.lines.extend(parts.into_iter().chain(empty).map(|part| (now, style, part)));
        }
    }

    /// Creates the SVG. It starts at the first line that contains `from`, and omits earlier lines.
    pub(super) fn svg(&self, command: &str, from: &str) -> String {
        let first = self.lines.iter().position(|(_, _, text)| text.contains(from)).unwrap_or(0);
        let lines = &self.lines[first..];
        let start = lines.first().map(|(at, ..)| *at);
        #[expect(clippy::cast_precision_loss, reason = "a hundred or so")]
        let (width, height) = (WIDTH as f64 * LETTER + 2.0 * MARGIN, (lines.len() + 1) as f64 * LINE + 2.0 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"ui-monospace, Menlo, \
             Consolas, monospace\" font-size=\"12\" fill=\"#c9d1d9\">\n<title>{command}</title>\n<style>\n\
             text {{ white-space: pre }} .bold {{ font-weight: bold }} .dim {{ fill: #8b949e }} .good {{ fill: #3fb950 }} .bad {{ fill: #f85149 }}\n\
             @media (prefers-reduced-motion: no-preference) {{ .l {{ opacity: 0; animation: come 1ms forwards }} }}\n\
             @keyframes come {{ to {{ opacity: 1 }} }}\n</style>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#0d1117\"/>\n"
        );
        let mut y = MARGIN + LINE * 0.75;
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y:.1}\" class=\"bold\">$ {}</text>", escaped(command));
        for (at, style, text) in lines {
            y += LINE;
            let after = start.map_or(Duration::ZERO, |start| at.duration_since(start)).as_secs_f64();
            let _ = writeln!(
                svg,
                "<text x=\"{MARGIN}\" y=\"{y:.1}\" class=\"l {}\" style=\"animation-delay:{after:.2}s\">{}</text>",
                style.class(),
                escaped(text)
            );
        }
        svg + "</svg>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn every_line_comes_when_it_came() {
        let mut recording = Recording::default();
        let start = clock::now();
        recording.line(start, Style::Dim, "building");
        recording.line(start + Duration::from_secs(60), Style::Plain, "up\n");
        recording.line(start + Duration::from_millis(61_500), Style::Good, &format!("a < b{}", "x".repeat(WIDTH)));
        let svg = recording.svg("cargo xtask demo", "up");
        assert!(!svg.contains("building"), "{svg}");
        assert!(svg.contains("class=\"l plain\" style=\"animation-delay:0.00s\">up</text>"), "{svg}");
        assert!(svg.contains("class=\"l good\" style=\"animation-delay:1.50s\">a &lt; bx"), "{svg}");
        // The lines are the command, "up", an empty line, and two parts of the long line.
        assert_eq!(svg.matches("<text ").count(), 5, "{svg}");
    }
}
