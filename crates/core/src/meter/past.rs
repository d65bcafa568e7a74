//! What a limit still knows of the time before the quota in force. A change of the quota seals the old words; from them and
//! from what came before, the first state of the new ones is worked out here. Plain numbers: no atomics, no clock.
//!
//! The words of a strategy hold what that strategy asks about. Another one asks about other stretches of time: a window of
//! an hour about what a bucket admitted in that hour. So a limit that was changed keeps a *past*: at which moments how many
//! requests were admitted, newest last. A moment is never earlier than the true one and a count never lower, so that no
//! change admits too much. How far they are off:
//!
//! - A log knows its moments. A window knows its count, so a change within a window is exact, and older windows count as
//!   full: under overload they are. A bucket knows how much it was used since any moment, and is exact where it never was
//!   full, so always under overload.
//! - A past of too many moments ([`Memory`]) joins those that lie close together for their age.
//!
//! Windows that follow each other every period admit a burst in each. A bucket that takes turns with them would add its own
//! flow to that: so tokens are counted through the reign of a window, too, which may leave a debt. A window that was in
//! force for a period or longer leaves what is left of it, and no debt.

use super::epoch::Epoch;
use crate::supply::Tokens;
use crate::{Quota, Strategy, Time};

/// How much of the past is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// What one limit has room for: 512 moments, before some are joined.
    Many,
    /// What each key of a table has room for: 128 moments.
    Few,
    /// Nothing.
    None,
}

/// Parts of a request in tokens that no bucket counts.
const PARTS: u64 = 1 << 32;

/// So that no sum overflows.
const MOST_OWED: i128 = -(1 << 94);

/// What was admitted before a quota took over, and the words that it began with.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// When the quota took over.
    pub(super) began: u64,
    /// Whether there was none before it.
    pub(super) is_first: bool,
    /// The words then, as many as there are of these; of a log the requests in it, and those of the log before.
    pub(super) first: [u64; 2],
    /// What a bucket would have left.
    pub(super) tokens: Tokens,
    /// By how many parts of a request a bucket that took over has more: it must not owe for too long.
    pub(super) forgiven: i128,
    pub(super) spans: Vec<Span>,
}

/// So many requests, at this moment or before, and after the one of the span before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) count: u64,
}

impl Past {
    /// Of a limit that was just made: nothing was admitted before.
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

    /// Of a limit of which nothing is known but its words, and that other terms were in force until it began.
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

    /// The moments of the newest requests, without the first few of them, newest first.
    pub(super) fn moments(&self, without: u64) -> impl Iterator<Item = u64> {
        let mut skip = without;
        self.spans.iter().rev().flat_map(move |span| {
            let skipped = skip.min(span.count);
            skip -= skipped;
            (skipped..span.count).map(move |_| span.at)
        })
    }

    /// Adds what was admitted since.
    pub(super) fn with(&self, epoch: &Epoch<'_>, memory: Memory) -> Vec<Span> {
        let mut spans = self.spans.clone();
        epoch.append_to(&mut spans);
        let most = if memory == Memory::Few { 128 } else { 512 };
        // Where the clock was set back, what came before counts as of now.
        let mut last = 0;
        for span in &mut spans {
            last = span.at.min(epoch.since).max(last);
            span.at = last;
        }
        let mut share = 64;
        while spans.len() > most && share > 0 {
            spans = joined(&spans, epoch.since, share);
            share -= share.div_ceil(4);
        }
        spans
    }

    /// What a bucket would have left after the reign of a window that admitted `admitted` in all, and of which `left` is
    /// left now, or owed. A fixed window may leave a debt.
    pub(super) fn tokens_after(&self, quota: Quota, since: u64, admitted: u64, left: i128) -> Tokens {
        let (parts, length) = (i128::from(PARTS), since.saturating_sub(self.began));
        let (left, had) = (left * parts, self.tokens.in_units(PARTS));
        let flown = had.saturating_add(flow(quota, length));
        // What was owed before stays owed until it has flowed in.
        let least = left.saturating_add(flown.min(0));
        if self.is_first || length >= quota.period_nanos() || left < 0 {
            return Tokens { parts: least.max(MOST_OWED), unit: PARTS };
        }
        let late = (i128::from(quota.requests()) * parts).max(had).min(flown) - i128::from(admitted) * parts;
        let parts = if quota.strategy() == Strategy::FixedWindow { late } else { late.max(least) };
        Tokens { parts: parts.max(MOST_OWED), unit: PARTS }
    }

    /// What a bucket of this quota has left that takes over from a window with `rest` to go. What the window leaves may be
    /// owed for that long and no longer: then it would have been open again. But it is not forgotten.
    pub(super) fn forgive(&mut self, quota: Quota, rest: u64) -> Tokens {
        let (parts, debt) = (self.tokens.in_units(PARTS), i128::from(quota.debt()) * i128::from(PARTS));
        let least = -flow(quota, rest) - debt;
        self.forgiven = (least - parts).max(0);
        Tokens { parts: parts.max(least), unit: PARTS }
    }

    /// What a bucket has left without what it was forgiven.
    pub(super) fn unforgiven(&self, tokens: Tokens) -> Tokens {
        Tokens { parts: (tokens.in_units(PARTS) - self.forgiven).max(MOST_OWED), unit: PARTS }
    }
}

/// What flows in, in parts of a request.
fn flow(quota: Quota, nanos: u64) -> i128 {
    let (requests, period) = (i128::from(quota.requests()) * i128::from(PARTS), i128::from(quota.period_nanos()));
    let nanos = i128::from(nanos);
    (requests / period * nanos).saturating_add(requests % period * nanos / period)
}

/// Joins neighbours that are closer together than this share of their age.
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
