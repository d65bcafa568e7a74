//! The values of keys that an override names, in the form in which agents compare them.
//!
//! The operator checks overrides with these functions, and agents use them for the keys that overrides name. A test in
//! `crates/enforce/src/key.rs` compares these keys with the keys of requests.

use std::net::{IpAddr, Ipv6Addr};

/// The maximum length of a host name without the final dot (RFC 1035 section 2.3.4).
const LONGEST_HOST: usize = 253;

/// A part of a key, as far as its values depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedPart {
    /// Any text, such as the value of a header. It is compared byte by byte.
    Text,
    /// The value of a cookie, which is compared as [`cookie_value`] returns it.
    Cookie,
    /// An address. IPv6 addresses are equal if their first `ipv6_prefix` bits are.
    Address {
        /// The number of bits, 1 to 128.
        ipv6_prefix: u8,
    },
    /// A segment of a path.
    Segment,
    /// A path without its query.
    Path,
    /// A host without port.
    Host,
    /// A method.
    Method,
}

/// The error for a value that no request can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// A clientIP is not an address.
    #[error("is not an IP address: this part of the key is clientIP, write it as in 192.0.2.7")]
    Address,
    /// A pathSegment is empty or several segments.
    #[error("is not one segment of a path: write it without \"/\", as in orders")]
    Segment,
    /// A path does not begin with a slash, or it has dot segments.
    #[error("is not a path: write it with \"/\" at the beginning and without \".\" and \"..\", as in /orders/7")]
    Path,
    /// A host is not a host name.
    #[error("is not a host: write it without scheme, port or wildcard, as in shop.example.com")]
    Host,
    /// A method has lower-case letters or other characters.
    #[error("is not a method in upper case, such as GET")]
    Method,
}

impl NamedPart {
    /// Returns the form of a value in which agents compare it.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if no request can have the value.
    pub fn normal(self, value: &str) -> Result<String, InvalidValue> {
        match self {
            Self::Text => Ok(value.to_owned()),
            Self::Cookie => Ok(String::from_utf8_lossy(cookie_value(value.as_bytes())).into_owned()),
            Self::Address { ipv6_prefix } => address(value, ipv6_prefix).ok_or(InvalidValue::Address),
            Self::Segment if value.is_empty() || value.contains('/') => Err(InvalidValue::Segment),
            Self::Segment => Ok(segment(value.as_bytes())),
            Self::Path => path(value).ok_or(InvalidValue::Path),
            Self::Host => host(value).ok_or(InvalidValue::Host),
            Self::Method if is_method(value) => Ok(value.to_owned()),
            Self::Method => Err(InvalidValue::Method),
        }
    }
}

/// Returns the value of a cookie without blanks around it, and without one pair of quotation marks: programs read all these
/// forms as one value.
///
/// ```
/// use weir_expressions::cookie_value;
///
/// assert_eq!(cookie_value(b" \"gold\" "), b"gold");
/// ```
pub fn cookie_value(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii();
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

fn address(value: &str, ipv6_prefix: u8) -> Option<String> {
    Some(match value.parse::<IpAddr>().ok()?.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let host_bits = 128_u32.saturating_sub(ipv6_prefix.into());
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).to_string()
        }
    })
}

/// Returns a segment with the characters of RFC 3986 section 3.3 decoded, and all other bytes percent-encoded.
fn segment(value: &[u8]) -> String {
    let mut normal = String::with_capacity(value.len());
    let mut rest = value;
    while let [first, behind @ ..] = rest {
        let (byte, behind) = match rest {
            [b'%', high, low, behind @ ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, behind),
                _ => (*first, &rest[1..]),
            },
            _ => (*first, behind),
        };
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
            normal.push(char::from(byte));
        } else {
            normal.push_str(&format!("%{byte:02X}"));
        }
        rest = behind;
    }
    normal
}

