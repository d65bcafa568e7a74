//! The decisions of a script, made from bytes.

use crate::Random;

/// A source of choices made from bytes. When no bytes are left, each choice is the first option.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    /// Returns true if no bytes are left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Returns a number below `count`, or 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(u16::from_be_bytes([self.byte(), self.byte()])) % count.max(1)
    }

    /// Returns one of these values.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Returns true once in `times` calls, on average.
    pub fn rarely(&mut self, times: u8) -> bool {
        self.byte() % times == 1
    }

    /// Returns fewer than `count` of these pieces, concatenated.
    pub fn text(&mut self, pieces: &[&str], count: usize) -> String {
        (0..self.below(count)).map(|_| *self.one(pieces)).collect()
    }

    /// Returns a generator of random numbers, for a target that makes more choices than the input has bytes. The next
    /// eight bytes of the input are its seed.
    pub fn random(&mut self) -> Random {
        Random::new(u64::from_be_bytes(std::array::from_fn(|_| self.byte())))
    }
}
