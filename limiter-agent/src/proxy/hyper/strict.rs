//! Refuses HTTP/1 messages that hyper accepts and a proxy must not accept: messages whose head or body other programs
//! could end at a different byte.
//!
//! This check parses the messages of a connection only as far as needed to find where each begins and ends. It stops at
//! the first line that violates RFC 9112:
//!
//! - a line that ends in LF alone, or a folded field,
//! - a second length, or a length together with `Transfer-Encoding` (section 6.1 allows a server to accept both; hyper
//!   would use the coding),
//! - any coding except `chunked`, or a chunk size followed by anything except extensions.
//!
//! hyper checks everything else. This module must never let a byte pass after the line at which it stopped, and never
//! change a byte before it.

use http::{
    HeaderMap,
    header::{CONNECTION, UPGRADE},
};

use crate::proxy::headers::{digits, elements};

/// The longest line that is stored. hyper's own limits are lower.
const MAX_LINE: usize = 1024 * 1024 + 64;

/// The number of bytes at the beginning of a line that show whether it is one of [`Field`]. The longest name and its
/// colon are shorter.
const PREFIX: usize = 20;

/// The largest length of a body that hyper accepts. It answers larger lengths with 431, as if the head were too large.
const MOST_LENGTH: u64 = u64::MAX - 2;

/// Follows the requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Strict {
    state: State,
    /// The beginning of a line that arrived in pieces. If the rest of the line does not matter, its last byte follows.
    partial: Vec<u8>,
    head: Head,
    /// The first head was complete.
    past_first_head: bool,
    /// No request follows this one, independently of the app's response.
    last: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    ChunkSize,
    ChunkEnd,
    Trailer,
    /// This many bytes of a body or of a chunk remain.
    Data {
        left: u64,
        chunked: bool,
    },
    /// The following bytes are not HTTP, or do not matter because the connection will be closed.
    Tunnel,
}

#[derive(Debug, Default)]
struct Head {
    begun: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: UpgradeFields,
}

impl Strict {
    /// Checks the next bytes. `Some` is the end of an invalid line, after which no byte must pass.
    pub(super) fn check(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.state {
                State::Tunnel => return None,
                State::Data { left, chunked } => {
                    let rest = bytes.len() - at;
                    let count = usize::try_from(*left).map_or(rest, |left| left.min(rest));
                    at += count;
                    *left -= count as u64;
                    if *left == 0 {
                        self.state = if *chunked { State::ChunkEnd } else { self.behind_message() };
                    }
                }
                State::Head | State::ChunkSize | State::ChunkEnd | State::Trailer => {
                    let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') else {
                        if self.partial.len() + bytes.len() - at > MAX_LINE {
                            return Some(bytes.len() - 1);
                        }
                        self.keep(&bytes[at..]);
                        return None;
                    };
                    if !self.line(&bytes[at..at + length]) {
                        return Some(at + length);
                    }
                    at += length + 1;
                }
            }
        }
        None
    }

    /// Keeps a piece of a line. A second copy of a long line would double the memory of a connection.
    fn keep(&mut self, piece: &[u8]) {
        let missing = PREFIX.saturating_sub(self.partial.len()).min(piece.len());
        let (beginning, rest) = piece.split_at(missing);
        self.partial.extend_from_slice(beginning);
        let Some(last) = rest.last() else { return };
        let matters = match self.state {
            State::Head | State::Trailer => Field::of(&self.partial).is_some(),
            _ => true,
        };
        if matters {
            self.partial.extend_from_slice(rest);
        } else {
            self.partial.truncate(PREFIX);
            self.partial.push(*last);
        }
    }

    /// Whether the first head is incomplete. Empty lines can precede it.
    pub(super) fn is_in_first_head(&self) -> bool {
        !self.past_first_head
    }

    /// The number of bytes that this value keeps.
    pub(super) fn kept(&self) -> usize {
        self.partial.capacity()
    }

    /// Whether all requests so far are complete.
    pub(super) fn is_whole(&self) -> bool {
        match self.state {
            State::Tunnel => true,
            State::Head => !self.head.begun && self.partial.is_empty(),
            State::ChunkSize | State::ChunkEnd | State::Trailer | State::Data { .. } => false,
        }
    }

    fn behind_message(&self) -> State {
        if self.last { State::Tunnel } else { State::Head }
    }

    /// Handles a line without its LF, or the rest of such a line. Returns false if the line is invalid.
    fn line(&mut self, rest: &[u8]) -> bool {
        if self.partial.is_empty() {
            return rest.strip_suffix(b"\r").is_some_and(|line| self.whole_line(line));
        }
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(rest);
        let sound = line.strip_suffix(b"\r").is_some_and(|line| self.whole_line(line));
        line.clear();
        self.partial = line;
        sound
    }

    fn whole_line(&mut self, line: &[u8]) -> bool {
        match self.state {
            State::Head if line.is_empty() => {
                // Empty lines before a request are allowed (RFC 9112 section 2.2).
                if self.head.begun {
                    self.past_first_head = true;
                    let head = std::mem::take(&mut self.head);
                    self.last = head.upgrade.ask();
                    self.state = head.body().unwrap_or_else(|| self.behind_message());
                }
                true
            }
            State::Head if self.head.begun => self.head.field(line),
            State::Head => {
                self.head.begun = true;
                true
            }
            State::ChunkSize => match chunk_size(line) {
                Some(0) => {
                    self.state = State::Trailer;
                    true
                }
                Some(left) => {
                    self.state = State::Data { left, chunked: true };
                    true
                }
                None => false,
            },
            State::ChunkEnd => {
                self.state = State::ChunkSize;
                line.is_empty()
            }
            State::Trailer => {
                if line.is_empty() {
                    self.state = self.behind_message();
                }
                !is_folded(line) && !Field::of(line).is_some_and(|(field, _)| field.frames())
            }
            State::Data { .. } | State::Tunnel => true,
        }
    }
}

