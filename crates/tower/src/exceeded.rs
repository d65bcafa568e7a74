//! The refusal of a request that took too long.

use std::{error::Error, fmt, time::Duration};

/// The error for a request that was not answered before its deadline, and was cancelled.
///
/// ```
/// use std::time::Duration;
/// use weir_tower::DeadlineExceeded;
///
/// assert_eq!(DeadlineExceeded { after: Duration::from_millis(500) }.to_string(), "not answered within 500ms");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineExceeded {
    /// The deadline, counted from the call.
    pub after: Duration,
}

impl fmt::Display for DeadlineExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not answered within {:?}", self.after)
    }
}

impl Error for DeadlineExceeded {}
