//! Compares the admissions of all agents with the limit, in whole numbers. It shares no code with what it judges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A bucket, which is full at first.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SharedLimit {
    /// The number of requests in each period, and the capacity of the bucket.
    pub(crate) requests: u64,
    pub(crate) millis: u64,
}

/// An admitted request: its key, when it was asked about, and when it was admitted, in microseconds.
pub(crate) type Admission = (u32, u64, u64);

impl SharedLimit {
    fn period(self) -> u64 {
        self.millis * 1_000
    }

    /// The most that the limit admits within this time, in microseconds.
    pub(crate) fn most(self, micros: u64) -> u64 {
        self.requests
            + u64::try_from(u128::from(self.requests) * u128::from(micros) / u128::from(self.period()))
                .unwrap_or(u64::MAX)
    }
}

/// The most by which any key exceeds its limit in any time.
pub(crate) fn excess(admitted: &[Admission], limit: SharedLimit) -> u64 {
    let mut by_key: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for &(key, begun, ended) in admitted {
        by_key.entry(key).or_default().push((begun, ended));
    }
    by_key.into_values().map(|times| excess_of(times, limit)).max().unwrap_or_default()
}

/// The decision on a request happens at some moment between its two times. So if both times of a request are between
/// two moments *a* and *b*, the request was admitted between *a* and *b*. There, the limit allows
/// `requests + requests × (b - a) / period`. Only the starts of requests matter as *a*, and only their ends as *b*.
fn excess_of(mut times: Vec<(u64, u64)>, limit: SharedLimit) -> u64 {
    times.sort_unstable();
    let first = times.first().map_or(0, |(begun, _)| *begun);
    let (requests, period) = (i128::from(limit.requests), i128::from(limit.period()));
    let mut by_end: Vec<_> = (0..times.len()).collect();
    by_end.sort_unstable_by_key(|place| times[*place].1);
    let mut counts = Counts::new(times.len());
    let mut most = 0;
    for place in by_end {
        let (begun, ended) = times[place];
        counts.begin(place, requests * i128::from(begun - first));
        counts.add_until(place + 1, period);
        most = most.max(counts.highest() - requests * (i128::from(ended - first) + period));
    }
    u64::try_from((most + period - 1) / period).unwrap_or(u64::MAX)
}

/// A tree with a number for each place. It can raise the numbers of all places before a given one in a few steps, and
/// it knows the highest number.
struct Counts {
    size: usize,
    /// Added to all places below a node, and the highest below it with that.
    nodes: Vec<(i128, i128)>,
}

/// Lower than all numbers of places that have begun.
const NEVER: i128 = i128::MIN / 4;

impl Counts {
    fn new(places: usize) -> Self {
        let size = places.next_power_of_two();
        Self { size, nodes: vec![(0, NEVER); 2 * size] }
    }

    fn highest(&self) -> i128 {
        self.nodes[1].1
    }

    /// Lets a place begin with this number, and what was added to it before.
    fn begin(&mut self, place: usize, number: i128) {
        let mut node = place + self.size;
        self.nodes[node].1 += number - NEVER;
        while node > 1 {
            node /= 2;
            self.refresh(node);
        }
    }

    /// Adds `number` to all entries before `end`.
    fn add_until(&mut self, end: usize, number: i128) {
        let (mut node, mut width, mut rest) = (1, self.size, end);
        loop {
            if rest >= width {
                self.raise(node, number);
                break;
            }
            width /= 2;
            if rest <= width {
                node *= 2;
            } else {
                self.raise(2 * node, number);
                rest -= width;
                node = 2 * node + 1;
            }
        }
        while node > 1 {
            node /= 2;
            self.refresh(node);
        }
    }

    fn raise(&mut self, node: usize, number: i128) {
        self.nodes[node].0 += number;
        self.nodes[node].1 += number;
    }

    fn refresh(&mut self, node: usize) {
        self.nodes[node].1 = self.nodes[node].0 + self.nodes[2 * node].1.max(self.nodes[2 * node + 1].1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: SharedLimit = SharedLimit { requests: 100, millis: 1_000 };

    fn at_once(count: u64, begun: u64, ended: u64) -> impl Iterator<Item = Admission> {
        (0..count).map(move |_| (7, begun, ended))
    }

    #[test]
    fn a_burst_at_any_time_is_compared() {
        let late = 5_000_000;
        let of = |count| excess(&at_once(count, late, late + 3).collect::<Vec<_>>(), LIMIT);
        assert_eq!((of(100), of(101), of(130)), (0, 1, 30));
        // What was not used for ten seconds is lost.
        let all: Vec<_> = at_once(1, 0, 1).chain(at_once(101, 10_000_000, 10_000_000)).collect();
        assert_eq!(excess(&all, LIMIT), 1);
        assert_eq!(excess(&[], LIMIT), 0);
    }

    #[test]
    fn a_request_can_be_admitted_at_any_moment_between_its_times() {
        // The last one may have been admitted after 10 ms.
        let all: Vec<_> = at_once(100, 0, 5).chain(at_once(1, 0, 10_000)).collect();
        assert_eq!(excess(&all, LIMIT), 0);
        let all: Vec<_> = at_once(100, 0, 5).chain(at_once(1, 0, 9_999)).collect();
        assert_eq!(excess(&all, LIMIT), 1);
    }

    #[test]
    fn each_key_has_a_limit_of_its_own() {
        let all: Vec<_> = at_once(100, 0, 1).chain((0..100).map(|_| (8, 0, 1))).collect();
        assert_eq!(excess(&all, LIMIT), 0);
    }

    /// All pairs of moments, one after the other.
    fn slow(times: &[(u64, u64)], limit: SharedLimit) -> u64 {
        let mut most = 0;
        for a in times.iter().map(|time| time.0) {
            for b in times.iter().map(|time| time.1).filter(|b| *b >= a) {
                let count = times.iter().filter(|(begun, ended)| *begun >= a && *ended <= b).count() as u64;
                let period = limit.millis * 1_000;
                let allowed = limit.requests * period + limit.requests * (b - a);
                most = most.max((count * period).saturating_sub(allowed).div_ceil(period));
            }
        }
        most
    }

    #[test]
    fn it_finds_what_a_slow_search_finds() {
        let mut state = 1_u64;
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        let mut found = 0;
        for size in (1..60).chain(1..60) {
            let limit = SharedLimit { requests: 1 + random(5), millis: 1 };
            let times: Vec<_> = (0..size)
                .map(|_| {
                    let begun = random(8_000);
                    (begun, begun + random(300))
                })
                .collect();
            let expected = slow(&times, limit);
            assert_eq!(excess_of(times.clone(), limit), expected, "{times:?} {limit:?}");
            found += u64::from(expected > 0);
        }
        assert!(found > 20, "{found}");
    }
}
