//! The name of a counter in a store.

/// The longest name of a counter. Memcached allows 250 bytes for a key, and we add some.
const LONGEST: usize = 180;

/// A counter: what all limits of a rule count for one key.
///
/// In a store it is `{name hash}`, so that a cluster of Redis keeps everything of a counter on one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

/// Why a name cannot be part of a store's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a counter has 1 to {LONGEST} letters, digits and marks of ASCII, without braces")]
pub struct InvalidKey;

impl Key {
    /// A counter of a rule, named by policy, namespace and rule, for a client whose key has this hash. Spaces become
    /// dots.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the name is empty, too long, or has characters that stores do not allow.
    pub fn new(name: &str, hash: u128) -> Result<Self, InvalidKey> {
        let is_allowed = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && byte != b'{' && byte != b'}';
        if name.is_empty() || name.len() > LONGEST || !name.bytes().all(is_allowed) {
            return Err(InvalidKey);
        }
        Ok(Self(format!("{{{}.{hash:x}}}", name.replace(' ', "."))))
    }

    /// The key as the store has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_word_in_braces() {
        assert_eq!(
            Key::new("limits shop/api.search", 0xfeed).map(|key| key.0),
            Ok("{limits.shop/api.search.feed}".into())
        );
        for name in ["", "a{b", "a}b", "a\r\nb", "ä", &"a".repeat(181)] {
            assert_eq!(Key::new(name, 1), Err(InvalidKey), "{name}");
        }
        let longest = Key::new(&"a".repeat(180), u128::MAX).expect("a key");
        assert!(longest.as_str().len() <= 220, "Memcached allows 250, and a window's start is added");
    }
}
