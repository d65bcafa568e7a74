//! Limits the rate of requests to the identity service: each request makes the apiserver review a token, and anyone in
//! the cluster can reach the port.
//!
//! There is one limit in total and one per address, each per second, so that one pod cannot block the others. Counts
//! last one second, so memory is bounded.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// Requests per second in total.
const ALL: u32 = 200;
/// Requests per second from one address. An agent sends one request, and few agents share an address.
const EACH: u32 = 5;

/// The counts of the current second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    second: u64,
    all: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Pace {
    /// Returns true if one more request is admitted. `now` is monotonic, from any origin.
    pub(super) fn admit(&mut self, now: Duration, from: IpAddr) -> bool {
        if self.second != now.as_secs() {
            *self = Self { second: now.as_secs(), ..Self::default() };
        }
        if self.all >= ALL {
            return false;
        }
        // The map has at most `ALL` addresses, because refused requests are not stored.
        let count = self.by_address.get(&from).copied().unwrap_or(0);
        if count >= EACH {
            return false;
        }
        self.by_address.insert(from, count + 1);
        self.all += 1;
        true
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

    #[test]
    fn the_total_rate_and_the_memory_are_bounded() {
        let mut pace = Pace::default();
        let admitted = (0..100_000).filter(|&number| pace.admit(Duration::ZERO, address(number))).count();
        assert_eq!((admitted, pace.by_address.len()), (200, 200));
        assert!(pace.admit(Duration::from_secs(1), address(0)));
    }
}
