//! Limits without tower: one decision on one limit, keyed tables, and whether the limit was held.

mod contenders;
mod decision;
mod exact;
mod hammer;
mod keyed;
mod keys;
mod ours;
mod stores;

use crate::report::Report;

pub use self::keyed::count_bytes;

const ABOUT: &str = "\
One decision on one limit, admitted and denied apart, by 1 to 8 threads on the same limit; how many were admitted of \
those that were allowed; and tables of limits by key. Weir's rows hold what a user pays: \
`MonotonicClock::now` and `Limiter::check`, or `RuleLimiter::charge`, standing and retry-after included. Each contender \
has its default clock; the yardstick is reading a clock and deciding nothing. Time is an argument of Weir's, so one row \
has it on the clock that governor and shot-limit read (quanta). No speed counts without the limit held: \
the exact counts stand beside it.";

const METHOD: &str = "\
Contenders take turns of some milliseconds, round by round, each round begun by another; a figure is the median of its \
turns, ± half of what lies between their quartiles; in the JSON beside this file each has its lowest and highest, too. \
Ratios and differences are worked out in each round, between turns that are less than a second apart, and then their \
median is taken: what else runs on the machine disturbs both alike, so they hold where the figures themselves swing, and \
are not always what the figures beside each other would give. The best peer is the one with the worst ratio for Weir. \
The rule is the same for everybody, and no turn is left out.";

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("core", "Decisions", ABOUT, quick)?;
    report.written_by("cargo xtask bench core", METHOD);
    // Measured separately: over-admission decides which peers are exact.
    let exact = exact::measure(quick);
    decision::measure(quick, &exact, &mut report);
    exact.report(&mut report);
    keyed::measure(quick, &mut report)?;
    Ok(report)
}
