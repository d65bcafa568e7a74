//! Decides on the arrivals in the traces of other implementations. Each decision must equal the decision in the trace.
//!
//! The traces are in `traces/`, with the programs that wrote them. A difference is accepted only if the exact model
//! (fractions, without rounding) shows that the arrival is within [`Trace::tolerance`] of the time at which the
//! decision changes. After a difference, the test makes the limiter follow the trace, so that one difference does not
//! hide the next. Differences are counted, and their number is bounded. Some differences come from other definitions:
//!
//! - **Go's `x/time/rate`** counts in floating point and truncates waits to whole nanoseconds, so it admits requests up
//!   to a nanosecond early. Weir rounds waits up.
//! - **`x/time/rate` with a clock that runs backwards** refills the repeated time twice, so it admits more than burst
//!   and rate allow. A clock runs backwards if two threads read it and then race for the lock. Weir gives a late
//!   reading only the capacity that was left at its own time. governor decides as Weir does, to the nanosecond.
//! - **governor** truncates the emission interval to whole nanoseconds when a quota is created (7 per second:
//!   142,857,142 ns). Its traces have whole intervals, and all decisions agree.
//! - **limits' moving window** counts a request that is exactly one period old. Weir does not count it: a period is
//!   half open, so that `n` per second does not mean `n` in a second and a nanosecond.
//! - **limits' sliding window counter** rounds the weighted sum down before it adds the cost, so it exceeds the limit
//!   by less than one request. Its traces contain only arrivals for which the rounding makes no difference. The traces
//!   of the exact definition contain arbitrary arrivals.
#![cfg(not(loom))]

use std::time::Duration;

use weir_core::{Charge, Limiter, Quota, Strategy, Time};

use self::model::Model;

#[expect(dead_code, reason = "these tests use only a part of this module")]
mod model;

/// The decisions of one implementation for one limit.
struct Trace {
    name: &'static str,
    quota: Quota,
    /// The time at which the limiter is created, before any arrival: a clock cannot run back beyond this time.
    made: Time,
    arrivals: Vec<Arrival>,
    /// The number of nanoseconds around the boundary in which another decision is accepted.
    tolerance: u64,
}

#[derive(Clone, Copy)]
struct Arrival {
    now: u64,
    asked: Asked,
}

#[derive(Clone, Copy)]
enum Asked {
    Allow {
        cost: u64,
        admitted: bool,
    },
    /// A reservation, with its wait. None if it was refused.
    Reserve {
        cost: u64,
        wait: Option<u64>,
    },
    /// Cancels the granted reservation of this number.
    Cancel(usize),
}

/// The differences between a limiter and a trace.
#[derive(Debug, Default, PartialEq, Eq)]
struct Followed {
    decisions: usize,
    /// Requests that Weir admits and the trace refuses. The tolerance permits them.
    earlier: usize,
    /// Requests that the trace admits and Weir refuses. The tolerance permits them.
    later: usize,
    /// Reservations whose waits differ. The tolerance permits them.
    waits: usize,
}

const X_TIME_RATE: &str = include_str!("traces/x-time-rate.txt");
const GOVERNOR: &str = include_str!("traces/governor.txt");
const WINDOWS: &str = include_str!("traces/windows.txt");

/// The start time of Go's traces. The other traces contain their start time.
const START: u64 = 1_700_000_000_000_000_000;

fn traces(text: &'static str, start: u64) -> Vec<Trace> {
    let mut traces: Vec<Trace> = Vec::new();
    let made = Time::from_nanos(start).saturating_sub(Duration::from_hours(24 * 100));
    let mut now = start;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&'static str> = line.split(' ').collect();
        let number = |place: usize| words[place].parse::<u64>().unwrap_or_else(|_| panic!("no number: {line}"));
        if words[0] == "=" {
            let strategy = Strategy::ALL.into_iter().find(|strategy| format!("{strategy:?}") == words[1]);
            let strategy = strategy.unwrap_or_else(|| panic!("no strategy: {line}"));
            let burst = Some(number(4)).filter(|&burst| burst > 0);
            let quota = Quota::new(strategy, number(2), Duration::from_nanos(number(3)), burst).expect("valid");
            traces.push(Trace { name: line, quota, made, arrivals: Vec::new(), tolerance: 0 });
            now = start;
            continue;
        }
        let wait: i64 = words[0].parse().unwrap_or_else(|_| panic!("no wait: {line}"));
        now = now.checked_add_signed(wait).expect("a moment");
        let asked = match words[1] {
            "allow" => Asked::Allow { cost: number(2), admitted: words[3] == "yes" },
            "reserve" => Asked::Reserve { cost: number(2), wait: (words[3] != "no").then(|| number(3)) },
            "cancel" => Asked::Cancel(number(2).try_into().expect("a small number")),
            other => panic!("unknown request: {other}"),
        };
        traces.last_mut().expect("a limit before its arrivals").arrivals.push(Arrival { now, asked });
    }
    traces
}

impl Trace {
    fn runs_backwards(&self) -> bool {
        self.name.ends_with(" backwards")
    }

