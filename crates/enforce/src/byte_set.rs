//! Sets of bytes, as grammars have them: which may stand in a path, in a host.
//!
//! Asked for every byte of what every request says: one look-up, where a list costs a search. It must never be what decides
//! alone; it knows bytes and no syntax.

/// Some of the 256 bytes: those whose entry in the table has this bit. All sets share the table, and all letters and digits
/// two cache lines of it.
#[derive(Clone, Copy, Debug)]
pub struct ByteSet(u8);

#[repr(align(64))]
struct Table([u8; 256]);

/// Beside letters and digits.
const OTHERS: [(ByteSet, &[u8]); 5] = [
    (ByteSet::SEGMENT, b"-._~!$&'()*+,;=:@"),
    (ByteSet::PATH, b"/-._~%!$&'()*+,;=:@[]"),
    (ByteSet::QUERY, b"/-._~%!$&'()*+,;=:@[]?"),
    (ByteSet::NAME, b"-._~!$&'()*+;="),
    (ByteSet::TOKEN, b"!#$%&'*+-.^_`|~"),
];

static TABLE: Table = Table::new();

impl ByteSet {
    /// `pchar` of RFC 3986 but for `%`: unreserved, sub-delims, `:` and `@`.
    pub const SEGMENT: Self = Self(1);
    /// What paths on their way have in them: segments, encoded bytes, and brackets, which some clients leave as they are.
    pub const PATH: Self = Self(1 << 1);
    /// What the queries of targets have in them: a path's bytes and `?`.
    pub const QUERY: Self = Self(1 << 2);
    /// What the names of hosts are made of (RFC 3986 section 3.2.2), without encoded bytes, and without the commas that lists
    /// have.
    pub const NAME: Self = Self(1 << 3);
    /// What names of fields are made of (RFC 9110 section 5.6.2).
    pub const TOKEN: Self = Self(1 << 4);

    /// Whether the byte is in the set.
    #[inline]
    pub fn has(self, byte: u8) -> bool {
        TABLE.0[usize::from(byte)] & self.0 != 0
    }

    /// Whether all bytes are in the set; true for none.
    #[inline]
    pub fn has_all(self, bytes: &[u8]) -> bool {
        // Without a way out, which would be one more step for each byte: nearly all that is asked about is in the set.
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
