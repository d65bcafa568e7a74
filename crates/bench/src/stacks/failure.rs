//! The failures that callers get, with the same names for all contenders.

use tower::BoxError;
use tower_shot::ShotError;
use weir_core::Refused;
use weir_tower::LimitError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// The limit refused the request.
    Refused,
    /// The service was not ready, and the request was rejected immediately.
    Shed,
    TimedOut,
    Other,
}

impl Failure {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Shed => "shed",
            Self::TimedOut => "timed out",
            Self::Other => "broken",
        }
    }
}

/// An error that can be converted to a failure.
pub(crate) trait HasFailure {
    fn failure(&self) -> Failure;
}

impl HasFailure for LimitError<Refused, BoxError> {
    fn failure(&self) -> Failure {
        match self {
            Self::Refused(_) => Failure::Refused,
            Self::Inner(error) => error.failure(),
        }
    }
}

impl HasFailure for BoxError {
    fn failure(&self) -> Failure {
        if let Some(error) = self.downcast_ref::<ShotError>() {
            return match error {
                ShotError::RateLimited { .. } => Failure::Refused,
                ShotError::Overloaded => Failure::Shed,
                ShotError::Timeout => Failure::TimedOut,
                ShotError::Inner(_) => Failure::Other,
            };
        }
        if self.is::<tower::timeout::error::Elapsed>() {
            Failure::TimedOut
        } else if self.is::<tower::load_shed::error::Overloaded>() {
            Failure::Shed
        } else {
            Failure::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_contenders_is_known() {
        let failure = |error: BoxError| error.failure();
        assert_eq!(failure(Box::new(ShotError::Timeout)), Failure::TimedOut);
        assert_eq!(failure(Box::new(ShotError::Overloaded)), Failure::Shed);
        assert_eq!(failure(Box::new(tower::timeout::error::Elapsed::new())), Failure::TimedOut);
        assert_eq!(failure(Box::new(tower::load_shed::error::Overloaded::new())), Failure::Shed);
        assert_eq!(failure("anything".into()), Failure::Other);
    }
}
