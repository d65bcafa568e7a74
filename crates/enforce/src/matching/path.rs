//! The normal form of a request path, with which globs are compared.
//!
//! Two spellings that an app can serve as one path must have one normal form. Otherwise, a client could evade a limit
//! with another spelling: `/api/%61`, `/api//a` and `/x/../api/a` all become `/api/a`. Percent-encoding is decoded for
//! every character that a segment can contain (RFC 3986 section 3.3), and other bytes are encoded in upper case. `.`
//! and `..` are resolved (section 5.2.4), and repeated slashes become one slash. No byte is decoded twice. The normal
//! form is used only for comparison: the app gets the original path.
//!
//! Some paths have no form that is right for all apps: nginx and WSGI read `%2F` as a slash, other apps read it as part
//! of a segment. nginx resolves `/admin/..`, and Express and Flask serve it by a route for `/admin/*`.
//! [`AmbiguousPaths`] determines how to treat such paths.
//!
//! Some apps accept more spellings of one path: they ignore case, or drop `;name=value` after a segment. Here, as for
//! most apps, these are different paths. For such an app, use a regular expression: `(?i)^/api(;[^/]*)?/login`.

use std::borrow::Cow;

use crate::byte_set::ByteSet;

/// The treatment of paths that apps read in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AmbiguousPaths {
    /// The server answers 400, and no rule is checked.
    Refuse,
    /// Rules read the path like apps that decode and resolve it: an encoded slash and a backslash separate segments, and
    /// `..;x` is `..`. The app gets the original path.
    Decode,
    /// Rules read the path like apps that resolve `.` and `..`, but do not decode the path: an encoded slash, a backslash
    /// and `;x` are parts of a segment. The app gets the original path.
    Keep,
}

/// Whether apps read this path in different ways.
pub fn is_ambiguous(path: &str) -> bool {
    // Most paths contain none of these bytes, and no segment with a dot at its beginning.
    let mut before = b'/';
    let is_odd = |byte: u8| {
        let dot = byte == b'.' && before == b'/';
        before = byte;
        dot || matches!(byte, b'%' | b';' | b'\\')
    };
    if !path.bytes().any(is_odd) {
        return false;
    }
    let mut spelled = String::with_capacity(path.len());
    respell(path, &mut spelled);
    ["%2F", "%5C", "%00"].iter().any(|odd| spelled.contains(odd))
        || spelled.split('/').any(|segment| matches!(without_parameter(segment), "." | ".."))
}

/// Removes the suffix of a dot segment that some apps read as a parameter.
fn without_parameter(segment: &str) -> &str {
    match segment.split_once(';') {
        Some((dots @ ("." | ".."), _)) => dots,
        _ => segment,
    }
}

/// Normalises the path of a request target (without its query).
pub(super) fn normalise(path: &str, ambiguous: AmbiguousPaths) -> Cow<'_, str> {
    if is_normal(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    let mut spelled = String::with_capacity(path.len());
    respell(path, &mut spelled);
    Cow::Owned(match ambiguous {
        AmbiguousPaths::Decode => resolve(&spelled.replace("%2F", "/").replace("%5C", "/"), without_parameter),
        AmbiguousPaths::Refuse | AmbiguousPaths::Keep => resolve(&spelled, |segment| segment),
    })
}

/// Appends `text` with segment characters decoded and all other bytes percent-encoded. Slashes are copied.
pub(crate) fn respell(text: &str, to: &mut String) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let (byte, length) = match decoded(&bytes[at..]) {
            Some(byte) => (byte, 3),
            None => (bytes[at], 1),
        };
        if ByteSet::SEGMENT.has(byte) || (byte == b'/' && length == 1) {
            to.push(char::from(byte));
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            to.push('%');
            to.push(char::from(HEX[usize::from(byte >> 4)]));
            to.push(char::from(HEX[usize::from(byte & 15)]));
        }
        at += length;
    }
}

/// Whether a path is clearly in normal form, as most paths are. Returns false for a few normal paths with dots.
fn is_normal(path: &[u8]) -> bool {
    let mut behind_slash = false;
    path.iter().all(|&byte| {
        let normal = ByteSet::SEGMENT.has(byte) && !(behind_slash && byte == b'.') || byte == b'/' && !behind_slash;
        behind_slash = byte == b'/';
        normal
    })
}

