//! What a limit still knows of the time before the quota in force. A change of the quota seals the old words. From
//! these words and from what came before, this module computes the first state of the new words. Plain numbers: no
//! atomics, no clock.
//!
//! The words of a strategy hold only what that strategy needs. Another strategy needs the admissions of another span of
//! time: a window of one hour needs what a bucket admitted in that hour. So a changed limit keeps a *history*: how many
//! requests were admitted at which times, newest last. A time is never earlier than the real one and a count never
//! lower, so that no change admits too much. How exact they are:
//!
//! - A log knows its times. A window knows its count, so a change within a window is exact; older windows count as
//!   full, which they are under overload. A bucket knows how much was used since any time, and is exact if it was never
//!   full, so always under overload.
//! - A history with too many times ([`Memory`]) merges those that are close together for their age.
//!
//! Windows that alternate with a bucket admit a burst in each period, and the bucket would add its own flow. So tokens
//! are also counted while a window is in force, which may leave a debt. A window that was in force for one period or
//! longer passes on what is left of it, and no debt.

use crate::{Quota, Strategy, Time, supply::Tokens};

/// How many times a history keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// What one limit has room for: 512 times, before some are merged.
    Many,
    /// What each key of a table has room for: 128 times.
    Few,
    /// Nothing.
    None,
}

/// Parts of one request, for tokens while no bucket is in force.
const PARTS: u64 = 1 << 32;

/// A bound that keeps sums from overflowing.
const MOST_OWED: i128 = -(1 << 94);

/// What was admitted before a quota came into force, and the first words under it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// When the quota came into force.
    pub(super) began: u64,
    /// Whether it was the limit's first quota.
    pub(super) is_first: bool,
    /// The first words, if there are at most two; for a log, the requests in it and how many of them are from the log
    /// before.
    pub(super) first: [u64; 2],
    /// What a bucket would have left.
    pub(super) tokens: Tokens,
    /// How many parts of a request were given to a bucket that took over, so that its debt does not last too long.
    pub(super) forgiven: i128,
    pub(super) spans: Vec<Span>,
}

/// This many requests, at this time or before, and after the time of the previous span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) count: u64,
}

impl History {
    /// For a limit that was just created: nothing was admitted before.
    pub(crate) fn none(quota: Quota, began: Time) -> Self {
        let full = i128::from(quota.burst()) * i128::from(PARTS);
        Self {
            began: began.as_nanos(),
            is_first: true,
            first: [0; 2],
            tokens: Tokens { parts: full, unit: PARTS },
            forgiven: 0,
            spans: Vec::new(),
        }
    }

    /// For a limit of which only the words are known, and that had other terms until `began`.
    pub(crate) fn unknown(began: Time) -> Self {
        Self {
            began: began.as_nanos(),
            is_first: false,
            first: [0; 2],
            tokens: Tokens { parts: 0, unit: PARTS },
            forgiven: 0,
            spans: vec![Span { at: began.as_nanos(), count: u64::MAX >> 1 }],
        }
    }

    /// How many requests were admitted at `moment` or later.
    pub(super) fn admitted_since(&self, moment: u64) -> u64 {
        let newest = self.spans.iter().rev().take_while(|span| span.at >= moment);
        newest.fold(0, |sum, span| sum.saturating_add(span.count))
    }

    /// The times of requests, newest first. The newest `without` requests are left out.
    pub(super) fn moments(&self, without: u64) -> impl Iterator<Item = u64> {
        let mut skip = without;
        self.spans.iter().rev().flat_map(move |span| {
            let skipped = skip.min(span.count);
            skip -= skipped;
            (skipped..span.count).map(move |_| span.at)
        })
    }

    /// What a bucket would have left after a window that admitted `admitted` in all. `left` is what the window has left
    /// now; it is negative for a debt, which a fixed window may leave.
    pub(super) fn tokens_after(&self, quota: Quota, since: u64, admitted: u64, left: i128) -> Tokens {
        let (parts, length) = (i128::from(PARTS), since.saturating_sub(self.began));
        let (left, had) = (left * parts, self.tokens.in_units(PARTS));
        let flown = had.saturating_add(flow(quota, length));
        // An earlier debt stays until it has been refilled.
        let least = left.saturating_add(flown.min(0));
        if self.is_first || length >= quota.period_nanos() || left < 0 {
            return Tokens { parts: least.max(MOST_OWED), unit: PARTS };
        }
        let late = (i128::from(quota.requests()) * parts).max(had).min(flown) - i128::from(admitted) * parts;
        let parts = if quota.strategy() == Strategy::FixedWindow { late } else { late.max(least) };
        Tokens { parts: parts.max(MOST_OWED), unit: PARTS }
    }

    /// What a bucket of this quota has left when it takes over from a window that lasts for another `rest`. A debt may
    /// last for that time and no longer, because the window would have opened then. The rest of the debt is forgiven,
    /// but recorded.
    pub(super) fn forgive(&mut self, quota: Quota, rest: u64) -> Tokens {
        let (parts, debt) = (self.tokens.in_units(PARTS), i128::from(quota.debt()) * i128::from(PARTS));
        let least = -flow(quota, rest) - debt;
        self.forgiven = (least - parts).max(0);
        Tokens { parts: parts.max(least), unit: PARTS }
    }

    /// What a bucket has left, without the debt that it was forgiven.
    pub(super) fn unforgiven(&self, tokens: Tokens) -> Tokens {
        Tokens { parts: (tokens.in_units(PARTS) - self.forgiven).max(MOST_OWED), unit: PARTS }
    }
}

/// How much flows in, in parts of a request.
fn flow(quota: Quota, nanos: u64) -> i128 {
    let (requests, period) = (i128::from(quota.requests()) * i128::from(PARTS), i128::from(quota.period_nanos()));
    let nanos = i128::from(nanos);
    (requests / period * nanos).saturating_add(requests % period * nanos / period)
}
