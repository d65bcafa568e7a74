//! How often the identity service may be asked: each question costs the apiserver a review, and anybody in the cluster can
//! reach the port.
//!
//! Seconds are counted apart: so many in all, and so many from one address, so that one pod cannot keep the others out.
//! Nothing is remembered beyond a second, so what is held is bounded.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Questions a second, from all.
const ALL: u32 = 200;
/// Questions a second, from one address. An agent asks once; those behind one address are few.
const EACH: u32 = 5;

/// Counts the questions of the current second.
#[derive(Debug, Default)]
pub(super) struct Pace {
    second: u64,
    all: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Pace {
    /// Whether there is room for one more. `now` goes on evenly, from whenever.
    pub(super) fn admit(&mut self, now: Duration, from: IpAddr) -> bool {
        if self.second != now.as_secs() {
            *self = Self { second: now.as_secs(), ..Self::default() };
        }
        if self.all >= ALL {
            return false;
        }
        // At most `ALL` addresses: what is refused is not remembered.
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
    fn one_address_keeps_nobody_else_out() {
        let mut pace = Pace::default();
        let at = |millis| Duration::from_millis(millis);
        let admitted = (0..1000).filter(|_| pace.admit(at(7_000), address(1))).count();
        assert_eq!(admitted, 5);
        assert!(pace.admit(at(7_999), address(2)));
        assert!(pace.admit(at(8_000), address(1)), "a new second");
    }

    #[test]
    fn all_together_are_bounded_and_so_is_what_is_remembered() {
        let mut pace = Pace::default();
        let admitted = (0..100_000).filter(|&number| pace.admit(Duration::ZERO, address(number))).count();
        assert_eq!((admitted, pace.by_address.len()), (200, 200));
        assert!(pace.admit(Duration::from_secs(1), address(0)));
    }
}