impl Head {
    fn field(&mut self, line: &[u8]) -> bool {
        if is_folded(line) {
            return false;
        }
        let Some((field, value)) = Field::of(line) else { return true };
        let first = self.length.is_none() && !self.chunked;
        match field {
            Field::ContentLength => {
                self.length = digits(value, 10).filter(|length| *length <= MOST_LENGTH);
                first && self.length.is_some()
            }
            Field::TransferEncoding => {
                self.chunked = true;
                first && value.eq_ignore_ascii_case(b"chunked")
            }
            Field::Connection => {
                self.upgrade.connection(value);
                true
            }
            Field::Upgrade => {
                self.upgrade.upgrade(value);
                true
            }
        }
    }

    /// The state after a head, or `None` if there is no body.
    fn body(&self) -> Option<State> {
        match self.length {
            _ if self.chunked => Some(State::ChunkSize),
            Some(left @ 1..) => Some(State::Data { left, chunked: false }),
            Some(0) | None => None,
        }
    }
}

/// The fields that define what follows a head.
enum Field {
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
}

impl Field {
    fn of(line: &[u8]) -> Option<(Self, &[u8])> {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let field = match colon {
            14 if name.eq_ignore_ascii_case(b"content-length") => Self::ContentLength,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => Self::TransferEncoding,
            10 if name.eq_ignore_ascii_case(b"connection") => Self::Connection,
            7 if name.eq_ignore_ascii_case(b"upgrade") => Self::Upgrade,
            _ => return None,
        };
        Some((field, value))
    }

    fn frames(&self) -> bool {
        matches!(self, Self::ContentLength | Self::TransferEncoding)
    }
}

/// The fields of a head that together ask for an upgrade. `Upgrade` without `Connection: upgrade` asks for nothing
/// (RFC 9110 section 7.8). Some clients offer TLS or HTTP/2 to every server, and the agent never accepts these.
#[derive(Clone, Copy, Debug, Default)]
struct UpgradeFields {
    announced: bool,
    named: bool,
}