/// Decodes a leading `%XX`.
fn decoded(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// Resolves dot segments and repeated slashes. A final slash is kept.
fn resolve(path: &str, read: fn(&str) -> &str) -> String {
    let Some(relative) = path.strip_prefix('/') else { return path.to_owned() };
    let mut out = String::with_capacity(path.len());
    let mut ends_open = false;
    for segment in relative.split('/').map(read) {
        ends_open = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => out.truncate(out.rfind('/').unwrap_or(0)),
            name => {
                out.push('/');
                out.push_str(name);
            }
        }
    }
    if ends_open || out.is_empty() {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_of_one_path_have_one_form() {
        for (path, expected) in [
            ("/", "/"),
            ("/api/a", "/api/a"),
            ("/api/%61", "/api/a"),
            ("/api//a", "/api/a"),
            ("//api///a", "/api/a"),
            ("/x/../api/a", "/api/a"),
            ("/x/%2e%2E/api/./a", "/api/a"),
            ("/../../api", "/api"),
            ("/api/", "/api/"),
            ("/api/.", "/api/"),
            ("/api/x/..", "/api/"),
            ("/..", "/"),
            ("/...", "/..."),
            ("/.well-known/x", "/.well-known/x"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%252fb", "/a%252fb"),
            ("/%4", "/%254"),
            ("/%zz", "/%25zz"),
            ("/users%3Abatch", "/users:batch"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a\"b", "/a%22b"),
            ("*", "*"),
        ] {
            assert_eq!(normalise(path, AmbiguousPaths::Keep), expected, "{path}");
        }
    }

    #[test]
    fn what_apps_read_in_different_ways_is_known_and_read_as_it_was_chosen() {
        for (path, kept, decoded) in [
            ("/api%2fx", "/api%2Fx", "/api/x"),
            ("/%2Fapi/x", "/%2Fapi/x", "/api/x"),
            ("/z%2f..%2fapi/x", "/z%2F..%2Fapi/x", "/api/x"),
            ("/z%2f%2e%2e%2fapi/x", "/z%2F..%2Fapi/x", "/api/x"),
            ("/z/..;/api/x", "/z/..;/api/x", "/api/x"),
            ("/z/..;a=b;c/api/.;/x", "/z/..;a=b;c/api/.;/x", "/api/x"),
            ("/z/%2e.%3b/api/x", "/z/..;/api/x", "/api/x"),
            ("/api\\x", "/api%5Cx", "/api/x"),
            ("/z\\..\\api%5cx", "/z%5C..%5Capi%5Cx", "/api/x"),
            ("/api%00", "/api%00", "/api%00"),
            ("/%%2f", "/%25%2F", "/%25/"),
            ("/api/x/..", "/api/", "/api/"),
            ("/x/../api//%61", "/api/a", "/api/a"),
            ("/x/%2e%2E/api", "/api", "/api"),
            ("/x/.%2e/api/%2e", "/api/", "/api/"),
            ("/./api", "/api", "/api"),
            ("/..", "/", "/"),
        ] {
            assert!(is_ambiguous(path), "{path}");
            assert_eq!(normalise(path, AmbiguousPaths::Keep), kept, "{path}");
            assert_eq!(normalise(path, AmbiguousPaths::Decode), decoded, "{path}");
        }
        for path in [
            "/", "/api/x", "/a;b=c/d", "/...;a", "/.env", "/..a//%61..", "/%252f", "/%255c", "/%252e%252e",
            "/caf%c3%a9", "*",
        ] {
            assert!(!is_ambiguous(path), "{path}");
            let [kept, decoded] =
                [AmbiguousPaths::Keep, AmbiguousPaths::Decode].map(|ambiguous| normalise(path, ambiguous));
            assert_eq!(kept, decoded, "{path}");
        }
    }

    #[test]
    fn an_ordinary_path_is_borrowed() {
        assert!(matches!(normalise("/api/v1/users/42", AmbiguousPaths::Refuse), Cow::Borrowed(_)));
    }

    /// Generates two spellings of one path, which can differ in each segment.
    fn two_spellings() -> impl Strategy<Value = (String, String)> {
        let character = prop_oneof![any::<[bool; 1]>().prop_map(|_| 'a'), prop::char::range('!', '~')];
        prop::collection::vec((character, any::<bool>()), 0..24).prop_map(|characters| {
            let (mut plain, mut other) = (String::from("/"), String::from("/"));
            for (character, encode) in characters {
                match character {
                    '/' if encode => {
                        plain.push('/');
                        other.push_str("/.//");
                    }
                    '%' | '?' | '#' => {}
                    '/' => {
                        plain.push('/');
                        other.push('/');
                    }
                    _ => {
                        plain.push(character);
                        if encode {
                            other.push_str(&format!("%{:02x}", u32::from(character)));
                        } else {
                            other.push(character);
                        }
                    }
                }
            }
            (plain, other)
        })
    }

    proptest! {
        #[test]
        fn another_spelling_changes_nothing((plain, other) in two_spellings()) {
            prop_assert_eq!(normalise(&plain, AmbiguousPaths::Keep), normalise(&other, AmbiguousPaths::Keep));
        }

        #[test]
        fn the_normal_form_is_normal(path in "/[a-c./%2eEfF\u{e9}]{0,24}") {
            let once = normalise(&path, AmbiguousPaths::Keep).into_owned();
            prop_assert_eq!(normalise(&once, AmbiguousPaths::Keep), once.as_str());
            prop_assert!(once.starts_with('/'));
            prop_assert!(!once.contains("//") && !once.split('/').any(|segment| segment == "." || segment == ".."));
        }
    }
}
