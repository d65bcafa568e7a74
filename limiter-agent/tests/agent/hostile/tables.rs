//! Requests that parsers could read in two ways, or for which rules and app could find different clients.
//!
//! Each request is sent as two messages, one of HTTP/1.1 and one of HTTP/2. A request that passes must reach the app as
//! `message.rs` defines, and must be counted equally. A refused request must neither reach the app nor be counted.

use self::Expected::{Alike, Passes, Refused};
use super::{
    message::Message,
    words::{
        COOKIES, FORWARDED, FORWARDED_FOR, HOSTS_PASS, HOSTS_REFUSED, KEYS_PASS, LENGTHS_PASS, LENGTHS_REFUSED,
        METHODS_PASS, METHODS_REFUSED, MORE, NAMES_REFUSED, OF_CONNECTION, PATHS_PASS, PATHS_REFUSED, TOKENS, TRAILERS,
        TRAILERS_REFUSED, VALUES_REFUSED,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Passes,
    Refused,
    /// Both outcomes are allowed, but they must be equal in both protocols.
    Alike,
}

pub(crate) struct Row {
    /// The subject of the test, for reports.
    pub(crate) about: &'static str,
    pub(crate) message: Message,
    /// The expected outcome over HTTP/1.1. Over HTTP/2 it is the same, except for the differences that `differences.rs`
    /// allows.
    pub(crate) expected: Expected,
}

fn rows<'t, T: ?Sized + 't>(
    about: &'static str,
    expected: Expected,
    table: &'t [&'t T],
    make: impl Fn(&'t T) -> Message + 't,
) -> impl Iterator<Item = Row> + 't {
    table.iter().map(move |entry| Row { about, message: make(entry), expected })
}

fn path(path: &str) -> Message {
    Message { path: path.into(), ..Message::plain() }
}

fn host(host: &str) -> Message {
    Message { authority: Some(host.into()), ..Message::plain() }
}

fn two_hosts(authority: Option<&str>, hosts: &[&str]) -> Message {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Message { authority: authority.map(str::to_owned), hosts, ..Message::plain() }
}

