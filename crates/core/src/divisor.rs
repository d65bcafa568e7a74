//! Division by a fixed number, without the processor's division instruction. That instruction takes longer than the
//! rest of a decision.

/// A divisor, which is never zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    by: u64,
    /// `2^64 / by`, rounded down. For a divisor of 1, one less.
    reciprocal: u64,
}

impl Divisor {
    pub(crate) fn new(by: u64) -> Self {
        let reciprocal = (1 << 64) / u128::from(by);
        Self { by, reciprocal: u64::try_from(reciprocal).unwrap_or(u64::MAX) }
    }

    /// Returns the quotient and the remainder.
    #[inline]
    pub(crate) fn divide(self, number: u64) -> (u64, u64) {
        // The error of the reciprocal is less than one in the product: the quotient is exact or one too small.
        let short = high(u128::from(number) * u128::from(self.reciprocal));
        let rest = number - short * self.by;
        if rest >= self.by { (short + 1, rest - self.by) } else { (short, rest) }
    }
}

fn high(wide: u128) -> u64 {
    u64::try_from(wide >> 64).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(number: u64, by: u64) {
        assert_eq!(Divisor::new(by).divide(number), (number / by, number % by), "{number} / {by}");
    }

    #[test]
    fn the_ends_are_exact() {
        let ends = [1, 2, 3, 7, 1 << 20, 1 << 32, (1 << 62) + 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for by in ends {
            for number in ends.into_iter().chain([0, by - 1, by.saturating_add(1), by.saturating_mul(3) - 1]) {
                check(number, by);
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_division(number: u64, by in 1..=u64::MAX, bits in 0..64_u32) {
            check(number, (by >> bits).max(1));
            check(number >> bits, by);
        }
    }
}
