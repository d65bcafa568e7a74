//! Detects another operator that writes to the same agent. Two such operators each treat the other's snapshot as an
//! error and push their own.
//!
//! In a cluster, the Lease prevents this. In standalone mode, the link detects it: a newer snapshot replaces the one
//! that the agent acknowledged, and again after the link has pushed its own. One replacement alone can come from a user
//! with curl.

use std::time::Duration;

use tokio::time::Instant;

/// The time for which the other operator counts as active after its last write.
const LASTING: Duration = Duration::from_secs(30);

/// The state of detecting other operators that write to the agent of a link.
#[derive(Debug, Default)]
pub(super) struct OtherOperator {
    overwritten_at: Option<Instant>,
    is_contested: bool,
}

impl OtherOperator {
    /// Records that a newer snapshot replaced the one that the agent had acknowledged. Returns true if this reveals
    /// another operator.
    pub(super) fn overwritten(&mut self, now: Instant) -> bool {
        let again = self.overwritten_at.replace(now).is_some_and(|before| now < before + LASTING);
        again && !std::mem::replace(&mut self.is_contested, true)
    }

    /// Returns the time of the next check, or `None` if no other operator writes.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.overwritten_at.filter(|_| self.is_contested).map(|at| at + LASTING)
    }

    /// Returns true if a known other operator has stopped writing.
    pub(super) fn ended(&mut self, now: Instant) -> bool {
        let ended = self.ends_at().is_some_and(|end| now >= end);
        self.is_contested &= !ended;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn another_operator_is_one_that_writes_again() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut other_operator = OtherOperator::default();
        assert!(!other_operator.overwritten(at(0)), "one replacement can come from curl");
        assert!(!other_operator.overwritten(at(40)), "another replacement much later can come from curl");
        assert!(!other_operator.ended(at(80)));
        assert!(other_operator.overwritten(at(45)));
        assert!(!other_operator.overwritten(at(46)), "the begin is reported once");
        assert_eq!(other_operator.ends_at(), Some(at(76)));
        assert!(!other_operator.ended(at(75)));
        assert!(other_operator.ended(at(76)));
        assert_eq!((other_operator.ends_at(), other_operator.ended(at(80))), (None, false), "the end is reported once");
        assert!(!other_operator.overwritten(at(90)));
        assert!(other_operator.overwritten(at(91)));
    }
}
