//! The admissions of a limit while one quota was in force, computed from its sealed words. For each time, this module
//! returns an upper bound of the admissions since that time.

use super::history::{History, Memory, Span};
use crate::supply::Supply;

/// The number of periods of a log that are examined one by one. A log has more periods only if it admitted few
/// requests.
const SOME: u64 = 64;

/// The time from one change to the next.
#[derive(Debug)]
pub(super) struct Epoch<'a> {
    pub(super) began: u64,
    pub(super) since: u64,
    /// All admitted requests, including reservations.
    pub(super) total: u64,
    /// The requests that are reserved in later windows.
    pub(super) reserved: u64,
    /// Times, each with the number of requests admitted after it, if a journal recorded the charges.
    known: Vec<Span>,
    curve: Curve<'a>,
}

/// The data from which the admissions since a time are computed.
#[derive(Debug)]
enum Curve<'a> {
    /// The level of a bucket. The admissions since a time are at most the distance of the level from the floor at that
    /// time.
    Bucket { supply: &'a Supply, level: u64 },
    /// The last window with a request. All earlier windows may have been full.
    Window { start: u64, count: u64, most: u64, period: u64 },
    /// The last window with a request, with the count of the previous window.
    Counter { start: u64, current: u64, previous: u64, most: u64, period: u64 },
    /// Times, newest first. If there are as many times as the limit allows, each request may have followed another
    /// request that was at least one period older, and so on.
    Log { moments: Vec<u64>, most: u64, period: u64 },
}

impl<'a> Epoch<'a> {
    pub(super) fn of_bucket(supply: &'a Supply, level: u64, history: &History, since: u64) -> Self {
        let now = crate::Time::from_nanos(since);
        let floor = supply.floor(now);
        let level = if supply.is_set_back(level, floor) { supply.ceiling(now) } else { level };
        let start = history.first[0].max(supply.floor(crate::Time::from_nanos(history.began)));
        let total = level.saturating_sub(start) / supply.unit();
        // Units above the ceiling belong to reservations.
        let reserved = level.saturating_sub(supply.ceiling(now).max(history.first[0])) / supply.unit();
        Self {
            began: history.began.min(since),
            since,
            total,
            reserved,
            known: Vec::new(),
            curve: Curve::Bucket { supply, level },
        }
    }

    pub(super) fn of_window(supply: &Supply, level: u64, history: &History, since: u64) -> Self {
        let now = crate::Time::from_nanos(since);
        let floor = supply.floor(now);
        let level = if supply.is_set_back(level, floor) { supply.ceiling(now) } else { level };
        let began = crate::Time::from_nanos(history.began);
        let (most, period) = (supply.quota().requests(), supply.quota().period_nanos());
        let ((first, before), (last, count)) =
            (supply.window_of(history.first[0].max(supply.floor(began))), supply.window_of(level));
        let total = match last.checked_sub(first) {
            None => 0,
            Some(0) => count.saturating_sub(before),
            Some(windows) => {
                in_windows(windows - 1, most).saturating_add(most.saturating_sub(before)).saturating_add(count)
            }
        };
        let (this, _) = supply.window_of(floor);
        let reserved = match last.checked_sub(this) {
            None | Some(0) => 0,
            Some(windows) => in_windows(windows - 1, most).saturating_add(count),
        };
        let start = supply.start_of_window(now).saturating_sub(floor).saturating_add(last.saturating_mul(period));
        let curve = Curve::Window { start, count, most, period };
        Self { began: history.began.min(since), since, total: total.max(reserved), reserved, known: Vec::new(), curve }
    }

    /// Returns the admissions of a counter with `windows` windows since the change. At the change, the current window
    /// had `before` requests.
    pub(super) fn of_counter(
        (start, current, previous): (u64, u64, u64),
        (most, period): (u64, u64),
        (windows, before): (u64, u64),
        history: &History,
        since: u64,
    ) -> Self {
        let total = match windows {
            0 => current.saturating_sub(before),
            1 => current + previous.saturating_sub(before),
            _ => in_windows(windows - 2, most)
                .saturating_add(most.saturating_sub(before))
                .saturating_add(current + previous),
        };
        let curve = Curve::Counter { start, current, previous, most, period };
        Self { began: history.began.min(since), since, total, reserved: 0, known: Vec::new(), curve }
    }

    /// Returns the admissions of a log that admitted these requests, newest first, and not more than `all`.
    pub(super) fn of_log(
        moments: Vec<u64>,
        (most, period): (u64, u64),
        all: u64,
        history: &History,
        since: u64,
    ) -> Self {
        let began = history.began.min(since);
        let total = logged(&moments, most, period, began).min(all);
        Self { began, since, total, reserved: 0, known: Vec::new(), curve: Curve::Log { moments, most, period } }
    }

    /// Adds upper bounds of the requests admitted after each of these times. The first time is before all requests.
    pub(super) fn learn(&mut self, known: Vec<Span>) {
        let all = known.first().map_or(self.total, |span| span.count);
        self.total = self.total.min(all).max(self.reserved);
        self.known = known;
    }

