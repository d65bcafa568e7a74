//! The name of a counter in a store.

/// The maximum length of a name. Memcached allows 250 bytes for a key, and the key also contains a hash and the start
/// of a window.
pub const LONGEST_NAME: usize = 180;

/// The name of a counter. One counter contains the state of all limits of a rule for one key.
///
/// The name in a store is `{name.hash}`. The braces make Redis Cluster keep all data of a counter on one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

/// The error for a name that cannot be part of a store's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a counter must have 1 to {LONGEST_NAME} printable ASCII characters, without braces")]
pub struct InvalidKey;

impl Key {
    /// Creates the key of a counter. `name` names the policy, the namespace and the rule. `hash` is the hash of the
    /// values by which the rule counts separately. Spaces become dots.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the name is empty, too long, or has characters that stores do not allow.
    pub fn new(name: &str, hash: u128) -> Result<Self, InvalidKey> {
        let is_allowed = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && byte != b'{' && byte != b'}';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_allowed) {
            return Err(InvalidKey);
        }
        Ok(Self(format!("{{{}.{hash:x}}}", name.replace(' ', "."))))
    }

    /// The name of the counters, in which spaces are dots.
    pub fn counters(&self) -> &str {
        self.parts().0
    }

    /// The name of the counters, and the hash as a hexadecimal number.
    pub(crate) fn parts(&self) -> (&str, &str) {
        let inner = self.0.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        inner.and_then(|inner| inner.rsplit_once('.')).unwrap_or_default()
    }

    /// The key as text, as it is sent to the store.
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