impl UpgradeFields {
    fn connection(&mut self, value: &[u8]) {
        self.announced |= elements(value).any(|token| token.eq_ignore_ascii_case("upgrade"));
    }

    fn upgrade(&mut self, value: &[u8]) {
        self.named |= elements(value).any(|protocol| !carries_http(protocol));
    }

    fn ask(self) -> bool {
        self.announced && self.named
    }
}

/// Whether a request asks for an upgrade that the agent could forward. The bytes after such a request are not checked.
pub(super) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let mut fields = UpgradeFields::default();
    if headers.contains_key(UPGRADE) {
        headers.get_all(CONNECTION).iter().for_each(|value| fields.connection(value.as_bytes()));
        headers.get_all(UPGRADE).iter().for_each(|value| fields.upgrade(value.as_bytes()));
    }
    fields.ask()
}

/// Whether a protocol of `Upgrade` is another version of HTTP, or HTTP over TLS. Some servers also accept the names of
/// HTTP/2 before it was a standard, such as `h2c-17`.
pub(super) fn carries_http(protocol: &str) -> bool {
    let name = protocol.split(['/', '-']).next().unwrap_or_default();
    ["h2c", "h2", "http", "tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

fn is_folded(line: &[u8]) -> bool {
    line.starts_with(b" ") || line.starts_with(b"\t")
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let rest = &line[end..];
    let sound = rest.is_empty() || rest.trim_ascii_start().starts_with(b";");
    digits(&line[..end], 16).filter(|_| sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The position at which the check stops if the bytes arrive in pieces of `size`.
    fn stop(bytes: &[u8], size: usize) -> Option<usize> {
        let mut strict = Strict::default();
        let pieces = bytes.chunks(size).enumerate();
        pieces.map(|(index, piece)| Some(index * size + strict.check(piece)?)).find_map(|stopped| stopped)
    }

    #[test]
    fn only_lines_whose_values_matter_are_kept() {
        let long = "a".repeat(60_000);
        for (line, most) in [(format!("x: {long}"), 64), (long.clone(), 64), (format!("upgrade: {long}"), 200_000)] {
            let mut strict = Strict::default();
            for piece in format!("GET /{long} HTTP/1.1\r\n{line}").as_bytes().chunks(1000) {
                assert_eq!(strict.check(piece), None);
                assert!(strict.partial.capacity() <= most, "{}", &line[..20]);
            }
            assert!(strict.is_in_first_head());
            assert_eq!(strict.check(b"\r\n\r\nGET"), None);
            assert!(!strict.is_in_first_head(), "the second head is incomplete");
        }
    }

    #[test]
    fn is_whole_tells_complete_requests_from_partial_ones() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n";
        for whole in [
            format!("{get}\r\n"),
            format!("{get}content-length: 3\r\n\r\nabc"),
            format!("{get}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n"),
            format!("{get}connection: upgrade\r\nupgrade: websocket\r\n\r\n"),
            format!("{get}connection: upgrade\r\nupgrade: x\r\ncontent-length: 3\r\n\r\nabc"),
            format!(
                "{get}connection: a, Upgrade\r\ntransfer-encoding: chunked\r\nupgrade: x\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            ),
        ] {
            for end in 0..=whole.len() {
                let mut strict = Strict::default();
                assert_eq!(strict.check(&whole.as_bytes()[..end]), None);
                assert_eq!(strict.is_whole(), end == 0 || end == whole.len(), "{whole:?} up to {end}");
            }
        }
    }

    #[test]
    fn it_stops_at_the_invalid_line_with_any_splitting() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n";
        for (text, wrong) in [
            (format!("{get}\r\n{get}\r\n"), None),
            (format!("\r\n\r\n{get}\r\n"), None),
            (format!("{get}content-length: 3\r\n\r\na\nb{get}\r\n"), None),
            (format!("{get}content-length: 0\r\n\r\n{get}\r\n"), None),
            (format!("{get}transfer-encoding: Chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\nx: y\r\n\r\n{get}\r\n"), None),
            (format!("{get}connection: upgrade\r\nupgrade: websocket\r\n\r\nany\nthing"), None),
            (format!("{get}connection: upgrade\r\nupgrade: x\r\ncontent-length: 3\r\n\r\na\nbany\nthing"), None),
            (
                format!(
                    "{get}connection: upgrade\r\nupgrade: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nany\nthing"
                ),
                None,
            ),
            (
                format!("{get}connection: upgrade\r\nupgrade: x\r\ntransfer-encoding: chunked\r\n\r\n3 \r\nabc\r\n"),
                Some("3 \r"),
            ),
            ("GET / HTTP/1.1\nhost: a\r\n\r\n".into(), Some("GET / HTTP/1.1")),
            (format!("{get}x: y\n\r\n"), Some("x: y")),
            (format!("{get}\n"), Some("")),
            (format!("{get}upgrade: h2c\r\n\r\nGET / HTTP/1.1\n\r\n"), Some("GET / HTTP/1.1")),
            (format!("{get}upgrade: websocket\r\n\r\nGET / HTTP/1.1\n\r\n"), Some("GET / HTTP/1.1")),
            (format!("{get}connection: upgrade\r\n\r\nGET / HTTP/1.1\n\r\n"), Some("GET / HTTP/1.1")),
            (
                format!("{get}connection: upgrade\r\nupgrade: TLS/1.2, h2c-17\r\n\r\nGET / HTTP/1.1\n\r\n"),
                Some("GET / HTTP/1.1"),
            ),
            (format!("{get}upgrade: TLS/1.2, x\r\nconnection: a\r\nconnection: upgrade\r\n\r\nany\nthing"), None),
            (format!("{get} folded\r\n\r\n"), Some(" folded\r")),
            (format!("{get}content-length: 3\r\ncontent-length: 3\r\n\r\n"), Some("content-length: 3\r")),
            (
                format!("{get}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"),
                Some("transfer-encoding: chunked\r"),
            ),
            (format!("{get}transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n"), Some("content-length: 3\r")),
            (
                format!("{get}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n"),
                Some("transfer-encoding: chunked\r"),
            ),
            (format!("{get}transfer-encoding: gzip, chunked\r\n\r\n"), Some("transfer-encoding: gzip, chunked\r")),
            (format!("{get}transfer-encoding: \u{b}chunked\r\n\r\n"), Some("transfer-encoding: \u{b}chunked\r")),
            (format!("{get}content-length: +3\r\n\r\n"), Some("content-length: +3\r")),
            (format!("{get}content-length: 3, 3\r\n\r\n"), Some("content-length: 3, 3\r")),
            (
                format!("{get}content-length: 99999999999999999999\r\n\r\n"),
                Some("content-length: 99999999999999999999\r"),
            ),
            (
                format!("{get}content-length: 18446744073709551614\r\n\r\n"),
                Some("content-length: 18446744073709551614\r"),
            ),
            (format!("{get}content-length: 18446744073709551613\r\n\r\n"), None),
            (format!("{get}transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n"), Some("0x3\r")),
            (format!("{get}transfer-encoding: chunked\r\n\r\n3 \r\nabc\r\n"), Some("3 \r")),
            (format!("{get}transfer-encoding: chunked\r\n\r\n3\nabc\r\n"), Some("3")),
            (format!("{get}transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n"), Some("d\r")),
            (
                format!("{get}transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 3\r\n\r\n"),
                Some("content-length: 3\r"),
            ),
            (format!("{get}content-length: 3\r\n\r\nabc{get}\n"), Some("")),
        ] {
            // The last such line is the invalid one.
            let expected =
                wrong.map(|line| text.rfind(&format!("{line}\n")).expect("the text contains the line") + line.len());
            for size in 1..=text.len() {
                assert_eq!(stop(text.as_bytes(), size), expected, "{text:?} in pieces of {size}");
            }
        }
    }
}
