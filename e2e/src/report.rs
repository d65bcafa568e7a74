//! Prints the output of a run: a line for each scenario, its measured figures, and a summary at the end.

use std::{fmt::Display, time::Duration};

/// Prints a measured figure of a scenario.
pub(crate) fn note(figure: impl Display) {
    println!("     {figure}");
}

/// Formats a short duration for a figure.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// Prints the outcome of one scenario.
pub(crate) fn ended(name: &str, took: Duration, result: &anyhow::Result<()>) {
    match result {
        Ok(()) => println!("ok {name} {:.1} s", took.as_secs_f64()),
        Err(error) => println!("FAILED {name}: {error:#} ({:.1} s)", took.as_secs_f64()),
    }
}

/// Prints the summary, which is the last line of the output.
pub(crate) fn summary(ok: usize, failed: usize, not_run: usize, took: Duration) {
    println!("e2e: {ok} ok, {failed} failed, {not_run} not run, {:.1} s", took.as_secs_f64());
}