    /// Returns the number of requests admitted at `moment` or later.
    pub(super) fn admitted_since(&self, moment: u64) -> u64 {
        if moment <= self.began {
            return self.total;
        }
        let known = match self.known.partition_point(|span| span.at < moment) {
            0 => self.total,
            some => self.known[some - 1].count,
        };
        known.min(self.total).min(match &self.curve {
            Curve::Bucket { supply, level } => {
                level.saturating_sub(supply.floor(crate::Time::from_nanos(moment))) / supply.unit()
            }
            &Curve::Window { start, count, most, period } => {
                if moment >= start.saturating_add(period) {
                    0
                } else {
                    in_windows(start.saturating_sub(moment).div_ceil(period), most).saturating_add(count)
                }
            }
            &Curve::Counter { start, current, previous, most, period } => {
                match start.saturating_sub(moment).div_ceil(period) {
                    0 => current,
                    windows => in_windows(windows - 1, most).saturating_add(current + previous),
                }
            }
            Curve::Log { moments, most, period } => logged(moments, *most, *period, moment),
        })
    }

    /// Returns the last time since which this many requests were admitted.
    fn last_since(&self, count: u64) -> u64 {
        let (mut yes, mut no) = (self.began, self.since.saturating_add(1));
        if self.admitted_since(self.since) >= count {
            return self.since;
        }
        if let Curve::Bucket { supply, level } = &self.curve {
            let below = level.saturating_sub(count.saturating_mul(supply.unit()));
            let last = supply.last_at(below).as_nanos();
            let known = self.known.iter().find(|span| span.count < count).map_or(last, |span| span.at);
            return last.min(known).clamp(self.began, self.since);
        }
        while no - yes > 1 {
            let middle = yes + (no - yes) / 2;
            if self.admitted_since(middle) >= count { yes = middle } else { no = middle }
        }
        yes
    }

    /// Returns the admissions of the history and of this epoch.
    pub(super) fn after(&self, history: &History, memory: Memory) -> Vec<Span> {
        let mut spans = history.spans.clone();
        self.append_to(&mut spans);
        let most = if memory == Memory::Few { 128 } else { 512 };
        // If the clock was set back, earlier requests with later times count at the time of the change.
        let mut last = 0;
        for span in &mut spans {
            last = span.at.min(self.since).max(last);
            span.at = last;
        }
        let mut share = 64;
        while spans.len() > most && share > 0 {
            spans = joined(&spans, self.since, share);
            share -= share.div_ceil(4);
        }
        spans
    }

    /// Adds the admitted requests, each at the latest time at which it can have arrived. Requests that are close
    /// together get one common time.
    pub(super) fn append_to(&self, spans: &mut Vec<Span>) {
        let (mut newest_first, mut known) = (Vec::new(), 0);
        let length = self.since.saturating_sub(self.began);
        while known < self.total {
            let at = self.last_since(known + 1);
            let close = if self.total <= 256 { 0 } else { (length / 256).max(self.since.saturating_sub(at) / 32) };
            let until = self.admitted_since(at.saturating_sub(close)).max(known + 1);
            newest_first.push(Span { at, count: until - known });
            known = until;
        }
        spans.extend(newest_first.into_iter().rev());
    }
}

fn in_windows(windows: u64, most: u64) -> u64 {
    windows.saturating_mul(most)
}

/// Returns the number of requests that a log with these times, newest first, can have admitted since `since`.
fn logged(moments: &[u64], most: u64, period: u64, since: u64) -> u64 {
    let newer = |moment: u64| moments.partition_point(|&at| at >= moment) as u64;
    let (Some(&newest), Some(&oldest)) = (moments.first(), moments.last()) else { return 0 };
    if (moments.len() as u64) < most {
        return newer(since);
    }
    // In each of these periods, before the oldest known time, the log can have admitted `most` requests.
    let whole = oldest.checked_sub(since).map_or(0, |nanos| nanos / period + 1);
    let mut sum = in_windows(whole, most);
    let mut moment = since.saturating_add(whole.saturating_mul(period));
    for _ in 0..SOME {
        if moment > newest {
            return sum;
        }
        sum = sum.saturating_add(newer(moment));
        moment = moment.saturating_add(period);
    }
    sum.saturating_add(in_windows(newest.saturating_sub(moment) / period + 1, most))
}

/// Joins neighbours whose distance is less than this part of their age.
fn joined(spans: &[Span], since: u64, share: u64) -> Vec<Span> {
    let mut fewer: Vec<Span> = Vec::with_capacity(spans.len());
    let mut start = 0;
    for &span in spans {
        match fewer.last_mut() {
            Some(last) if span.at - start <= since.saturating_sub(span.at) / share => {
                *last = Span { at: span.at, count: last.count.saturating_add(span.count) };
            }
            _ => {
                start = span.at;
                fewer.push(span);
            }
        }
    }
    fewer
}
