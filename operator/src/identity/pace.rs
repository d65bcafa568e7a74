//! Limits the rate of requests to the identity service: each request makes the apiserver review a token, and anyone in
//! the cluster can reach the port.
//!
//! There is one limit in total and one per address, each per second, so that one pod cannot block the others. An
//! address whose last request failed gets much less, so that some dozen pods without valid tokens cannot use up the total
//! either. Counts last one second and failures some seconds, so memory is bounded.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// Requests per second in total.
const ALL: u32 = 200;
/// Requests per second from one address. An agent sends one request, and few agents share an address.
const EACH: u32 = 5;
/// The time between two requests from an address whose requests fail.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The counts of the current second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    second: u64,
    all: u32,
    by_address: HashMap<IpAddr, u32>,
    /// The addresses whose last request failed, each with the time of its next request.
    failed: HashMap<IpAddr, Duration>,
}

impl Pace {
    /// Returns true if one more request is admitted. `now` is monotonic, from any origin.
    pub(super) fn admit(&mut self, now: Duration, from: IpAddr) -> bool {
        if self.second != now.as_secs() {
            (self.second, self.all) = (now.as_secs(), 0);
            self.by_address.clear();
            self.failed.retain(|_, next| now < *next + AFTER_FAILURE);
        }
        if self.all >= ALL || self.failed.get(&from).is_some_and(|next| now < *next) {
            return false;
        }
        // The map has at most `ALL` addresses, because refused requests are not stored.
        let count = self.by_address.get(&from).copied().unwrap_or(0);
        if count >= EACH {
            return false;
        }
        self.by_address.insert(from, count + 1);
        self.all += 1;
        if let Some(next) = self.failed.get_mut(&from) {
            *next = now + AFTER_FAILURE;
        }
        true
    }

    /// Records the end of an admitted request.
    pub(super) fn ended(&mut self, now: Duration, from: IpAddr, has_failed: bool) {
        if has_failed {
            self.failed.insert(from, now + AFTER_FAILURE);
        } else {
            self.failed.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn one_address_does_not_block_others() {
        let mut pace = Pace::default();
        let at = |millis| Duration::from_millis(millis);
        let admitted = (0..1000).filter(|_| pace.admit(at(7_000), address(1))).count();
        assert_eq!(admitted, 5);
        assert!(pace.admit(at(7_999), address(2)));
        assert!(pace.admit(at(8_000), address(1)), "a new second admits again");
    }

    /// The pods of one tenant send five requests each, as soon as they may.
    #[test]
    fn pods_whose_requests_fail_leave_the_total_to_others() {
        let (mut pace, pods) = (Pace::default(), ALL / EACH);
        let mut seconds_with_refusals = 0;
        for second in 1..=60 {
            let now = Duration::from_secs(second);
            let sent = (0..EACH * pods).map(|number| address(number % pods));
            let admitted: Vec<_> = sent.filter(|from| pace.admit(now, *from)).collect();
            seconds_with_refusals += u32::from(!pace.admit(now, address(pods)));
            admitted.iter().for_each(|from| pace.ended(now, *from, true));
        }
        assert_eq!(seconds_with_refusals, 1, "only the first burst takes the total");
        let again = Duration::from_secs(60);
        assert!(!pace.admit(again, address(0)) && pace.admit(again + AFTER_FAILURE, address(0)));
        pace.ended(again + AFTER_FAILURE, address(0), false);
        assert!(pace.admit(again + AFTER_FAILURE, address(0)), "the last request did not fail");
    }

    #[test]
    fn failures_take_bounded_memory() {
        let mut pace = Pace::default();
        for number in 0..100_000 {
            let now = Duration::from_millis(u64::from(number) * 4);
            if pace.admit(now, address(number)) {
                pace.ended(now, address(number), true);
            }
        }
        assert!((2_000..6_000).contains(&pace.failed.len()), "{}", pace.failed.len());
    }

    #[test]
    fn the_total_rate_and_the_memory_are_bounded() {
        let mut pace = Pace::default();
        let admitted = (0..100_000).filter(|&number| pace.admit(Duration::ZERO, address(number))).count();
        assert_eq!((admitted, pace.by_address.len()), (200, 200));
        assert!(pace.admit(Duration::from_secs(1), address(0)));
    }
}
