//! Converts questions and answers to messages of `weir-wire` and back. A message comes from another process, so its
//! numbers are checked: the arithmetic of this crate never overflows with the numbers that pass.

use weir_wire::{BanChange, BanPart, Granted, NextQuestion, Question, Returned};

use crate::{
    ban::EncodedBan,
    key::Key,
    state::{Mark, Reach},
    take::{EncodedReply, EncodedTake, LARGEST_REACH, LONGEST_PATIENCE, Next},
    terms::{EXACT, MOST_UNITS, StoreLimit, StoreTerms, text_of},
};

impl EncodedTake {
    /// The message that asks this question about a key.
    pub fn message(&self, id: u64, key: &Key) -> Question {
        let (counters, hash) = key.parts();
        Question {
            id,
            counters: counters.to_owned(),
            hash: hash.to_owned(),
            stamp: self.stamp,
            limits: text_of(&self.limits),
            requests: self.requests,
            cost: self.cost,
            patience_micros: self.patience,
            prefetch: self.prefetch,
            guard_micros: self.reach.guard,
            lookahead_micros: self.reach.lookahead,
            owed: self.owed,
            credit: self.credit,
            seen: self.seen.clone(),
            returned: self.returned.clone().map(|(birth, units, ends)| Returned { birth, units, ends }),
            ban: self.ban.map(|ban| ban.message()),
        }
    }

    /// Reads a question and its key.
    ///
    /// # Errors
    ///
    /// The name of the invalid field.
    pub fn read(message: &Question) -> Result<(Key, Self), &'static str> {
        let hash = u128::from_str_radix(&message.hash, 16).map_err(|_| "hash")?;
        let key = Key::new(&message.counters, hash).map_err(|_| "counters")?;
        let terms = StoreTerms::parse(message.stamp, &message.limits).ok_or("limits")?;
        let most = u64::from(MOST_UNITS);
        if message.cost == 0 || message.cost > most {
            return Err("cost");
        }
        let fits = |marks: &[Mark]| are_valid(marks, terms.raw());
        if message.seen.as_deref().is_some_and(|marks| !fits(marks)) {
            return Err("seen");
        }
        let is_valid = |returned: &Returned| {
            returned.birth < 2 * EXACT && (1..=most).contains(&returned.units) && fits(&returned.ends)
        };
        if message.returned.as_ref().is_some_and(|returned| !is_valid(returned)) {
            return Err("returned");
        }
        let returned = message.returned.clone().map(|Returned { birth, units, ends }| (birth, units, ends));
        let ban = match &message.ban {
            None => None,
            Some(part) => Some(EncodedBan::read(part).ok_or("ban")?),
        };
        let encoded = Self {
            stamp: message.stamp,
            limits: terms.raw().to_vec(),
            requests: message.requests.min(most / message.cost),
            cost: message.cost,
            patience: message.patience_micros.min(LONGEST_PATIENCE),
            prefetch: message.prefetch.min(most),
            reach: Reach {
                guard: message.guard_micros.min(LARGEST_REACH),
                lookahead: message.lookahead_micros.min(LARGEST_REACH),
            },
            owed: message.owed.min(most),
            credit: message.credit.min(most),
            seen: message.seen.clone(),
            returned,
            ban,
        };
        Ok((key, encoded))
    }
}

impl EncodedBan {
    fn message(&self) -> BanPart {
        let change = match self.started {
            Some(ago) => BanChange::Start(ago),
            None if self.is_lifted => BanChange::Lift,
            None => BanChange::Keep,
        };
        BanPart { for_micros: self.length, change, seen: self.seen }
    }

    fn read(message: &BanPart) -> Option<Self> {
        let started = if let BanChange::Start(ago) = message.change { Some(ago) } else { None };
        Self::new(message.for_micros, started, message.change == BanChange::Lift, message.seen)
    }
}

impl EncodedReply {
    /// The message with this answer.
    pub fn message(self) -> Granted {
        let [served, lent, level] = self.marks;
        Granted {
            granted: self.granted,
            prefetched: self.prefetched,
            time: self.time,
            birth: self.birth,
            next: match self.next {
                Next::Now => NextQuestion::Now,
                Next::At(at) => NextQuestion::At(at),
                Next::Never => NextQuestion::Never,
            },
            stamp: self.stamp,
            limits: self.limits.as_deref().map(text_of),
            served,
            lent,
            level,
            banned_since: self.banned_since,
            reserved: self.reserved,
        }
    }

