//! How many questions an agent may ask. Answers cost the counter's lock and processor time, which all tenants share.

use std::time::Duration;

use tokio::time::Instant;
use weir_channel::ToOperator;

/// The time after which an agent may ask one more question. At 10,000 questions a second, an agent can decide as many
/// requests with keys that no other request had. The operator answers 65,000 a second (`docs/benchmarks/fleet-limits.md`).
const QUESTION: Duration = Duration::from_micros(100);
/// The number of questions that an agent may ask at once. A new leader gets at most 65,536 levels, and the units that as
/// many shares used.
const BURST: u32 = 2 * 65_536;

/// The budget of one link. A new connection does not renew it.
#[derive(Debug)]
pub(super) struct Budget {
    /// The time at which the whole burst is available again.
    full_at: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Returns the time before which no message may be read, so that TCP slows the agent down.
    pub(super) fn read_at(&self) -> Instant {
        self.full_at - QUESTION * BURST
    }

    /// Records a message.
    pub(super) fn spend(&mut self, message: &ToOperator, now: Instant) {
        let questions = match message {
            ToOperator::Questions(questions) => questions.len().max(1),
            ToOperator::LevelsSent(_) => 1,
            _ => 0,
        };
        self.full_at = self.full_at.max(now) + QUESTION * u32::try_from(questions).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use weir_wire::{LevelsSent, MOST_QUESTIONS, Question};

    use super::*;

    fn questions(count: usize) -> ToOperator {
        let question: Question = serde_json::from_value(serde_json::json!({
            "id": 1, "counters": "shop/api.all", "hash": "1", "stamp": 1, "limits": "0 0 10 1000000000 10 0",
            "requests": 1, "cost": 1,
        }))
        .expect("a question");
        ToOperator::Questions(vec![question; count])
    }

    #[test]
    fn a_busy_agent_is_never_slowed_down() {
        let mut now = Instant::now();
        let mut budget = Budget::new(now);
        let full = questions(MOST_QUESTIONS);
        // Its levels, and then what its shares used, at once.
        for _ in 0..BURST as usize / MOST_QUESTIONS {
            assert!(budget.read_at() <= now);
            budget.spend(&full, now);
        }
        // Requests with ever new keys.
        for _ in 0..10_000 {
            now += QUESTION * 256;
            assert!(budget.read_at() <= now);
            budget.spend(&full, now);
        }
    }

    #[test]
    fn a_flood_is_read_at_the_pace_of_the_budget() {
        let begin = Instant::now();
        let sent = LevelsSent { is_complete: true, time: None, releases: 0 };
        for message in [questions(MOST_QUESTIONS), questions(0), ToOperator::LevelsSent(sent)] {
            let (mut now, mut budget, mut spent) = (begin, Budget::new(begin), 0);
            while now < begin + Duration::from_secs(60) {
                now = now.max(budget.read_at());
                budget.spend(&message, now);
                spent += if let ToOperator::Questions(questions) = &message { questions.len().max(1) } else { 1 };
            }
            // The last message can be larger than the rest of the budget, and the loop ends after its time.
            let least = BURST as usize + 60 * 10_000 - MOST_QUESTIONS;
            assert!((least..=least + 3 * MOST_QUESTIONS).contains(&spent), "{spent}");
        }
        let mut budget = Budget::new(begin);
        budget.spend(&ToOperator::Unchanged, begin);
        assert_eq!(budget.full_at, begin, "statuses have a bound of their own");
    }
}
