//! What a run prints: a line for every scenario, its measured figures below it, and the counts at the end.

use std::{fmt::Display, time::Duration};

/// A figure that a scenario has measured.
pub(crate) fn note(figure: impl Display) {
    println!("     {figure}");
}

/// A short time, for a figure.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// How one scenario ended.
pub(crate) fn ended(name: &str, took: Duration, result: &anyhow::Result<()>) {
    match result {
        Ok(()) => println!("ok {name} {:.1} s", took.as_secs_f64()),
        Err(error) => println!("FAILED {name}: {error:#} ({:.1} s)", took.as_secs_f64()),
    }
}

/// The last line.
pub(crate) fn summary(ok: usize, failed: usize, not_run: usize, took: Duration) {
    println!("e2e: {ok} ok, {failed} failed, {not_run} not run, {:.1} s", took.as_secs_f64());
}
