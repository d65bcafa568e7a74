//! The time at which to renew a certificate, on a machine whose clock can be set.

use std::time::Duration;

/// The time at which to renew certificates. The dates of certificates are wall-clock times, so the renewal has a
/// wall-clock time, too. It also has a duration on the monotonic clock, and the earlier one decides: if this machine's
/// clock is set, the clocks of its peers do not change. If the clock goes back to before the time of issue, the
/// certificates are renewed immediately. In this case it is unknown how far ahead the clock was, and for how long peers
/// will refuse the certificates as not yet valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Renewal {
    made: u64,
    at: u64,
    by: Duration,
}

impl Renewal {
    /// Returns the renewal of certificates that were issued `now`. It is scheduled `at` a later second of Unix time.
    /// `moment` is monotonic.
    pub(crate) fn new(at: u64, now: u64, moment: Duration) -> Self {
        Self { made: now, at, by: moment + Duration::from_secs(at.saturating_sub(now)) }
    }

    pub(crate) fn is_due(self, now: u64, moment: Duration) -> bool {
        now < self.made || now >= self.at || moment >= self.by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{DAY, HOUR};

    #[test]
    fn certificates_are_renewed_on_time_wherever_the_clock_is_set() {
        const START: u64 = 1_800_000_000;
        let boot = Duration::from_secs(1000);
        let renewal = Renewal::new(START + 2 * HOUR, START, boot);
        for (what, ahead, passed, due) in [
            ("unchanged", 0, 0, false),
            ("unchanged", 0, 2 * HOUR - 1, false),
            ("unchanged", 0, 2 * HOUR, true),
            ("set back by less than the time since the issue", -3600, HOUR, false),
            ("set back by less than the time since the issue", -3600, 2 * HOUR - 1, false),
            ("set back by less than the time since the issue", -3600, 2 * HOUR, true),
            ("set back to before the issue", -3600, HOUR - 1, true),
            ("set back by a month", -30 * 86_400, 1, true),
            ("set forward", 3600, HOUR - 1, false),
            ("set forward", 3600, HOUR, true),
        ] {
            let now = (START + passed).saturating_add_signed(ahead);
            assert_eq!(renewal.is_due(now, boot + Duration::from_secs(passed)), due, "{what}, {passed} s later");
        }
        assert!(Renewal::default().is_due(START, boot), "no certificates exist");
        assert!(!Renewal::new(START + DAY, START, boot).is_due(START, boot));
    }
}
