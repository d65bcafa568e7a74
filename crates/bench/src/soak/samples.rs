//! Samples of the agent's resources over time.

use std::fmt;

use anyhow::{Context as _, ensure};
use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Sample {
    /// The time of the sample, in seconds since the start.
    pub(super) seconds: f64,
    /// The resident memory in bytes.
    pub(super) resident: u64,
    /// The number of open files and sockets.
    pub(super) descriptors: usize,
    /// The used CPU time so far, in seconds.
    pub(super) cpu: f64,
    /// The number of client connections that the agent reports.
    pub(super) connections: f64,
    /// The number of keys in all tables.
    pub(super) keys: f64,
    pub(super) evicted: f64,
    pub(super) overflowed: f64,
    pub(super) allowed: f64,
    pub(super) limited: f64,
}

impl Sample {
    /// Parses metrics in the text format.
    pub(super) fn of_metrics(text: &str) -> anyhow::Result<Self> {
        let connections = sum(text, "weir_connections", "")?;
        ensure!(connections >= 0.0, "{connections} connections");
        Ok(Self {
            connections,
            keys: sum(text, "weir_key_table_keys", "")?,
            evicted: sum(text, "weir_key_evictions_total", "")?,
            overflowed: sum(text, "weir_key_overflow_total", "")?,
            allowed: sum(text, "weir_requests_total", "decision=\"allowed\"")?,
            limited: sum(text, "weir_requests_total", "decision=\"limited\"")?,
            ..Self::default()
        })
    }

    /// Returns true if the agent has released all resources of clients.
    pub(super) fn is_at_rest(&self, before: &Self) -> bool {
        self.connections == 0.0 && self.descriptors <= before.descriptors
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, resident, descriptors, cpu, connections, keys, .. } = self;
        let kib = resident / 1024;
        write!(
            f,
            "{seconds:.0} s: {kib} KiB, {descriptors} files, {connections} connections, {keys} keys, {cpu:.1} s of CPU"
        )
    }
}

/// Returns a third of the samples. The first one is the warm-up, the second one is the reference, and the third one is
/// compared with the reference.
pub(super) fn third(samples: &[Sample], place: usize) -> &[Sample] {
    let at = |place: usize| samples.len() * place / 3;
    &samples[at(place)..at(place + 1)]
}

/// Adds up all series of a metric family whose labels contain this text.
fn sum(text: &str, family: &str, label: &str) -> anyhow::Result<f64> {
    ensure!(text.contains(&format!("# TYPE {family} ")), "the metric {family} is missing");
    let series = text.lines().filter_map(|line| line.strip_prefix(family));
    let own = series.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    own.map(|rest| {
        let value = rest.rsplit(' ').next().unwrap_or_default();
        value.parse::<f64>().with_context(|| format!("{family} is {value}"))
    })
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_added_up_by_family_and_label() {
        let text = "# TYPE a gauge\na{x=\"1\"} 2\na{x=\"2\"} 3\n# TYPE ab gauge\nab 9\n";
        assert_eq!(sum(text, "a", "").expect("numbers"), 5.0);
        assert_eq!(sum(text, "a", "x=\"2\"").expect("numbers"), 3.0);
        assert_eq!(sum(text, "ab", "").expect("numbers"), 9.0);
        assert!(sum(text, "b", "").is_err());
    }

    #[test]
    fn rest_is_nobody_and_no_more_files_than_before() {
        let before = Sample { descriptors: 20, ..Sample::default() };
        assert!(Sample { descriptors: 20, ..Sample::default() }.is_at_rest(&before));
        assert!(!Sample { descriptors: 21, ..Sample::default() }.is_at_rest(&before));
        assert!(!Sample { descriptors: 20, connections: 1.0, ..Sample::default() }.is_at_rest(&before));
    }

    #[test]
    fn thirds_share_all_samples() {
        let samples = vec![Sample::default(); 10];
        let lengths: Vec<_> = (0..3).map(|place| third(&samples, place).len()).collect();
        assert_eq!(lengths, [3, 3, 4]);
    }
}