/// Returns a path with its segments in normal form, and without repeated slashes and a final slash. `None` if it is no path,
/// or if it has dot segments, which the normal form of no path has.
fn path(value: &str) -> Option<String> {
    let mut normal = String::with_capacity(value.len());
    for segment in value.strip_prefix('/')?.split('/').filter(|segment| !segment.is_empty()) {
        normal.push('/');
        normal.push_str(&self::segment(segment.as_bytes()));
    }
    let has_dots = normal.split('/').any(|segment| matches!(segment, "." | ".."));
    if normal.is_empty() {
        normal.push('/');
    }
    (!has_dots).then_some(normal)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Returns a host in lower case, without a final dot. `None` if it is no host.
fn host(value: &str) -> Option<String> {
    let name = value.strip_suffix('.').unwrap_or(value);
    let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_valid = match literal {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
    };
    (is_valid && (1..=LONGEST_HOST).contains(&name.len())).then(|| name.to_ascii_lowercase())
}

/// Returns true for a token (RFC 9110 section 5.6.2) without lower-case letters.
fn is_method(value: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !value.is_empty() && value.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_form_in_which_agents_compare_them() {
        use InvalidValue::{Address, Host, Method, Path, Segment};
        let prefix = |ipv6_prefix| NamedPart::Address { ipv6_prefix };
        for (part, value, expected) in [
            (NamedPart::Text, "Any %61 text/", Ok("Any %61 text/")),
            (NamedPart::Text, "", Ok("")),
            (NamedPart::Text, " \"gold\"", Ok(" \"gold\"")),
            (NamedPart::Cookie, "gold", Ok("gold")),
            (NamedPart::Cookie, " \"gold\"\t", Ok("gold")),
            (NamedPart::Cookie, "\"", Ok("\"")),
            (prefix(64), "192.0.2.7", Ok("192.0.2.7")),
            (prefix(64), "::ffff:192.0.2.7", Ok("192.0.2.7")),
            (prefix(64), "2001:DB8::1", Ok("2001:db8::")),
            (prefix(128), "2001:db8:0::1", Ok("2001:db8::1")),
            (prefix(1), "ffff::", Ok("8000::")),
            (prefix(64), "gold", Err(Address)),
            (prefix(64), "010.0.0.1", Err(Address)),
            (NamedPart::Segment, "orders", Ok("orders")),
            (NamedPart::Segment, "%6frders", Ok("orders")),
            (NamedPart::Segment, "a%2fb", Ok("a%2Fb")),
            (NamedPart::Segment, "a%2", Ok("a%252")),
            (NamedPart::Segment, "%zz%", Ok("%25zz%25")),
            (NamedPart::Segment, "a b", Ok("a%20b")),
            (NamedPart::Segment, "\u{e9}", Ok("%C3%A9")),
            (NamedPart::Segment, "a/b", Err(Segment)),
            (NamedPart::Segment, "", Err(Segment)),
            (NamedPart::Path, "/", Ok("/")),
            (NamedPart::Path, "//", Ok("/")),
            (NamedPart::Path, "/orders/%37/", Ok("/orders/7")),
            (NamedPart::Path, "//orders//7", Ok("/orders/7")),
            (NamedPart::Path, "/a%2fb\u{e9}", Ok("/a%2Fb%C3%A9")),
            (NamedPart::Path, "/.env", Ok("/.env")),
            (NamedPart::Path, "orders", Err(Path)),
            (NamedPart::Path, "", Err(Path)),
            (NamedPart::Path, "/a/../b", Err(Path)),
            (NamedPart::Path, "/a/%2e", Err(Path)),
            (NamedPart::Host, "Shop.Example.com.", Ok("shop.example.com")),
            (NamedPart::Host, "[::1]", Ok("[::1]")),
            (NamedPart::Host, "a_b", Ok("a_b")),
            (NamedPart::Host, "a.com:80", Err(Host)),
            (NamedPart::Host, "*.a.com", Err(Host)),
            (NamedPart::Host, "[a]", Err(Host)),
            (NamedPart::Host, "a b", Err(Host)),
            (NamedPart::Host, ".", Err(Host)),
            (NamedPart::Host, "", Err(Host)),
            (NamedPart::Host, &"a".repeat(254), Err(Host)),
            (NamedPart::Method, "M-SEARCH", Ok("M-SEARCH")),
            (NamedPart::Method, "get", Err(Method)),
            (NamedPart::Method, "G T", Err(Method)),
            (NamedPart::Method, "", Err(Method)),
        ] {
            assert_eq!(part.normal(value), expected.map(str::to_owned), "{part:?} {value:?}");
        }
    }
}
