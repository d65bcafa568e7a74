//! The *hand* of a key: the unused seats that a program holds for it.

use std::{collections::VecDeque, time::Duration};

use weir_seats::{Seats, terms::StoreTerms};

use super::request::{Clocks, micros};

/// The maximum number of runs of consecutive seats. A seat that is put back joins the run from which it was taken.
const RUNS: usize = 16;

/// The time after which seats that should be usable are dropped: the store's clock was set back. It is longer than what the
/// program does not know about the store's time.
const OVERDUE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Hand {
    runs: VecDeque<Seats>,
    /// The time on the program's clock at which a slower store's clock certainly allows all seats.
    usable_at: Duration,
}

/// The result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Seats(Seats),
    /// The hand has enough seats, but they cannot be used before this time of the store, as far as the program knows.
    Later(u64),
    Nothing,
}

impl Hand {
    /// The number of seats in the hand.
    pub(super) fn units(&self) -> u32 {
        self.runs.iter().map(Seats::left).fold(0, u32::saturating_add)
    }

    /// Adds seats, which can be used at `usable_at` at the latest, on the program's clock. Returns the number of older
    /// seats that were dropped to make room.
    pub(super) fn add(&mut self, terms: &StoreTerms, seats: Seats, usable_at: Duration) -> u32 {
        let mut rest = seats;
        if rest.left() == 0 {
            return 0;
        }
        self.usable_at = self.usable_at.max(usable_at);
        for run in &mut self.runs {
            match run.join(terms, rest) {
                None => return 0,
                Some(other) => rest = other,
            }
            let left = run.clone();
            if rest.join(terms, left).is_none() {
                *run = rest;
                return 0;
            }
        }
        if self.runs.is_empty() {
            // Most hands have one run.
            self.runs.reserve_exact(1);
        }
        self.runs.push_back(rest);
        if self.runs.len() > RUNS { self.runs.pop_front().map_or(0, |oldest| oldest.left()) } else { 0 }
    }

    /// Takes seats for a request with this cost. Also returns the number of seats that expired, or that a store's clock
    /// which was set back makes useless.
    pub(super) fn claim(&mut self, terms: &StoreTerms, cost: u32, Clocks { now, time: at }: Clocks) -> (Found, u32) {
        let (before, mut found) = (self.units(), Found::Nothing);
        self.runs.retain(|run| run.is_of(terms));
        for run in &mut self.runs {
            if let Some(seats) = run.take(terms, cost, at) {
                found = Found::Seats(seats);
                break;
            }
            if run.left() >= cost {
                let due = run.due(terms, 0, cost);
                found = match found {
                    Found::Later(earlier) if earlier <= due => Found::Later(earlier),
                    _ => Found::Later(due),
                };
            }
        }
        self.runs.retain(|run| run.left() > 0);
        if let Found::Later(due) = &mut found {
            let rest = (self.usable_at + OVERDUE).saturating_sub(now);
            *due = (*due).min(at.earliest + micros(rest));
            if rest.is_zero() {
                self.runs.clear();
                found = Found::Nothing;
            }
        }
        let used = if let Found::Seats(seats) = &found { seats.left() } else { 0 };
        (found, before.saturating_sub(self.units()).saturating_sub(used))
    }

    pub(super) fn into_seats(self) -> Vec<Seats> {
        self.runs.into()
    }
}
