//! Encodes HTTP/2 frames by hand, because a library refuses to send most of the frames that these tests need.
//!
//! Fields are literals without indexing, without Huffman coding (RFC 7541 section 6.2.2). Responses are parsed only as
//! far as needed to find the end of the first stream.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Answer;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest frame that an agent must accept by default (RFC 9113 section 4.2).
const LARGEST: usize = 1 << 14;

pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The preface and empty settings.
pub(crate) fn greeting() -> Vec<u8> {
    [PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()
}

/// One literal field, not indexed. Each character is a byte.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        let text = super::latin(text);
        length(&mut bytes, text.len());
        bytes.extend(text);
    }
    bytes
}

/// A length in a prefix of seven bits (RFC 7541 section 5.1).
fn length(bytes: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(0x7f) else {
        bytes.push(u8::try_from(length).expect("below 127"));
        return;
    };
    bytes.push(0x7f);
    while rest >= 0x80 {
        bytes.push(0x80 | u8::try_from(rest % 0x80).expect("seven bits"));
        rest /= 0x80;
    }
    bytes.push(u8::try_from(rest).expect("seven bits"));
}

pub(crate) fn block<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    fields.into_iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// A header block in as many frames as it needs.
pub(crate) fn headers(stream: u32, block: &[u8], ends: bool) -> Vec<u8> {
    let mut chunks = block.chunks(LARGEST).peekable();
    let mut bytes = Vec::new();
    let mut kind = kind::HEADERS;
    let mut flags = if ends { flag::END_STREAM } else { 0 };
    loop {
        let chunk = chunks.next().unwrap_or_default();
        let last = chunks.peek().is_none();
        bytes.extend(frame(kind, flags | if last { flag::END_HEADERS } else { 0 }, stream, chunk));
        if last {
            return bytes;
        }
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}

pub(crate) fn data(stream: u32, bytes: &[u8], ends: bool) -> Vec<u8> {
    frame(kind::DATA, if ends { flag::END_STREAM } else { 0 }, stream, bytes)
}

/// Sends all bytes, and returns how the first stream ended.
pub(crate) async fn ask(mut stream: TcpStream, bytes: &[u8]) -> Answer {
    // The agent can disconnect a refused client before it has sent all bytes.
    let sent = stream.write_all(bytes).await;
    let answer = read(&mut stream).await;
    assert!(sent.is_ok() || !matches!(answer, Answer::Status(200)), "the request passed, but was not read completely");
    answer
}

async fn read(stream: &mut TcpStream) -> Answer {
    let mut status = None;
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return status.map_or(Answer::Closed, Answer::Status);
        }
        let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        if stream.read_exact(&mut payload).await.is_err() {
            return Answer::Closed;
        }
        let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        let (flags, number) = (head[4], u32::from_be_bytes(head[5..].try_into().expect("four bytes")));
        match head[3] {
            kind::GOAWAY if code(4) != 0 => return Answer::Reset(code(4)),
            kind::RST_STREAM if number == 1 => return status.map_or(Answer::Reset(code(0)), Answer::Status),
            kind::HEADERS if number == 1 => status = status.or_else(|| Some(of_block(&payload))),
            _ => {}
        }
        let ends = matches!(head[3], kind::HEADERS | kind::DATA) && flags & flag::END_STREAM != 0;
        if number == 1 && ends {
            return status.map_or(Answer::Closed, Answer::Status);
        }
    }
}

/// Returns the status, which the agent sends first in a block.
fn of_block(block: &[u8]) -> u16 {
    let resized = block.iter().take_while(|byte| **byte & 0xe0 == 0x20).count();
    match block[resized..] {
        [known @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(known - 0x88)],
        [0x48 | 0x08 | 0x18, length, ref value @ ..] if length & 0x80 == 0 => {
            String::from_utf8_lossy(&value[..3]).parse().expect("a status")
        }
        [0x48 | 0x08 | 0x18, length, ref value @ ..] => digits(&value[..usize::from(length & 0x7f)]),
        ref other => panic!("a block without a status first: {other:02x?}"),
    }
}

/// Decodes three Huffman-coded digits. Digits up to 2 have five bits, the others six bits, from 011001 (RFC 7541
/// appendix B).
fn digits(bytes: &[u8]) -> u16 {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1)));
    let mut next = |count: usize, first: u16| bits.by_ref().take(count).fold(first, |number, bit| number << 1 | bit);
    (0..3).fold(0, |number, _| {
        let five = next(5, 0);
        let digit = if five < 3 { five } else { next(1, five) - 0b01_1001 + 3 };
        number * 10 + digit
    })
}

#[test]
fn a_status_is_read_in_every_encoding() {
    assert_eq!(of_block(&[0x20, 0x88]), 200);
    assert_eq!(of_block(&[0x48, 3, b'4', b'3', b'1']), 431);
    // The code of 4 is 011010, of 2 is 00010, and of 9 is 011111. The remaining bits are padding.
    assert_eq!(of_block(&[0x48, 0x83, 0b0110_1000, 0b0100_1111, 0b1111_1111]), 429);
}
