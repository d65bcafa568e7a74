//! Detects another operator that writes to the same agent. Then each operator sees the other's snapshot as an error and
//! pushes its own.
//!
//! In a cluster the Lease prevents that. In standalone mode nothing does, so the link detects it: a newer snapshot
//! replaces what the agent acknowledged, and again after the link has pushed its own. One replacement alone may come
//! from a user with curl.

use std::time::Duration;

use tokio::time::Instant;

/// How long the other operator counts as active after its last write.
const LASTING: Duration = Duration::from_secs(30);

/// What the link knows about other operators that write to its agent.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    overwritten_at: Option<Instant>,
    is_contested: bool,
}

impl Rivals {
    /// Records that a newer snapshot replaced the one that the agent had acknowledged. True if this reveals another
    /// operator.
    pub(super) fn overwritten(&mut self, now: Instant) -> bool {
        let again = self.overwritten_at.replace(now).is_some_and(|before| now < before + LASTING);
        again && !std::mem::replace(&mut self.is_contested, true)
    }

    /// When to check again. `None` if no other operator writes.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.overwritten_at.filter(|_| self.is_contested).map(|at| at + LASTING)
    }

    /// True if a known other operator no longer writes.
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
        let mut rivals = Rivals::default();
        assert!(!rivals.overwritten(at(0)), "once is somebody with curl");
        assert!(!rivals.overwritten(at(40)), "and so is once more after a while");
        assert!(!rivals.ended(at(80)));
        assert!(rivals.overwritten(at(45)));
        assert!(!rivals.overwritten(at(46)), "it is reported once");
        assert_eq!(rivals.ends_at(), Some(at(76)));
        assert!(!rivals.ended(at(75)));
        assert!(rivals.ended(at(76)));
        assert_eq!((rivals.ends_at(), rivals.ended(at(80))), (None, false), "that is reported once, too");
        assert!(!rivals.overwritten(at(90)));
        assert!(rivals.overwritten(at(91)));
    }
}
