//! Measures limits without tower: one decision on one limit, keyed tables, and exact counts.

mod contender;
mod contenders;
mod decision;
mod exact;
mod hammer;
mod keyed;
mod keys;
mod ours;
mod stores;

pub use self::keyed::count_bytes;
use crate::report::Report;

const ABOUT: &str = "\
One decision on one limit, with 1 to 8 threads on the same limit. Admissions and denials are measured separately. The \
page also shows how many requests were admitted compared with how many were allowed, and tables of limits by key. \
Weir's rows measure what a user calls: `MonotonicClock::now` and `Limiter::charge`, or `RuleLimiter::charge`. They \
include the state of the limit and the time to retry. Each contender uses its default clock. The baseline reads a \
clock and decides nothing. Weir takes the time as an argument, so one row uses the clock of governor and shot-limit \
(quanta). Speed counts only if the limit was held, so each row also shows exact counts.";

const METHOD: &str = "\
Contenders take turns of some milliseconds, and each round begins with another contender. A figure is the median of \
the turns, ± half of the distance between their quartiles. The JSON file also has the lowest and the highest value. \
Ratios and differences are computed in each round, between turns that are less than a second apart, and the tables \
show their median. Noise on the machine affects both turns, so ratios are stable even if the figures vary, and they \
can differ from the ratio of two medians. The best peer is the one with the worst ratio for Weir. All contenders are \
measured by the same method, and every turn is included.";

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("core", "Decisions", ABOUT, quick)?;
    report.written_by("cargo xtask bench core", METHOD);
    // Exact counts are measured first, because they decide which peers count as exact.
    let exact = exact::measure(quick);
    decision::measure(quick, &exact, &mut report);
    exact.report(&mut report);
    keyed::measure(quick, &mut report)?;
    Ok(report)
}
