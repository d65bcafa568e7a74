//! What the logs of a keyed rule take in each pod. A SlidingWindowLog remembers every request of every key, and an agent
//! lays that out when the rule comes: beside an app it must not be a surprise.

use crate::{Limit, Override, Strategy};

/// The most requests that a `SlidingWindowLog` remembers.
pub const LONGEST_LOG: u64 = 1 << 20;

/// What the logs of one rule may take in each pod, in bytes.
const MOST: u64 = 128 * MIB;

const MIB: u64 = 1024 * 1024;

/// An agent holds 8 bytes for each request of a log, and two words more.
const WORD: u64 = 8;
const WORDS_BESIDE: u64 = 2;

/// The logs of a rule take more than a pod has beside its app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogsTooLarge {
    /// The limit that takes most, from the rule on, such as `overrides[0].limits[1]`.
    pub path: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

/// Whether the logs of a keyed rule fit. The operator tells a policy's author, and an agent refuses what does not.
///
/// # Errors
///
/// The limit that takes most if all logs together take too much.
///
/// ```
/// use weir_wire::{Limit, Strategy, check_logs};
/// let log = |requests| Limit {
///     name: "hourly".into(), strategy: Strategy::SlidingWindowLog, requests, period_millis: 3_600_000, burst: None, debt: None,
/// };
/// assert!(check_logs(&[log(100)], &[], 65_536).is_ok());
/// assert_eq!(check_logs(&[log(1 << 20)], &[], 1_000_000).unwrap_err().path, "limits[0]");
/// ```
pub fn check_logs(limits: &[Limit], overrides: &[Override], max_keys: u32) -> Result<(), LogsTooLarge> {
    // An agent has a ninth more places than keys, so that finding one is quick, and a few that are no key's own.
    let places = u64::from(max_keys) + u64::from(max_keys) / 9 + 3;
    let mut takes: Vec<(String, u64)> = Vec::new();
    for (i, limit) in limits.iter().enumerate() {
        takes.push((format!("limits[{i}]"), log(limit) * places));
    }
    for (i, entry) in overrides.iter().enumerate() {
        // Such a key has words of its own for all limits, with other numbers for some.
        let keys = entry.keys.len() as u64;
        for (j, limit) in limits.iter().enumerate() {
            let (place, limit) = match entry.limits.iter().position(|other| other.name == limit.name) {
                Some(other) => (format!("overrides[{i}].limits[{other}]"), &entry.limits[other]),
                None => (format!("limits[{j}]"), limit),
            };
            takes.push((place, log(limit) * keys));
        }
    }
    let total: u64 = takes.iter().map(|(_, bytes)| bytes).sum();
    if total <= MOST {
        return Ok(());
    }
    let (path, _) = takes.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or_default();
    let (total, bound) = (total.div_ceil(MIB), MOST / MIB);
    let message = format!(
        "would take {total} MiB in each pod for {max_keys} keys, and at most {bound} are allowed: lower requests or maxKeys, or use SlidingWindowCounter"
    );
    Err(LogsTooLarge { path, message })
}

/// What one key's log takes, in bytes; nothing if the limit is none, or has a fault of its own.
fn log(limit: &Limit) -> u64 {
    let is_log = limit.strategy == Strategy::SlidingWindowLog && limit.requests <= LONGEST_LOG;
    if is_log { (limit.requests + WORDS_BESIDE) * WORD } else { 0 }
}
