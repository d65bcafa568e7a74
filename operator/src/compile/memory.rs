//! What the logs of a keyed rule take in each pod. A SlidingWindowLog remembers every request of every key, and an agent
//! lays that out when the rule comes: beside an app it must not be a surprise.

use weir_wire as wire;

use super::{faults::Faults, limits};

/// What the logs of one rule may take in each pod, in bytes.
const MOST: u64 = 128 * MIB;

const MIB: u64 = 1024 * 1024;

/// An agent has a moment of 8 bytes for each request of a log, and two words beside them.
const WORD: u64 = 8;
const WORDS_BESIDE: u64 = 2;

/// Tells the limit that takes most if all logs together take too much.
pub(super) fn check(
    limits: &[wire::Limit],
    overrides: &[wire::Override],
    max_keys: u32,
    path: &str,
    faults: &mut Faults,
) {
    // An agent has a ninth more places than keys, so that finding one is quick, and a few that are no key's own.
    let places = u64::from(max_keys) + u64::from(max_keys) / 9 + 3;
    let mut takes: Vec<(String, u64)> = Vec::new();
    for (i, limit) in limits.iter().enumerate() {
        takes.push((format!("{path}.limits[{i}]"), log(limit) * places));
    }
    for (i, entry) in overrides.iter().enumerate() {
        // Such a key has words of its own for all limits, with other numbers for some.
        let keys = entry.keys.len() as u64;
        for (j, limit) in limits.iter().enumerate() {
            let (place, limit) = match entry.limits.iter().position(|other| other.name == limit.name) {
                Some(other) => (format!("{path}.overrides[{i}].limits[{other}]"), &entry.limits[other]),
                None => (format!("{path}.limits[{j}]"), limit),
            };
            takes.push((place, log(limit) * keys));
        }
    }
    let total: u64 = takes.iter().map(|(_, bytes)| bytes).sum();
    if total > MOST
        && let Some((most, _)) = takes.into_iter().max_by_key(|(_, bytes)| *bytes)
    {
        let (total, bound) = (total.div_ceil(MIB), MOST / MIB);
        faults.add(
            most,
            format!(
                "would take {total} MiB in each pod for {max_keys} keys, and at most {bound} are allowed: lower requests or maxKeys, or use SlidingWindowCounter"
            ),
        );
    }
}

/// What one key's log takes, in bytes; nothing if the limit is none, or has a fault of its own.
fn log(limit: &wire::Limit) -> u64 {
    let is_log = limit.strategy == wire::Strategy::SlidingWindowLog && limit.requests <= limits::LONGEST_LOG;
    if is_log { (limit.requests + WORDS_BESIDE) * WORD } else { 0 }
}
