//! Validates the host of a request: a name or an address, with an optional port (RFC 9110 section 7.2).
//!
//! Rules compare the host without its port, and each app removes the port in its own way. A host with an empty port,
//! two ports, or a broken bracket could be one host to a rule and another to the app. So only an unambiguous host
//! passes.

use std::net::Ipv6Addr;

use weir_enforce::ByteSet;

/// Whether the host can be read in one way only.
#[inline]
pub(super) fn is_sound(authority: &[u8]) -> bool {
    let (host, behind) = match authority {
        [b'[', literal @ ..] => match memchr::memchr(b']', literal) {
            Some(end) if is_ipv6(&literal[..end]) => literal.split_at(end + 1),
            _ => return false,
        },
        _ => {
            let (name, behind) = authority.split_at(memchr::memchr(b':', authority).unwrap_or(authority.len()));
            if !ByteSet::NAME.has_all(name) || has_empty_label(name) {
                return false;
            }
            (name, behind)
        }
    };
    match behind {
        [] => true,
        // RFC 3986 section 3.2.3 allows a colon without a port.
        [b':', port @ ..] => !host.is_empty() && port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn is_ipv6(literal: &[u8]) -> bool {
    str::from_utf8(literal).is_ok_and(|literal| literal.parse::<Ipv6Addr>().is_ok())
}

/// Whether a label of the name is empty. The label after a trailing dot is the root, which every name has.
fn has_empty_label(name: &[u8]) -> bool {
    name.first() == Some(&b'.') || name.windows(2).any(|pair| pair == b"..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// An independent parser finds the same host, and no user name.
        #[test]
        fn a_sound_authority_has_the_host_that_another_parser_reads(
            pieces in prop::collection::vec(
                prop::sample::select(&["a", "b.c", ".", ":", "80", "[", "]", "::1", "[::1]", "@", "%", "x", "-", " ", "\u{e4}"][..]),
                0..6,
            )
        ) {
            let text = pieces.concat();
            if is_sound(text.as_bytes()) {
                let port = text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
                let host = port.map_or(text.as_str(), |(host, _)| host);
                if let Ok(authority) = text.parse::<http::uri::Authority>() {
                    prop_assert_eq!(authority.host(), host);
                }
                prop_assert!(!text.contains(['@', '%', ' ']) && text.matches('[').count() == text.matches(']').count());
            }
        }
    }

    #[test]
    fn ambiguous_hosts_are_not_sound() {
        for sound in [
            "", "a", "shop.example.com", "shop.example.com.", "Shop_1-x.example.com:8080", "shop.example.com:",
            "192.0.2.1:80", "[::1]", "[2001:db8::1]:65535", "[::ffff:192.0.2.1]:1",
        ] {
            assert!(is_sound(sound.as_bytes()), "{sound}");
        }
        for wrong in [
            "shop.example.com:80]", "shop.example.com:]", "shop.example.com]", "a:80:80", "a::80", "a:x", "a:+80",
            ":80", ":", "[::1", "::1", "[]", "[x]y", "[x]", "[::1]y", "[::1]80", "[::1]:80]", "[[::1]]",
            "[fe80::1%25eth0]", "[v1.x]", "a[::1]", "a..b", "a..", ".a", ".", "%61", "a b", "a,b", "a/b", "a@b",
            "a\\b", "a\0", "\u{e4}",
        ] {
            assert!(!is_sound(wrong.as_bytes()), "{wrong}");
        }
    }
}
