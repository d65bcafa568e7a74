//! The admissions of a limit before the quota in force. A change of the quota seals the old words. From these words and
//! from the older history, this module computes the first state of the new words. Plain numbers: no atomics, no clock.
//!
//! The words of a strategy contain only the data that this strategy needs. Another strategy needs the admissions of
//! another span of time: a window of one hour needs the admissions of a bucket in that hour. So a changed limit keeps a
//! *history*: times with the number of requests admitted at each time, newest last. No time is earlier than the real
//! time, and no count is lower than the real count, so no change admits too much. The strategies differ in how exact a
//! history is:
//!
//! - A log stores its times. A window stores its count, so a change within a window is exact. Older windows count as
//!   full, and under overload they are full. The level of a bucket determines how much was used since any time, and is
//!   exact if the bucket was never full. So it is always exact under overload.
//! - A history with too many times ([`Memory`]) merges times that are close together in relation to their age.
//!
//! A limit that alternates between a window and a bucket admits a burst in each window, and the bucket would add its
//! own flow. So the history counts the bucket's tokens also while a window is in force. They can become a debt. A
//! window passes on its remaining requests, and no debt, if it or the windows and logs directly before it were in force
//! for one of its periods or longer. So does a window if the limit was never a bucket: then no burst of a bucket is left
//! to add to.

use crate::{Quota, Strategy, Time, supply::Tokens};

/// The number of times that a history keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The memory of one limit: 512 times, before some are merged.
    Many,
    /// The memory of each key of a table: 128 times.
    Few,
    /// No times.
    None,
}

/// The number of parts into which one request is divided, to count tokens while no bucket is in force.
const PARTS: u64 = 1 << 32;

/// A bound that prevents the overflow of sums.
const MOST_OWED: i128 = -(1 << 94);

/// The admissions before a quota came into force, and the first words under this quota.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The time at which the quota came into force.
    pub(super) began: u64,
    /// The time since which only windows and logs were in force, and owed nothing to an earlier bucket. Zero if the limit
    /// was never a bucket.
    pub(super) windows_since: u64,
    /// The first words, if there are at most two. For a log, the number of requests with which it starts, and how many
    /// of them were in the previous log.
    pub(super) first: [u64; 2],
    /// The tokens that a bucket would have left.
    pub(super) tokens: Tokens,
    /// The debt that was forgiven to the bucket in force, in parts of a request, so that its debt does not last too
    /// long.
    pub(super) forgiven: i128,
    pub(super) spans: Vec<Span>,
}

/// A number of requests that were admitted after the time of the previous span, and at this time or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) count: u64,
}

impl History {
    /// Returns the history of a new limit, which has admitted nothing.
    pub(crate) fn none(quota: Quota, began: Time) -> Self {
        let full = i128::from(quota.burst()) * i128::from(PARTS);
        Self {
            began: began.as_nanos(),
            windows_since: 0,
            first: [0; 2],
            tokens: Tokens { parts: full, unit: PARTS },
            forgiven: 0,
            spans: Vec::new(),
        }
    }

    /// Returns the history of a limit whose earlier admissions, until `began`, are unknown. `is_bucketless` is true if
    /// all earlier quotas were windows or logs.
    pub(crate) fn unknown(began: Time, is_bucketless: bool) -> Self {
        Self {
            began: began.as_nanos(),
            windows_since: if is_bucketless { 0 } else { began.as_nanos() },
            first: [0; 2],
            tokens: Tokens { parts: 0, unit: PARTS },
            forgiven: 0,
            spans: vec![Span { at: began.as_nanos(), count: u64::MAX >> 1 }],
        }
    }

    /// Returns the number of requests admitted at `moment` or later.
    pub(super) fn admitted_since(&self, moment: u64) -> u64 {
        let newest = self.spans.iter().rev().take_while(|span| span.at >= moment);
        newest.fold(0, |sum, span| sum.saturating_add(span.count))
    }

    /// Returns the times of requests, newest first, without the newest `without` requests.
    pub(super) fn moments(&self, without: u64) -> impl Iterator<Item = u64> {
        let mut skip = without;
        self.spans.iter().rev().flat_map(move |span| {
            let skipped = skip.min(span.count);
            skip -= skipped;
            (skipped..span.count).map(move |_| span.at)
        })
    }

    /// Returns the tokens that a bucket would have left after windows that admitted `admitted` requests in total.
    /// `left` is the number of remaining requests in the window. For a fixed window, `left` can be negative. Then the
    /// window has debt.
    pub(super) fn tokens_after(&self, quota: Quota, since: u64, admitted: u64, left: i128) -> Tokens {
        let parts = i128::from(PARTS);
        let (left, had) = (left * parts, self.tokens.in_units(PARTS));
        let flown = had.saturating_add(flow(quota, since.saturating_sub(self.began)));
        // An earlier debt stays until it has been refilled.
        let least = left.saturating_add(flown.min(0));
        let is_paid = self.windows_since == 0 || since.saturating_sub(self.windows_since) >= quota.period_nanos();
        if is_paid || left < 0 {
            return Tokens { parts: least.max(MOST_OWED), unit: PARTS };
        }
        let late = (i128::from(quota.requests()) * parts).max(had).min(flown) - i128::from(admitted) * parts;
        let parts = if quota.strategy() == Strategy::FixedWindow { late } else { late.max(least) };
        Tokens { parts: parts.max(MOST_OWED), unit: PARTS }
    }

    /// Returns the time since which only windows and logs were in force, at the end of this quota.
    pub(super) fn windows_since_after(&self, quota: Quota, since: u64) -> u64 {
        let flown = flow(quota, since.saturating_sub(self.began));
        let owes = || self.tokens.in_units(PARTS).saturating_add(flown) < 0;
        let is_window = !quota.strategy().is_bucket();
        if is_window && (self.windows_since == 0 || !owes()) { self.windows_since } else { since }
    }

    /// Returns the tokens with which a bucket of this quota starts after a window that would end after `rest`. The debt
    /// of the bucket is at most the flow of this time, because the next window would then admit requests. The rest of
    /// the debt is forgiven, but recorded.
    pub(super) fn forgive(&mut self, quota: Quota, rest: u64) -> Tokens {
        let (parts, debt) = (self.tokens.in_units(PARTS), i128::from(quota.debt()) * i128::from(PARTS));
        let least = -flow(quota, rest) - debt;
        self.forgiven = (least - parts).max(0);
        Tokens { parts: parts.max(least), unit: PARTS }
    }

    /// Returns the tokens of a bucket, minus the debt that it was forgiven.
    pub(super) fn unforgiven(&self, tokens: Tokens) -> Tokens {
        Tokens { parts: (tokens.in_units(PARTS) - self.forgiven).max(MOST_OWED), unit: PARTS }
    }
}

/// Returns the flow during this time, in parts of a request.
fn flow(quota: Quota, nanos: u64) -> i128 {
    let (requests, period) = (i128::from(quota.requests()) * i128::from(PARTS), i128::from(quota.period_nanos()));
    let nanos = i128::from(nanos);
    (requests / period * nanos).saturating_add(requests % period * nanos / period)
}
