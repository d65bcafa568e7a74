//! Prepares the keys and their order before the measurements. They are the same for every contender.

use std::hash::Hash;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::stats::float;

/// The key of a client.
pub(super) trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    const NAME: &'static str;

    fn numbered(number: u64) -> Self;

    /// Calls `then` with the bytes of this key.
    fn with_bytes<T>(&self, then: impl FnOnce(&[u8]) -> T) -> T;
}

/// A key of eight bytes, such as the number of an account, or an address.
impl Key for u64 {
    const NAME: &'static str = "8 bytes";

    fn numbered(number: u64) -> Self {
        // This is a bijection, so the keys differ, and are not in order.
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
    }

    fn with_bytes<T>(&self, then: impl FnOnce(&[u8]) -> T) -> T {
        then(&self.to_ne_bytes())
    }
}

/// A key of twenty bytes with the number at its end, like typical API keys.
impl Key for String {
    const NAME: &'static str = "20 bytes";

    fn numbered(number: u64) -> Self {
        format!("client-{number:013}")
    }

    fn with_bytes<T>(&self, then: impl FnOnce(&[u8]) -> T) -> T {
        then(self.as_bytes())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Uniform,
    /// Zipf's distribution: the frequency of the n-th key is that of the first key, divided by n.
    Zipf,
}

impl Order {
    pub(super) const ALL: [Self; 2] = [Self::Uniform, Self::Zipf];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "Zipf",
        }
    }

    /// Draws this number of times from `keys` keys. The draws are the same in every run.
    pub(super) fn draw<K: Key>(self, keys: usize, draws: usize) -> Vec<K> {
        let mut random = StdRng::seed_from_u64(42);
        let sums: Vec<f64> = match self {
            Self::Uniform => Vec::new(),
            Self::Zipf => (1..=keys)
                .scan(0.0, |sum, rank| {
                    *sum += 1.0 / float(rank);
                    Some(*sum)
                })
                .collect(),
        };
        let mut number = || match sums.last() {
            None => random.random_range(0..keys),
            Some(sum) => {
                let at = random.random_range(0.0..*sum);
                sums.partition_point(|sum| *sum <= at)
            }
        };
        (0..draws).map(|_| K::numbered(number() as u64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn keys_differ_and_have_their_length() {
        assert_eq!((0..10_000).map(u64::numbered).collect::<HashSet<_>>().len(), 10_000);
        assert_eq!((0..10_000).map(String::numbered).collect::<HashSet<_>>().len(), 10_000);
        String::numbered(7).with_bytes(|bytes| assert_eq!(bytes.len(), 20));
        u64::numbered(7).with_bytes(|bytes| assert_eq!(bytes.len(), 8));
    }

    #[test]
    fn zipf_comes_as_often_as_its_rank_says() {
        let mut counts = HashMap::new();
        for key in Order::Zipf.draw::<u64>(100, 100_000) {
            *counts.entry(key).or_insert(0_i32) += 1;
        }
        let first = counts[&u64::numbered(0)];
        let tenth = counts[&u64::numbered(9)];
        assert!((first / 10 - tenth).abs() < tenth / 5, "{first} and {tenth}");
        assert!(counts.len() <= 100);
    }
}
