//! Counts the results of the rounds of one kind of client.

use std::{cell::RefCell, time::Duration};

use serde::Serialize;

/// The maximum number of reasons that are kept.
const REASONS: usize = 3;

/// The results of one kind of client.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) does: &'static str,
    pub(super) lanes: usize,
    /// Successful rounds.
    pub(super) good: u64,
    /// Rounds that failed while the app was down or restarting.
    pub(super) app_away: u64,
    /// Rounds that failed although the app was running.
    pub(super) wrong: u64,
    /// The reasons of the first wrong rounds.
    pub(super) reasons: Vec<String>,
    pub(super) slowest: Duration,
}

/// A counter for the rounds of all lanes of a kind. The lanes run on one thread.
#[derive(Debug)]
pub(super) struct Tally(RefCell<Kind>);

impl Tally {
    pub(super) fn new(name: &'static str, does: &'static str, lanes: usize) -> Self {
        Self(RefCell::new(Kind { name, does, lanes, ..Kind::default() }))
    }

    pub(super) fn count(&self, outcome: &anyhow::Result<()>, app_stayed: bool, took: Duration) {
        let mut kind = self.0.borrow_mut();
        if app_stayed {
            kind.slowest = kind.slowest.max(took);
        }
        match outcome {
            Ok(()) => kind.good += 1,
            Err(_) if !app_stayed => kind.app_away += 1,
            Err(error) => {
                kind.wrong += 1;
                if kind.reasons.len() < REASONS {
                    eprintln!("soak: {}: {error:#}", kind.name);
                    kind.reasons.push(format!("{error:#}"));
                }
            }
        }
    }

    pub(super) fn summary(&self) -> Kind {
        self.0.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn only_the_app_excuses_a_failure() {
        let tally = Tally::new("a", "does", 1);
        let second = Duration::from_secs(1);
        tally.count(&Ok(()), true, second);
        tally.count(&Err(anyhow!("no app")), false, 9 * second);
        tally.count(&Err(anyhow!("lost")), true, 2 * second);
        let kind = tally.summary();
        assert_eq!((kind.good, kind.app_away, kind.wrong), (1, 1, 1));
        assert_eq!(kind.reasons, ["lost"]);
        assert_eq!(kind.slowest, 2 * second);
    }
}
