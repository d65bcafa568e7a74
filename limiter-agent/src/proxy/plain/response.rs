//! Parses the head of the app's response, which determines how to read the body and which fields to forward.
//!
//! This module accepts exactly the responses that hyper's client on hyper's path accepts. Any other response becomes a
//! 502 with the same message as there.

use http::HeaderName;
use httparse::{Header, Status};

use super::{
    chunks::Chunks,
    field::{Field, FieldSpace},
    framing::Framing,
};
use crate::proxy::{
    app::InvalidResponse,
    headers::{Coding, MAX_ANSWER_BYTES, coding, elements, one_length},
};

/// The head of a final response.
#[derive(Debug)]
pub(super) struct Response<'h, 'b> {
    pub(super) status: u16,
    pub(super) reason: &'b str,
    pub(super) fields: &'h [Header<'b>],
    /// The kind of each field.
    pub(super) kinds: &'h [Field],
    pub(super) framing: Framing,
    /// Whether the app's connection stays open.
    pub(super) kept: bool,
    /// Whether `Connection` names other fields.
    pub(super) names_fields: bool,
    /// The length on which all `Content-Length` agree, even if it is repeated or spelled in an unusual way.
    pub(super) said_length: Option<u64>,
    pub(super) length: usize,
}

/// The result of parsing the first bytes of a response.
#[derive(Debug)]
pub(super) enum ParsedHead<'h, 'b> {
    Part,
    /// An interim response, which has no body.
    Interim(Response<'h, 'b>),
    /// The app switches to another protocol.
    Switched,
    Final(Response<'h, 'b>),
}

/// Parses one head. `to_head` is true for a response to a HEAD request.
pub(super) fn read<'h, 'b>(
    bytes: &'b [u8],
    space: &'h mut FieldSpace<'b>,
    to_head: bool,
) -> Result<ParsedHead<'h, 'b>, InvalidResponse> {
    let FieldSpace { fields, kinds } = space;
    let mut head = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut head, bytes, fields)?;
    let Status::Complete(length) = parsed else {
        return if bytes.len() < MAX_ANSWER_BYTES { Ok(ParsedHead::Part) } else { Err(InvalidResponse::TooLarge) };
    };
    // The buffer has room for more.
    if length > MAX_ANSWER_BYTES {
        return Err(InvalidResponse::TooLarge);
    }
    let (Some(status @ 100..), Some(minor)) = (head.code, head.version) else { return Err(InvalidResponse::Status) };
    let fields = &*head.headers;
    let kinds = &mut kinds[..fields.len()];
    fields.iter().zip(&mut *kinds).for_each(|(field, kind)| *kind = Field::of(field.name.as_bytes()));
    let kinds = &*kinds;
    let of = |kind| fields.iter().zip(kinds).filter(move |(_, one)| **one == kind).map(|(field, _)| field.value);
    let coding = coding(of(Field::TransferEncoding));
    let agreed = one_length(of(Field::ContentLength));
    let said_length = agreed.ok().flatten();
    let framing = match status {
        101 => return Ok(ParsedHead::Switched),
        ..200 => Framing::Length(0),
        _ if coding == Coding::Other => return Err(InvalidResponse::Coding),
        204 | 304 => Framing::Length(0),
        _ if to_head => Framing::Length(0),
        _ => match coding {
            Coding::Other => return Err(InvalidResponse::Coding),
            Coding::Chunked if minor == 0 => return Err(InvalidResponse::Coding),
            Coding::Chunked => Framing::Chunked(Chunks::default()),
            Coding::None => match agreed? {
                Some(length) => Framing::Length(length),
                None => Framing::UntilClose,
            },
        },
    };
    let (mut close, mut keep_alive, mut names_fields) = (false, minor == 1, false);
    for value in of(Field::Connection) {
        // `keep-alive` is the most common value.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            keep_alive = true;
            continue;
        }
        for option in elements(value) {
            match option {
                option if option.eq_ignore_ascii_case("close") => close = true,
                option if option.eq_ignore_ascii_case("keep-alive") => keep_alive = true,
                _ => names_fields = true,
            }
        }
    }
    let kept = keep_alive && !close;
    let reason = head.reason.unwrap_or_default();
    let response = Response { status, reason, fields, kinds, framing, kept, names_fields, said_length, length };
    Ok(if status < 200 { ParsedHead::Interim(response) } else { ParsedHead::Final(response) })
}

impl Response<'_, '_> {
    /// Whether a response with this status can have a body, and the field `Content-Length`.
    pub(super) fn may_have_body(&self) -> bool {
        !matches!(self.status, 204 | 304)
    }

    pub(super) fn has(&self, kind: Field) -> bool {
        self.kinds.contains(&kind)
    }

    /// The first value of an end-to-end field.
    pub(super) fn first(&self, name: &HeaderName) -> Option<&[u8]> {
        let field = self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name.as_str()))?;
        (!self.is_named(field.name)).then_some(field.value)
    }

    /// The value of a field of this kind if there is exactly one.
    pub(super) fn only(&self, kind: Field) -> Option<&[u8]> {
        let mut values = self.all(kind);
        values.next().filter(|_| values.next().is_none())
    }

    /// Whether a client that sent HEAD would receive different lengths.
    pub(super) fn contradicts_itself(&self) -> bool {
        !self.has(Field::TransferEncoding) && self.all(Field::ContentLength).count() > 1 && self.said_length.is_none()
    }

    fn all(&self, kind: Field) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().zip(self.kinds).filter(move |(_, one)| **one == kind).map(|(field, _)| field.value)
    }

    /// Whether `Connection` names the field.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.names_fields
            && self
                .fields
                .iter()
                .zip(self.kinds)
                .filter(|(_, kind)| **kind == Field::Connection)
                .flat_map(|(field, _)| elements(field.value))
                .any(|option| option.eq_ignore_ascii_case(name))
    }
}

