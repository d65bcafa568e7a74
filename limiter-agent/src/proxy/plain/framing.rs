//! The framing of the app's body, and its framing for the client.
//!
//! A body with a length is forwarded unchanged. Chunks are decoded to find their ends, and encoded again around the
//! same bytes, so that no extension, trailer or unusual spelling from the app reaches the client. A body that ends with
//! its connection is forwarded in chunks, so that the client's connection can stay open. This module must never forward
//! a byte after the end of a body, and never write an end for a body that was cut off.

use std::io::Write;

use super::chunks::{Chunks, InvalidChunk, Step};

/// The framing of a body in transit.
#[derive(Debug)]
pub(super) enum Framing {
    /// This many bytes remain.
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Framing {
    pub(super) fn is_chunked_to_client(&self) -> bool {
        !matches!(self, Self::Length(_))
    }

    /// Whether the body has ended.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.are_over(),
            Self::UntilClose => false,
        }
    }

    /// The number of bytes that can be forwarded unchanged, if `bytes` is longer than `few`.
    pub(super) fn take_long(&mut self, bytes: &[u8], few: usize) -> Option<usize> {
        if bytes.len() > few { self.take_whole(bytes).filter(|count| *count > 0) } else { None }
    }

    fn take_whole(&mut self, bytes: &[u8]) -> Option<usize> {
        let Self::Length(left) = self else { return None };
        let count = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
        *left -= count as u64;
        Some(count)
    }

    /// Writes the part of `bytes` that belongs to the client, and returns how many bytes belong to the body.
    pub(super) fn pass(&mut self, bytes: &[u8], to: &mut Vec<u8>) -> Result<usize, InvalidChunk> {
        if self.is_over() {
            return Ok(0);
        }
        if let Some(count) = self.take_whole(bytes) {
            to.extend_from_slice(&bytes[..count]);
            return Ok(count);
        }
        let Self::Chunked(chunks) = self else {
            write_chunk(bytes, to);
            return Ok(bytes.len());
        };
        let mut at = 0;
        while at < bytes.len() && !chunks.are_over() {
            match chunks.step(&bytes[at..])? {
                Step::Frame(count) => at += count,
                Step::Data(count) => {
                    write_chunk(&bytes[at..at + count], to);
                    at += count;
                }
            }
        }
        if chunks.are_over() {
            to.extend_from_slice(LAST_CHUNK);
        }
        Ok(at)
    }

    /// Whether these first bytes of a body are invalid before any data.
    pub(super) fn begins_wrongly(&self, bytes: &[u8]) -> bool {
        let Self::Chunked(_) = self else { return false };
        let (mut chunks, mut at) = (Chunks::default(), 0);
        while at < bytes.len() && !chunks.are_over() {
            match chunks.step(&bytes[at..]) {
                Ok(Step::Frame(count)) => at += count,
                Ok(Step::Data(_)) => return false,
                Err(InvalidChunk) => return true,
            }
        }
        false
    }

    /// Handles the end of the app's connection. Returns true if it ends the body, false if the body was cut off.
    pub(super) fn closed(&self, to: &mut Vec<u8>) -> bool {
        let ended = matches!(self, Self::UntilClose);
        if ended {
            to.extend_from_slice(LAST_CHUNK);
        }
        ended
    }
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Writes a chunk. It omits an empty chunk, which would end the body.
fn write_chunk(data: &[u8], to: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    write!(to, "{:X}\r\n", data.len()).expect("a vector takes all bytes");
    to.extend_from_slice(data);
    to.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes `bytes` in pieces of `size`. Returns the output, and how many bytes follow the body.
    fn pass(mut framing: Framing, bytes: &[u8], size: usize) -> Result<(Vec<u8>, usize), InvalidChunk> {
        let (mut passed, mut rest) = (Vec::new(), 0);
        for piece in bytes.chunks(size) {
            let count = framing.pass(piece, &mut passed)?;
            assert!(count == piece.len() || framing.is_over());
            rest += piece.len() - count;
        }
        Ok((passed, rest))
    }

    /// Decodes chunks in their simplest form.
    fn data_of(mut chunks: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let line = chunks.iter().position(|byte| *byte == b'\r').expect("a size");
            let size = usize::from_str_radix(str::from_utf8(&chunks[..line]).unwrap(), 16).expect("a size");
            data.extend_from_slice(&chunks[line + 2..line + 2 + size]);
            assert_eq!(&chunks[line + 2 + size..line + 4 + size], b"\r\n");
            chunks = &chunks[line + 4 + size..];
            if size == 0 {
                assert!(chunks.is_empty());
                return data;
            }
        }
    }

    #[test]
    fn a_length_ends_where_it_says_however_the_bytes_come() {
        for size in 1..=8 {
            assert_eq!(pass(Framing::Length(5), b"hellorest", size).unwrap(), (b"hello".to_vec(), 4), "{size}");
        }
        assert!(Framing::Length(0).is_over());
        let mut framing = Framing::Length(u64::MAX);
        assert_eq!(framing.take_whole(b"abc"), Some(3));
        assert!(!framing.is_over() && !framing.closed(&mut Vec::new()));
    }

    #[test]
    fn chunks_keep_their_data_and_nothing_else() {
        let long = [b"1F4\r\n".to_vec(), vec![b'x'; 500], b"\r\n0\r\n\r\n".to_vec()].concat();
        for (chunks, data) in [
            (&b"0\r\n\r\n"[..], &b""[..]),
            (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
            (b"3;name=value\r\nhel\r\n02 \r\nlo\r\n000;x\r\nx-trailer: y\r\nother: z\r\n\r\n", b"hello"),
            (&long, &[b'x'; 500]),
        ] {
            let bytes = [chunks, b"rest"].concat();
            for size in 1..=bytes.len() {
                let (passed, rest) = pass(Framing::Chunked(Chunks::default()), &bytes, size).unwrap();
                assert_eq!((data_of(&passed), rest), (data.to_vec(), 4), "{chunks:?} in pieces of {size}");
            }
            for end in 0..chunks.len() {
                let mut framing = Framing::Chunked(Chunks::default());
                framing.pass(&chunks[..end], &mut Vec::new()).unwrap();
                assert!(!framing.is_over() && !framing.closed(&mut Vec::new()), "cut off at {end}");
            }
        }
    }

    #[test]
    fn a_body_until_close_is_sent_on_in_chunks() {
        let mut framing = Framing::UntilClose;
        let mut passed = Vec::new();
        framing.pass(b"hel", &mut passed).unwrap();
        framing.pass(b"lo", &mut passed).unwrap();
        assert!(!framing.is_over() && framing.closed(&mut passed));
        assert_eq!(passed, b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n");
    }
}
