//! Records a terminal as an animated SVG. Each line appears when it was printed.
//!
//! Viewers without animation show all lines.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout},
    time::Instant,
};

use crate::clock;

const COLUMNS: usize = 92;
/// The width of a character in pixels, in the widest of the fonts with a size of 14 pixels.
const CHARACTER: usize = 9;
const LINE: usize = 20;
const MARGIN: usize = 16;
/// The time for which the last picture stays, before the animation starts again.
const REST: Duration = Duration::from_secs(4);

/// A recording, with its lines so far.
#[derive(Clone)]
pub(crate) struct Recording {
    start: Instant,
    lines: Arc<Mutex<Vec<Line>>>,
}

struct Line {
    at: Duration,
    is_command: bool,
    text: String,
}

impl Recording {
    pub(crate) fn start() -> Self {
        Self { start: clock::now(), lines: Arc::default() }
    }

    /// Records a command that is entered now.
    pub(crate) fn command(&self, command: &str) {
        self.push(true, format!("$ {command}"));
    }

    /// Records a line that a command prints now.
    pub(crate) fn output(&self, text: &str) {
        self.push(false, text.to_owned());
    }

    /// Records the output of a program, until it ends or is killed.
    pub(crate) async fn follow(self, program: &mut Child) -> Result<()> {
        let stdout: ChildStdout = program.stdout.take().context("the program's output is not piped")?;
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await? {
            self.output(&line);
        }
        Ok(())
    }

    /// The number of lines.
    pub(crate) fn len(&self) -> usize {
        self.lines.lock().expect("not poisoned").len()
    }

    /// Writes the recording as an SVG file.
    pub(crate) fn write(&self, path: &Path, title: &str) -> Result<()> {
        let svg = svg(&self.lines.lock().expect("not poisoned"), clock::since(self.start) + REST, title)?;
        std::fs::write(path, svg).with_context(|| format!("write {}", path.display()))
    }

    fn push(&self, is_command: bool, text: String) {
        let line = Line { at: clock::since(self.start), is_command, text };
        self.lines.lock().expect("not poisoned").push(line);
    }
}

fn svg(lines: &[Line], length: Duration, title: &str) -> Result<String> {
    let (width, height) = (COLUMNS * CHARACTER + 2 * MARGIN, lines.len() * LINE + 2 * MARGIN);
    let mut style = format!(
        "text{{font:14px ui-monospace,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;fill:#d4d9e0;white-space:pre}}\
         .c{{fill:#7fd4ff}}.l{{animation-duration:{:.1}s;animation-iteration-count:infinite}}",
        length.as_secs_f64()
    );
    let mut texts = String::new();
    for (index, Line { at, is_command, text }) in lines.iter().enumerate() {
        ensure!(text.chars().count() <= COLUMNS, "more than {COLUMNS} columns: {text}");
        let from = 100.0 * at.as_secs_f64() / length.as_secs_f64();
        style += &format!("@keyframes k{index}{{0%,{from:.2}%{{opacity:0}}{:.2}%,100%{{opacity:1}}}}", from + 0.01);
        let class = if *is_command { "l c" } else { "l" };
        let y = MARGIN + LINE * index + 14;
        let text = text.trim_end().replace('&', "&amp;").replace('<', "&lt;");
        texts += &format!(
            "<text class=\"{class}\" style=\"animation-name:k{index}\" x=\"{MARGIN}\" y=\"{y}\" xml:space=\"preserve\">{text}</text>\n"
        );
    }
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{style}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#14181f\"/>\n{texts}</svg>\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: u64, is_command: bool, text: &str) -> Line {
        Line { at: Duration::from_millis(at), is_command, text: text.to_owned() }
    }

    #[test]
    fn each_line_appears_at_its_time() {
        let svg = svg(&[line(0, true, "$ a <b>"), line(2_500, false, "c")], Duration::from_secs(10), "t").unwrap();
        assert!(svg.contains(">$ a &lt;b></text>"), "{svg}");
        assert!(svg.contains("@keyframes k1{0%,25.00%{opacity:0}25.01%,100%{opacity:1}}"), "{svg}");
        assert_eq!(svg.matches("<text").count(), 2);
    }

    #[test]
    fn a_line_that_does_not_fit_is_refused() {
        assert!(svg(&[line(0, false, &"x".repeat(COLUMNS + 1))], Duration::from_secs(1), "t").is_err());
    }
}