    /// Reads the answer to a question. None if the message is not an answer to it.
    pub fn read(message: Granted, question: &EncodedTake) -> Option<Self> {
        let limits = match &message.limits {
            Some(text) => Some(StoreTerms::parse(message.stamp, text)?.raw().to_vec()),
            None => None,
        };
        let of = limits.as_deref().unwrap_or(&question.limits);
        let marks = [message.served, message.lent, message.level];
        let times = [
            message.banned_since,
            message.time,
            message.birth,
            if let NextQuestion::At(at) = message.next { at } else { 0 },
        ];
        if !marks.iter().all(|marks| are_valid(marks, of)) || times.iter().any(|&time| time >= 2 * EXACT) {
            return None;
        }
        Some(Self {
            granted: message.granted,
            prefetched: message.prefetched,
            time: message.time,
            birth: message.birth,
            next: match message.next {
                NextQuestion::Now => Next::Now,
                NextQuestion::At(at) => Next::At(at),
                NextQuestion::Never => Next::Never,
            },
            stamp: message.stamp,
            limits,
            marks,
            banned_since: message.banned_since,
            reserved: message.reserved,
        })
    }
}

/// Returns true if there is one mark for each limit, and all numbers are in the range of a store's script.
fn are_valid(marks: &[Mark], limits: &[StoreLimit]) -> bool {
    let is_valid = |(mark, limit): (&Mark, &StoreLimit)| {
        let [_, parts, _] = mark;
        mark.iter().all(|&number| number < 2 * EXACT) && (!limit.is_bucket() || *parts < limit.requests)
    };
    marks.len() == limits.len() && marks.iter().zip(limits).all(is_valid)
}

#[cfg(test)]
mod tests {
    use weir_fuzz::Random;

    use super::*;
    use crate::{model::take, value::Value};

    /// A number that a hostile program could choose: often near a bound.
    fn number(random: &mut Random) -> u64 {
        let bounds = [0, 1, 2, 1_000, 1 << 20, 1 << 32, EXACT, 2 * EXACT, u64::MAX, 1_790_000_000_000_000];
        let near = bounds[random.below(bounds.len())];
        match random.below(4) {
            0 => near.wrapping_add(random.below(3) as u64),
            1 => near.wrapping_sub(random.below(3) as u64),
            2 => near,
            _ => random.below(1_000_000) as u64,
        }
    }

    fn marks(random: &mut Random, count: usize) -> Vec<Mark> {
        (0..count).map(|_| [number(random), number(random), number(random)]).collect()
    }

    fn question(random: &mut Random) -> Question {
        let limits = [
            "0 3 1 10000 100 0", "1 0 5000 60000000 5000 0", "2 1 7 1000000 7 0", "3 2 8192 3600000000 8192 0",
            "4 5 1 333333 1 0", "5 6 3 1000000 64 0", "6 4 1 180000000 5 50",
        ];
        let count = 1 + random.below(3);
        let first = random.below(limits.len() - count);
        Question {
            id: number(random),
            counters: "shop/api.all".to_owned(),
            hash: format!("{:x}", number(random)),
            stamp: 1 + random.below(3) as u64,
            limits: limits[first..first + count].join(","),
            requests: number(random),
            cost: number(random),
            patience_micros: number(random),
            prefetch: number(random),
            guard_micros: number(random),
            lookahead_micros: number(random),
            owed: number(random),
            credit: number(random),
            seen: (random.below(3) == 0).then(|| marks(random, count)),
            returned: (random.below(3) == 0).then(|| Returned {
                birth: number(random),
                units: number(random),
                ends: marks(random, count),
            }),
            ban: (random.below(3) == 0).then(|| BanPart {
                for_micros: number(random),
                change: [BanChange::Keep, BanChange::Start(number(random)), BanChange::Lift][random.below(3)],
                seen: number(random),
            }),
        }
    }

    /// The operator survives questions with any numbers, and agents can read its answers.
    #[test]
    fn hostile_numbers_are_refused_or_counted() {
        let (mut counted, mut refused) = (0, 0);
        for seed in 0..2_000 {
            let mut random = Random::new(seed);
            let (mut value, mut now) = (None::<Value>, 1_790_000_000_000_000);
            for _ in 0..20 {
                let question = question(&mut random);
                let Ok((_, encoded)) = EncodedTake::read(&question) else {
                    refused += 1;
                    continue;
                };
                let outcome = take(value.as_ref(), &encoded, now);
                let again = EncodedReply::read(outcome.answer.clone().message(), &encoded);
                if let Some(answer) = &again {
                    assert_eq!(*answer, outcome.answer, "{question:?}");
                }
                counted += 1;
                value = Some(outcome.value);
                now += random.below(100_000_000) as u64;
            }
        }
        assert!(counted > 5_000 && refused > 5_000, "{counted} counted, {refused} refused");
    }
}
