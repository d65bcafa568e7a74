//! Sets of bytes, as grammars have them: which may stand in a path, in a host.
//!
//! Asked for every byte of what every request says: one look-up, where a list costs a search. It must never be what decides
//! alone; it knows bytes and no syntax.

/// Some of the 256 bytes.
#[derive(Debug)]
pub(crate) struct ByteSet([bool; 256]);

impl ByteSet {
    /// Digits, letters, and these.
    pub(crate) const fn alphanumeric_and(others: &[u8]) -> Self {
        let mut table = [false; 256];
        let mut byte = u8::MAX;
        while byte > 0 {
            table[byte as usize] = byte.is_ascii_alphanumeric();
            byte -= 1;
        }
        let mut at = 0;
        while at < others.len() {
            table[others[at] as usize] = true;
            at += 1;
        }
        Self(table)
    }

    #[inline]
    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }

    #[inline]
    pub(crate) fn has_all(&self, bytes: &[u8]) -> bool {
        // Without a way out, which would be one more step for each byte: nearly all that is asked about is in the set.
        bytes.iter().fold(true, |all, byte| all & self.has(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_it_was_given_and_nothing_else() {
        let set = ByteSet::alphanumeric_and(b"-\xff");
        for byte in 0..=u8::MAX {
            let expected = byte.is_ascii_alphanumeric() || byte == b'-' || byte == 0xff;
            assert_eq!(set.has(byte), expected, "{byte}");
        }
        assert!(set.has_all(b"a-9") && set.has_all(b"") && !set.has_all(b"a-_"));
    }
}