/// Whether a head may be complete. The first `looked_at` bytes were checked before and were not complete.
///
/// As in hyper, a head that arrives in pieces is not parsed again for each piece. So a fault is detected at the end of
/// the head, unless the first piece contains it.
pub(super) fn may_be_whole(bytes: &[u8], looked_at: usize) -> bool {
    let new = &bytes[looked_at.saturating_sub(3)..];
    memchr::memchr_iter(b'\n', new).any(|at| matches!(new[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes how a body is read, and whether the connection stays open.
    fn summary(head: &str, to_head: bool) -> String {
        match read(head.as_bytes(), &mut FieldSpace::new(), to_head) {
            Ok(ParsedHead::Part) => "part".into(),
            Ok(ParsedHead::Interim(response)) => format!("interim {}", response.length),
            Ok(ParsedHead::Switched) => "switched".into(),
            Ok(ParsedHead::Final(response)) => {
                assert_eq!(response.length, head.len());
                let framing = match response.framing {
                    Framing::Length(length) => length.to_string(),
                    Framing::Chunked(_) => "chunked".into(),
                    Framing::UntilClose => "until close".into(),
                };
                format!("{} {framing} {}", response.status, if response.kept { "kept" } else { "closed" })
            }
            Err(garbled) => garbled.to_string(),
        }
    }

    #[test]
    fn the_end_of_a_head_is_seen_wherever_it_is_cut() {
        for whole in ["HTTP/1.1 200 OK\r\nx: y\r\n\r\n", "HTTP/1.1 200 OK\nx: y\n\n", "HTTP/1.1 200 OK\nx: y\n\r\n"] {
            assert!((0..whole.len()).all(|cut| may_be_whole(whole.as_bytes(), cut)), "{whole:?}");
            for end in 0..whole.len() {
                assert!((0..end).all(|cut| !may_be_whole(&whole.as_bytes()[..end], cut)), "{whole:?} up to {end}");
            }
        }
    }

    #[test]
    fn a_head_says_how_to_read_what_follows() {
        for (lines, expected) in [
            ("1 200 OK\r\nContent-Length: 5\r\n", "200 5 kept"),
            ("1 200 OK\r\ncontent-length: 5\r\nconnection: Close\r\n", "200 5 closed"),
            ("1 200 OK\r\ncontent-length: 5\r\nconnection: x, close\r\n", "200 5 closed"),
            ("0 200 OK\r\ncontent-length: 5\r\n", "200 5 closed"),
            ("0 200 OK\r\ncontent-length: 5\r\nconnection: keep-alive\r\n", "200 5 kept"),
            ("1 200 OK\r\ntransfer-encoding: Chunked\r\n", "200 chunked kept"),
            ("1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", "200 chunked kept"),
            ("1 200 OK\r\ntransfer-encoding: gzip\r\n", "unexpected transfer-encoding parsed"),
            ("1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n", "unexpected transfer-encoding parsed"),
            (
                "1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
                "unexpected transfer-encoding parsed",
            ),
            ("1 200 OK\r\n", "200 until close kept"),
            ("1 200\r\ncontent-length: 0\r\n", "200 0 kept"),
            ("1 204 No Content\r\ncontent-length: 5\r\n", "204 0 kept"),
            ("1 304 Not Modified\r\ntransfer-encoding: chunked\r\n", "304 0 kept"),
            ("1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5, 5\r\n", "200 5 kept"),
            ("1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n", "invalid content-length parsed"),
            ("1 200 OK\r\ncontent-length: +5\r\n", "invalid content-length parsed"),
            ("1 200 OK\r\ncontent-length:\r\n", "invalid content-length parsed"),
            ("1 200 OK\r\ncontent-length: 18446744073709551616\r\n", "invalid content-length parsed"),
            ("0 200 OK\r\ntransfer-encoding: chunked\r\n", "unexpected transfer-encoding parsed"),
            ("1 100 Continue\r\n", "interim 25"),
            ("1 101 Switching Protocols\r\nupgrade: x\r\n", "switched"),
            ("1 099 Low\r\n", "invalid HTTP status-code parsed"),
            ("1 20 OK\r\n", "invalid HTTP status-code parsed"),
            ("2 200 OK\r\n", "invalid HTTP version parsed"),
            ("1 200 OK\r\nx y: z\r\n", "invalid HTTP header parsed"),
        ] {
            let head = format!("HTTP/1.{lines}\r\n");
            assert_eq!(summary(&head, false), expected, "{lines:?}");
        }
        assert_eq!(summary("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", true), "200 0 kept");
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert!((0..whole.len()).all(|end| summary(&whole[..end], false) == "part"));
        for end in ["", "\r\n\r\n"] {
            let large = format!("HTTP/1.1 200 OK\r\nx: {}{end}", "y".repeat(MAX_ANSWER_BYTES));
            assert_eq!(summary(&large, false), "message head is too large", "{end:?}");
        }
    }
}
