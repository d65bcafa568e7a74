//! The sets of bytes that a path, a host or a name can contain.
//!
//! Every byte of every request head is checked with these sets, so a check is one table look-up instead of a search in
//! a list. These sets must never be the only check, because they describe bytes, not syntax.

/// A set of bytes: the bytes whose entry in the table has this bit. All sets share the table, and two of its cache
/// lines contain all ASCII letters and digits.
#[derive(Clone, Copy, Debug)]
pub struct ByteSet(u8);

#[repr(align(64))]
struct Table([u8; 256]);

/// The bytes of each set, except for letters and digits.
const OTHERS: [(ByteSet, &[u8]); 5] = [
    (ByteSet::SEGMENT, b"-._~!$&'()*+,;=:@"),
    (ByteSet::PATH, b"/-._~%!$&'()*+,;=:@[]"),
    (ByteSet::QUERY, b"/-._~%!$&'()*+,;=:@[]?"),
    (ByteSet::NAME, b"-._~!$&'()*+;="),
    (ByteSet::TOKEN, b"!#$%&'*+-.^_`|~"),
];

static TABLE: Table = Table::new();

impl ByteSet {
    /// The bytes of a segment of a path: `pchar` of RFC 3986 without `%`.
    pub const SEGMENT: Self = Self(1);
    /// The bytes of a path: segments, slashes, percent-encoded bytes, and brackets, which some clients do not encode.
    pub const PATH: Self = Self(1 << 1);
    /// The bytes of a query: the bytes of a path, and `?`.
    pub const QUERY: Self = Self(1 << 2);
    /// The bytes of a host name (RFC 3986 section 3.2.2), without percent-encoded bytes and without commas, which
    /// separate lists.
    pub const NAME: Self = Self(1 << 3);
    /// The bytes of a header name (RFC 9110 section 5.6.2).
    pub const TOKEN: Self = Self(1 << 4);

    /// Whether the byte is in the set.
    #[inline]
    pub fn has(self, byte: u8) -> bool {
        TABLE.0[usize::from(byte)] & self.0 != 0
    }

    /// Whether all bytes are in the set; true for an empty slice.
    #[inline]
    pub fn has_all(self, bytes: &[u8]) -> bool {
        // The loop has no early exit, which would add a branch for each byte: nearly all inputs are in the set.
        bytes.iter().fold(self.0, |all, byte| all & TABLE.0[usize::from(*byte)]) != 0
    }
}

impl Table {
    const fn new() -> Self {
        let mut table = [0; 256];
        let mut set = 0;
        while set < OTHERS.len() {
            let (ByteSet(bit), others) = OTHERS[set];
            let mut byte = u8::MAX;
            while byte > 0 {
                if byte.is_ascii_alphanumeric() {
                    table[byte as usize] |= bit;
                }
                byte -= 1;
            }
            let mut at = 0;
            while at < others.len() {
                table[others[at] as usize] |= bit;
                at += 1;
            }
            set += 1;
        }
        Self(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_letters_digits_and_its_own_and_nothing_else() {
        for (set, others) in OTHERS {
            for byte in 0..=u8::MAX {
                let expected = byte.is_ascii_alphanumeric() || others.contains(&byte);
                assert_eq!(set.has(byte), expected, "{set:?} {byte}");
                assert_eq!(set.has_all(&[b'a', byte, b'9']), expected, "{set:?} {byte}");
            }
            assert!(set.has_all(b""));
        }
    }
}
