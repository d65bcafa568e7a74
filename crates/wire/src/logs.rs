//! The memory that the logs of rules take in each pod. A SlidingWindowLog stores the time of every request of every
//! key, and an agent reserves this memory when it applies the rule. So this memory has a bound, for a rule and for a
//! whole snapshot.

use crate::{Limit, Override, PolicyRules, Rule, Strategy};

/// The largest number of requests in a `SlidingWindowLog`.
pub const LONGEST_LOG: u64 = 1 << 20;

/// The largest memory for the logs of one rule in each pod, in bytes.
const MOST: u64 = 128 * MIB;

/// The largest memory for the logs of a whole snapshot, in bytes. The operator omits policies that do not fit, and
/// agents reject a larger snapshot.
pub const MAX_LOG_BYTES: u64 = 256 * MIB;

const MIB: u64 = 1024 * 1024;

/// The default number of keys in the table of a keyed rule.
pub const DEFAULT_MAX_KEYS: u32 = 65_536;

/// The bytes for each request of a log, which takes one word.
const WORD: u64 = 8;
/// The words of a log in addition to its requests.
const EXTRA_WORDS: u64 = 2;

/// The fault of a rule whose logs take more memory than an agent is allowed to use in an app's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogsTooLarge {
    /// The path of the limit that takes most memory, relative to the rule, such as `overrides[0].limits[1]`.
    pub path: String,
    /// The fault, and the values to write instead.
    pub message: String,
}

/// Checks that the logs of a keyed rule fit. The operator reports a fault to the policy's author, and an agent rejects
/// rules that do not fit.
///
/// # Errors
///
/// [`LogsTooLarge`] if all logs together are too large, with the limit that takes most memory.
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
    let takes = logs(limits, overrides, Some(max_keys));
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

/// Returns the memory for the logs of a policy's rules in each pod, in bytes.
pub fn log_bytes(policy: &PolicyRules) -> u64 {
    let logs = policy.rules.iter().flat_map(|rule| {
        let Rule { limits, overrides, key, max_keys, .. } = rule;
        logs(limits, overrides, (!key.is_empty()).then(|| max_keys.unwrap_or(DEFAULT_MAX_KEYS)))
    });
    logs.fold(0, |total, (_, bytes)| total.saturating_add(bytes))
}

/// Returns the memory of each log of a rule, with the path of its limit. A rule without a key has one log for each
/// limit.
fn logs(limits: &[Limit], overrides: &[Override], max_keys: Option<u32>) -> Vec<(String, u64)> {
    // The table has a ninth more cells than keys, which keeps lookups short, and a few words that belong to no key.
    let places = max_keys.map_or(1, |max_keys| u64::from(max_keys) + u64::from(max_keys) / 9 + 3);
    let mut takes: Vec<(String, u64)> = Vec::new();
    for (i, limit) in limits.iter().enumerate() {
        takes.push((format!("limits[{i}]"), log(limit) * places));
    }
    for (i, entry) in overrides.iter().enumerate() {
        // A key with an override has separate words for all limits.
        let keys = entry.keys.len() as u64;
        for (j, limit) in limits.iter().enumerate() {
            let (place, limit) = match entry.limits.iter().position(|other| other.name == limit.name) {
                Some(other) => (format!("overrides[{i}].limits[{other}]"), &entry.limits[other]),
                None => (format!("limits[{j}]"), limit),
            };
            takes.push((place, log(limit) * keys));
        }
    }
    takes
}

/// Returns the size of one key's log in bytes. 0 if the limit has no log, or if its number of requests is invalid.
fn log(limit: &Limit) -> u64 {
    let is_log = limit.strategy == Strategy::SlidingWindowLog && limit.requests <= LONGEST_LOG;
    if is_log { (limit.requests + EXTRA_WORDS) * WORD } else { 0 }
}
