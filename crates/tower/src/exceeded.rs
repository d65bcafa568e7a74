//! The refusal of a request that took too long.

use std::{error::Error, fmt, time::Duration};

/// The error for a request that was not answered before its deadline, and was cancelled.
///
/// ```
/// use std::time::Duration;
/// use weir_tower::DeadlineExceeded;
///
/// assert_eq!(DeadlineExceeded::new(Duration::from_millis(500)).to_string(), "not answered within 500ms");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlineExceeded {
    /// The deadline, counted from the call.
    pub after: Duration,
}

impl DeadlineExceeded {
    /// The error of a request with this deadline, for a [`Timed`](crate::Timed) of your own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_tower::DeadlineExceeded;
    /// let after = Duration::from_millis(500);
    /// assert_eq!(DeadlineExceeded::new(after).after, after);
    /// ```
    pub const fn new(after: Duration) -> Self {
        Self { after }
    }
}

impl fmt::Display for DeadlineExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not answered within {:?}", self.after)
    }
}

impl Error for DeadlineExceeded {}