    /// Decides each arrival with the limiter.
    fn follow(&self) -> Followed {
        let mut followed = Followed::default();
        let limiter = Limiter::new(self.made, self.quota);
        // The model does not support cancelled reservations, so it is used only until the first one.
        let mut model = Some(Model::new(self.quota));
        let mut granted: Vec<Option<Charge>> = Vec::new();
        // The time that a cancelled reservation gives back is truncated to whole nanoseconds again.
        let mut tolerance = self.tolerance;
        for (line, &Arrival { now, asked }) in self.arrivals.iter().enumerate() {
            let (at, place) = (Time::from_nanos(now), format!("{}, arrival {line}", self.name));
            let soon = Time::from_nanos(now + tolerance);
            followed.decisions += 1;
            match asked {
                Asked::Allow { cost, admitted } => match (limiter.charge(at, cost), admitted) {
                    (Ok(_), true) => charge(&mut model, now, cost),
                    (Err(_), false) => {}
                    (Ok(early), false) => {
                        limiter.refund(early.charge, || at);
                        let before = now - tolerance;
                        let near = tolerance > 0
                            && model.as_ref().map_or_else(
                                || limiter.charge(Time::from_nanos(before), cost).is_err(),
                                |model| !model.admits(before, cost),
                            );
                        assert!(near, "{place}: admitted here, refused in the trace");
                        followed.earlier += 1;
                    }
                    (Err(refused), true) => {
                        let near = tolerance > 0
                            && model.as_ref().is_none_or(|model| model.admits(now + tolerance, cost))
                            && limiter.reserve(at, cost, soon).is_ok();
                        assert!(near, "{place}: {refused}, but admitted in the trace");
                        charge(&mut model, now, cost);
                        followed.later += 1;
                    }
                },
                Asked::Reserve { cost, wait } => match (limiter.reserve(at, cost, Time::from_nanos(u64::MAX)), wait) {
                    (Ok(reserved), Some(wait)) => {
                        let ours = reserved.at.duration_since(at).as_nanos();
                        assert!(
                            ours.abs_diff(u128::from(wait)) <= u128::from(tolerance),
                            "{place}: {ours} ns, {wait} in the trace"
                        );
                        followed.waits += usize::from(ours != u128::from(wait));
                        charge(&mut model, now, cost);
                        granted.push(Some(reserved.charge));
                    }
                    (Err(_), None) => {}
                    (ours, wait) => panic!("{place}: {ours:?}, {wait:?} in the trace"),
                },
                Asked::Cancel(number) => {
                    limiter.refund(granted[number].take().expect("cancelled once"), || at);
                    model = None;
                    tolerance += self.tolerance;
                }
            }
        }
        followed
    }

    /// Returns the arrivals that Weir admits, and the arrivals that the other implementation admitted, with time and
    /// cost.
    fn admitted(&self) -> [Vec<(u64, u64)>; 2] {
        let limiter = Limiter::new(self.made, self.quota);
        let [mut here, mut there] = [Vec::new(), Vec::new()];
        for &Arrival { now, asked } in &self.arrivals {
            let Asked::Allow { cost, admitted } = asked else { panic!("a reservation in {}", self.name) };
            if limiter.charge(Time::from_nanos(now), cost).is_ok() {
                here.push((now, cost));
            }
            if admitted {
                there.push((now, cost));
            }
        }
        [here, there]
    }

    /// Returns true if in some span of time more was admitted than the burst plus the flow of this time and one
    /// nanosecond.
    fn is_too_much(&self, mut admitted: Vec<(u64, u64)>) -> bool {
        admitted.sort_unstable();
        let (requests, period) = (u128::from(self.quota.requests()), self.quota.period().as_nanos());
        (0..admitted.len()).any(|first| {
            let mut sum = 0;
            admitted[first..].iter().any(|&(at, cost)| {
                sum += u128::from(cost);
                let stretch = u128::from(at - admitted[first].0) + 2;
                sum * period > u128::from(self.quota.burst()) * period + stretch * requests
            })
        })
    }
}

fn charge(model: &mut Option<Model>, now: u64, cost: u64) {
    if let Some(model) = model {
        model.charge(now, now, cost);
    }
}

/// Follows all traces and adds up the differences.
fn follow(traces: impl IntoIterator<Item = Trace>, tolerance: u64) -> Followed {
    traces.into_iter().fold(Followed::default(), |sum, trace| {
        let followed = Trace { tolerance, ..trace }.follow();
        Followed {
            decisions: sum.decisions + followed.decisions,
            earlier: sum.earlier + followed.earlier,
            later: sum.later + followed.later,
            waits: sum.waits + followed.waits,
        }
    })
}

#[test]
fn go_x_time_rate_decides_the_same() {
    let forwards = traces(X_TIME_RATE, START).into_iter().filter(|trace| !trace.runs_backwards());
    assert_eq!(follow(forwards, 1), Followed { decisions: 5_013, earlier: 0, later: 200, waits: 134 });
}

#[test]
fn go_x_time_rate_refills_twice_when_time_runs_backwards() {
    let backwards: Vec<_> = traces(X_TIME_RATE, START).into_iter().filter(Trace::runs_backwards).collect();
    let mut too_much = 0;
    for trace in &backwards {
        let [here, there] = trace.admitted();
        assert!(!trace.is_too_much(here), "{}", trace.name);
        too_much += usize::from(trace.is_too_much(there));
    }
    assert_eq!(
        (too_much, backwards.len()),
        (6, 10),
        "traces in which x/time/rate admits more than burst and rate allow"
    );
}

#[test]
fn governor_decides_the_same() {
    assert_eq!(follow(traces(GOVERNOR, 0), 0), Followed { decisions: 3_360, ..Followed::default() });
}

#[test]
fn windows_decide_the_same() {
    let of = |strategy| traces(WINDOWS, 0).into_iter().filter(move |trace| trace.quota.strategy() == strategy);
    let exactly = Followed { decisions: 1_225, ..Followed::default() };
    assert_eq!(follow(of(Strategy::FixedWindow), 0), exactly);
    let twice = Followed { decisions: 2 * 1_225, ..Followed::default() };
    assert_eq!(follow(of(Strategy::SlidingWindowCounter), 0), twice);
    assert_eq!(follow(of(Strategy::SlidingWindowLog), 1), Followed { earlier: 51, ..exactly });
}
