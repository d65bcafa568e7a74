//! The number of failures of the app, by reason.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The values of `reason` in `weir_upstream_errors_total`, in the order of [`FailureCounts::get`].
pub(crate) const REASONS: [&str; 8] =
    ["refused", "connect_timeout", "handshake", "closed", "protocol", "response_timeout", "descriptors", "unread"];

/// The number of failures of the app, by reason. Client errors do not count.
#[derive(Debug, Default)]
pub(crate) struct FailureCounts([AtomicU64; REASONS.len()]);

impl FailureCounts {
    pub(crate) fn get(&self) -> [u64; REASONS.len()] {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }
    /// Counts a failure with this index into [`REASONS`].
    pub(in super::super) fn count(&self, reason: usize) {
        self.0[reason].fetch_add(1, Relaxed);
    }
}