pub(crate) fn rows_of_all() -> Vec<Row> {
    let pairs = |about, expected, table: &'static [(&'static str, &'static str)]| {
        table.iter().map(move |(name, value)| Row { about, message: Message::plain().with(name, value), expected })
    };
    let trailing = |about, expected, table: &'static [(&'static str, &'static str)]| {
        table.iter().map(move |(name, value)| {
            let trailers = vec![((*name).to_owned(), (*value).to_owned())];
            let message = Message { chunked: true, trailers, ..Message::plain().posting("hello") };
            Row { about, message, expected }
        })
    };
    let row = |about, expected, message| Row { about, message, expected };
    let mut all: Vec<Row> = Vec::new();
    all.extend(rows("ambiguous paths", Refused, PATHS_REFUSED, path));
    all.extend(rows("paths", Passes, PATHS_PASS, path));
    all.extend(rows("ambiguous hosts", Refused, HOSTS_REFUSED, host));
    all.extend(rows("hosts", Passes, HOSTS_PASS, host));
    // The target and the `Host` fields contradict each other, or name no host.
    for (authority, hosts, expected) in [
        (Some("shop.example.com"), &["shop.example.com"][..], Passes),
        (Some("shop.example.com"), &["SHOP.example.com"], Passes),
        (Some("shop.example.com"), &["b"], Passes),
        (Some("shop.example.com"), &["shop.example.com:80"], Passes),
        (Some("shop.example.com"), &[""], Passes),
        (Some("shop.example.com"), &["shop.example.com "], Passes),
        (Some("b"), &["shop.example.com"], Passes),
        (Some(""), &["shop.example.com"], Refused),
        (Some("u@shop.example.com"), &["shop.example.com"], Refused),
        (Some("shop.example.com"), &["b]"], Refused),
        (Some("shop.example.com"), &["a, b"], Refused),
        (Some("shop.example.com"), &["shop.example.com", "shop.example.com"], Refused),
        (Some("shop.example.com"), &["shop.example.com", "b"], Refused),
        (None, &["shop.example.com"], Passes),
        (None, &["shop.example.com", "b"], Refused),
        (None, &["b", "shop.example.com"], Refused),
        (None, &["shop.example.com", "shop.example.com"], Refused),
        (None, &["shop.example.com", ""], Refused),
        (None, &["a, b"], Refused),
        (None, &["shop.example.com:80]"], Refused),
        (None, &["[::1"], Refused),
        (None, &[], Refused),
    ] {
        all.push(row("two hosts, or none", expected, two_hosts(authority, hosts)));
    }
    all.extend(rows("keys", Passes, KEYS_PASS, |value| Message::plain().instead("x-key", value)));
    all.extend(rows("keys", Passes, &["bob", "", "ann", "\u{e4}", " ann"], |value| {
        Message::plain().with("x-key", value)
    }));
    all.extend(rows("values with invalid bytes", Refused, VALUES_REFUSED, |value| {
        Message::plain().instead("x-key", value)
    }));
    all.extend(rows("cookies", Passes, COOKIES, |value| Message::plain().instead("cookie", value)));
    all.extend(rows("cookies", Passes, COOKIES, |value| Message::plain().with("cookie", value)));
    all.extend(rows("cookies in crumbs", Passes, &["a=1; b=2", "b=2; a=1", "a=1; a=2", "c=3; a=1; b=2"], |value| {
        Message { crumbs: true, ..Message::plain().instead("cookie", value) }
    }));
    all.extend(rows("X-Forwarded-For", Passes, FORWARDED_FOR, |value| {
        Message::plain().instead("x-forwarded-for", value)
    }));
    all.extend(rows("X-Forwarded-For", Passes, FORWARDED_FOR, |value| Message::plain().with("x-forwarded-for", value)));
    all.extend(rows("Forwarded", Passes, FORWARDED, |value| Message::plain().with("forwarded", value)));
    all.extend(rows("tokens", Passes, TOKENS, |value| Message::plain().with("authorization", value)));
    all.extend(pairs("hop-by-hop fields", Passes, OF_CONNECTION));
    all.extend(pairs("one additional field", Passes, MORE));
    all.extend(rows("invalid names", Refused, NAMES_REFUSED, |name| Message::plain().with(name, "x")));
    let method = |method: &str| Message { method: method.into(), ..Message::plain() };
    all.extend(rows("invalid methods", Refused, METHODS_REFUSED, method));
    all.extend(rows("methods", Passes, METHODS_PASS, method));
    let length = |value: &str| Message::plain().posting("hello").with("content-length", value);
    all.extend(rows("invalid lengths", Refused, LENGTHS_REFUSED, length));
    all.extend(rows("lengths", Passes, LENGTHS_PASS, length));
    for twice in [["5", "5"], ["5", "6"], ["6", "5"], ["5", "05"], ["0", "5"], ["", "5"]] {
        all.push(row("invalid lengths", Refused, length(twice[0]).with("content-length", twice[1])));
    }
    for (body, chunked) in [
        ("", false),
        ("hello", false),
        ("hello", true),
        ("", true),
        ("0\r\n\r\nGET /admin HTTP/1.1\r\nhost: a\r\n\r\n", true),
    ] {
        for method in ["GET", "HEAD", "POST", "DELETE", "TRACE", "OPTIONS"] {
            let message = Message { method: method.into(), chunked, ..Message::plain().posting(body) };
            all.push(row("bodies", Passes, message.with("x-b", "1")));
        }
    }
    all.extend(trailing("trailers", Passes, TRAILERS));
    all.extend(trailing("invalid trailers", Refused, TRAILERS_REFUSED));
    all
}

/// Each byte in the middle of each part, except line ends, which have their own table in `smuggling`.
pub(crate) fn rows_of_bytes() -> Vec<Row> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let control = |byte: u8| byte < b' ' || byte == 0x7f;
    let segment = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    let mut all = Vec::new();
    for byte in (0..=u8::MAX).filter(|byte| !b"\r\n".contains(byte)) {
        let c = char::from(byte);
        let mut push = |about, expected, message| all.push(Row { about, message, expected });
        let value = if control(byte) && byte != b'\t' { Refused } else { Passes };
        push("each byte in a value", value, Message::plain().instead("x-key", &format!("a{c}b")));
        // A colon ends the name in HTTP/1.1.
        if byte != b':' {
            let name = if token(byte) { Passes } else { Refused };
            push("each byte in a name", name, Message::plain().with(&format!("x{c}y"), "z"));
        }
        let in_path = match byte {
            b' ' | b'\\' => Refused,
            _ if control(byte) => Refused,
            _ if segment(byte) => Passes,
            _ => Alike,
        };
        push("each byte in a path", in_path, path(&format!("/api/x{c}y")));
        let in_host = match byte {
            b'-' | b'.' | b'_' => Passes,
            _ if byte.is_ascii_alphanumeric() => Passes,
            _ if byte <= b' ' || byte >= 0x7f || b"@/?#\\[],\"<>^`{|}%".contains(&byte) => Refused,
            _ => Alike,
        };
        push("each byte in a host", in_host, host(&format!("shop{c}x.example.com")));
    }
    all
}
