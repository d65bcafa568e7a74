//! Limits the rate of requests to the identity service: each request makes the apiserver review a token, and anyone in
//! the cluster can reach the port.
//!
//! There is one limit in total and one per address, each per second, so that one address cannot block the others. Many
//! pods can share an address, for example behind a gateway or with the node's network, so a failed request does not
//! slow down its address. But all addresses whose last request failed together get at most half of the total: some dozen
//! pods without valid tokens cannot use it up. Counts last one second and failures some time, so memory is bounded.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// Requests per second in total.
const ALL: u32 = 200;
/// Requests per second from one address. An agent sends one request, and few agents share an address.
const EACH: u32 = 5;
/// Requests per second from all addresses whose last request failed, together.
const ALL_FAILED: u32 = ALL / 2;
/// The time for which a failure counts, unless a request of the address succeeds. So about 2,000 addresses are needed to
/// use up the total without valid tokens.
const AFTER_FAILURE: Duration = Duration::from_secs(100);

/// The counts of the current second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    second: u64,
    all: u32,
    all_failed: u32,
    by_address: HashMap<IpAddr, u32>,
    /// The addresses whose last request failed, each with the time until which the failure counts.
    failed: HashMap<IpAddr, Duration>,
}

impl Pace {
    /// Returns true if one more request is admitted. `now` is monotonic, from any origin.
    pub(super) fn admit(&mut self, now: Duration, from: IpAddr) -> bool {
        if self.second != now.as_secs() {
            (self.second, self.all, self.all_failed) = (now.as_secs(), 0, 0);
            self.by_address.clear();
            self.failed.retain(|_, until| now < *until);
        }
        let has_failed = self.has_failed(now, from);
        if self.all >= ALL || has_failed && self.all_failed >= ALL_FAILED {
            return false;
        }
        // The map has at most `ALL` addresses, because refused requests are not stored.
        let count = self.by_address.get(&from).copied().unwrap_or(0);
        if count >= EACH {
            return false;
        }
        self.by_address.insert(from, count + 1);
        self.all += 1;
        self.all_failed += u32::from(has_failed);
        true
    }

    /// Returns true if the last request from an address failed a short time ago.
    pub(super) fn has_failed(&self, now: Duration, from: IpAddr) -> bool {
        self.failed.get(&from).is_some_and(|until| now < *until)
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

    /// The pods of one tenant send as many requests as they may, before the pods of other tenants send theirs.
    #[test]
    fn pods_whose_requests_fail_leave_half_of_the_total_to_others() {
        let (mut pace, pods) = (Pace::default(), ALL / EACH);
        for second in 1..=60 {
            let now = Duration::from_secs(second);
            let sent = (0..EACH * pods).map(|number| address(number % pods));
            let admitted: Vec<_> = sent.filter(|from| pace.admit(now, *from)).collect();
            let others = (pods..3 * pods).map(address).filter(|from| pace.admit(now, *from)).count();
            let expected = if second == 1 { (200, 0) } else { (100, 80) };
            assert_eq!((admitted.len(), others), expected, "only the first burst takes the total");
            admitted.iter().for_each(|from| pace.ended(now, *from, true));
        }
        let again = Duration::from_secs(60);
        assert!(pace.has_failed(again, address(0)) && !pace.has_failed(again + AFTER_FAILURE, address(0)));
        pace.ended(again, address(0), false);
        assert!(!pace.has_failed(again, address(0)), "the last request did not fail");
    }

    /// Pods with the node's network, or behind a gateway, have one address.
    #[test]
    fn a_failed_request_does_not_block_other_pods_with_its_address() {
        let mut pace = Pace::default();
        for second in 1..=60 {
            let now = Duration::from_secs(second);
            assert!(pace.admit(now, address(1)), "the bad pod");
            pace.ended(now, address(1), true);
            assert_eq!((0..10).filter(|_| pace.admit(now, address(1))).count(), 4, "the good pods");
        }
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
        assert!((15_000..25_000).contains(&pace.failed.len()), "{}", pace.failed.len());
    }

    #[test]
    fn the_total_rate_and_the_memory_are_bounded() {
        let mut pace = Pace::default();
        let admitted = (0..100_000).filter(|&number| pace.admit(Duration::ZERO, address(number))).count();
        assert_eq!((admitted, pace.by_address.len()), (200, 200));
        assert!(pace.admit(Duration::from_secs(1), address(0)));
    }
}
