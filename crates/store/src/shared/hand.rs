//! The *hand* of a key: the unused seats that a program holds for it.

use std::collections::VecDeque;

use weir_seats::{Seats, StoreTime, terms::StoreTerms};

/// The maximum number of runs of consecutive seats. A seat that is put back joins the run from which it was taken.
const RUNS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Hand {
    runs: VecDeque<Seats>,
}

/// The result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Seats(Seats),
    /// The hand has enough seats, but they cannot be used before this time of the store.
    Later(u64),
    Nothing,
}

impl Hand {
    /// The number of seats in the hand.
    pub(super) fn units(&self) -> u32 {
        self.runs.iter().map(Seats::left).fold(0, u32::saturating_add)
    }

    /// Adds seats. Returns the number of older seats that were dropped to make room.
    pub(super) fn add(&mut self, terms: &StoreTerms, seats: Seats) -> u32 {
        let mut rest = seats;
        if rest.left() == 0 {
            return 0;
        }
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

    /// Takes seats for a request with this cost. Also returns the number of seats that expired.
    pub(super) fn claim(&mut self, terms: &StoreTerms, cost: u32, at: StoreTime) -> (Found, u32) {
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
        let used = if let Found::Seats(seats) = &found { seats.left() } else { 0 };
        (found, before.saturating_sub(self.units()).saturating_sub(used))
    }

    pub(super) fn into_seats(self) -> Vec<Seats> {
        self.runs.into()
    }
}
