//! Finds the chunk boundaries of the app's body (RFC 9112 section 7.1). It reads framing byte by byte, and skips data
//! in one step.
//!
//! The decoder accepts exactly the bodies that hyper's client accepts, with the same limits on extensions and trailers.

use crate::proxy::headers::{MAX_ANSWER_BYTES, MAX_ANSWER_FIELDS};

/// The maximum number of bytes of chunk extensions in one body.
const MAX_EXTENSIONS: usize = 16 * 1024;

/// The empty line after the trailers, which counts as a part of them.
const END: &[u8] = b"\r\n";

/// The decoder state of one body.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    state: State,
    extensions: usize,
    /// The trailers so far. They are validated at the end, and not forwarded.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Before the first digit.
    #[default]
    Start,
    Size(u64),
    /// White space after the size.
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    /// This many bytes of data remain.
    Data(u64),
    DataCr,
    DataLf,
    /// After the last chunk, at the beginning of a trailer line.
    Line,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

/// The kind and the number of the next bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This many bytes of framing around the data.
    Frame(usize),
    Data(usize),
}

/// The app's chunks are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the app's chunks are not valid HTTP/1.1")]
pub(super) struct InvalidChunk;

impl Chunks {
    pub(super) fn are_over(&self) -> bool {
        matches!(self.state, State::End)
    }

    /// Reads from `bytes`, which must not be empty.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<Step, InvalidChunk> {
        if let State::Data(left) = self.state {
            let count = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let left = left - count as u64;
            self.state = if left == 0 { State::DataCr } else { State::Data(left) };
            return Ok(Step::Data(count));
        }
        for (at, byte) in bytes.iter().enumerate() {
            self.state = self.next(*byte)?;
            if matches!(self.state, State::Data(_) | State::End) {
                return Ok(Step::Frame(at + 1));
            }
        }
        Ok(Step::Frame(bytes.len()))
    }

    fn next(&mut self, byte: u8) -> Result<State, InvalidChunk> {
        Ok(match (self.state, byte) {
            (State::Start, _) => State::Size(digit(byte)?.into()),
            (State::Size(size) | State::Space(size), b' ' | b'\t') => State::Space(size),
            (State::Size(size) | State::Space(size), b';') => State::Extension(size),
            (State::Size(size) | State::Space(size) | State::Extension(size), b'\r') => State::SizeLf(size),
            (State::Size(size), _) => {
                let grown = size.checked_mul(16).and_then(|size| size.checked_add(digit(byte).ok()?.into()));
                State::Size(grown.ok_or(InvalidChunk)?)
            }
            (State::Extension(size), 0..=9 | 11..) => {
                self.extensions += 1;
                if self.extensions >= MAX_EXTENSIONS {
                    return Err(InvalidChunk);
                }
                State::Extension(size)
            }
            (State::SizeLf(0), b'\n') => State::Line,
            (State::SizeLf(size), b'\n') => State::Data(size),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Start,
            (State::Line, b'\r') => State::EndLf,
            (State::Line, _) => self.trailer(byte, State::Trailer)?,
            (State::Trailer, b'\r') => self.trailer(byte, State::TrailerLf)?,
            (State::Trailer, _) => self.trailer(byte, State::Trailer)?,
            (State::TrailerLf, b'\n') => self.trailer(byte, State::Line)?,
            (State::EndLf, b'\n') => self.end()?,
            _ => return Err(InvalidChunk),
        })
    }

    fn trailer(&mut self, byte: u8, next: State) -> Result<State, InvalidChunk> {
        self.trailers.push(byte);
        if self.trailers.len() + END.len() >= MAX_ANSWER_BYTES { Err(InvalidChunk) } else { Ok(next) }
    }

    fn end(&mut self) -> Result<State, InvalidChunk> {
        if self.trailers.is_empty() {
            return Ok(State::End);
        }
        let mut trailers = std::mem::take(&mut self.trailers);
        trailers.extend_from_slice(END);
        let mut room = [httparse::EMPTY_HEADER; MAX_ANSWER_FIELDS];
        match httparse::parse_headers(&trailers, &mut room) {
            Ok(httparse::Status::Complete(_)) => Ok(State::End),
            _ => Err(InvalidChunk),
        }
    }
}

fn digit(byte: u8) -> Result<u8, InvalidChunk> {
    let digit = char::from(byte).to_digit(16).ok_or(InvalidChunk)?;
    u8::try_from(digit).map_err(|_| InvalidChunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> Result<bool, InvalidChunk> {
        let mut chunks = Chunks::default();
        while !bytes.is_empty() && !chunks.are_over() {
            let (Step::Frame(count) | Step::Data(count)) = chunks.step(bytes)?;
            bytes = &bytes[count..];
        }
        Ok(chunks.are_over())
    }

    #[test]
    fn invalid_chunks_end_the_body() {
        let extensions = format!("1;{}\r\n", "x".repeat(MAX_EXTENSIONS));
        let trailers = format!("0\r\nx: {}\r\n\r\n", "y".repeat(MAX_ANSWER_BYTES));
        for chunks in [
            "\r\n", "x\r\n", "-1\r\n", "+1\r\n", " 1\r\n", "0x1\r\n", "1\n", "1 2\r\n", "1\rx", "1;a\nb\r\n",
            "10000000000000000\r\n", "1\r\nab", "1\r\na\n", "1\r\na\rx", "0\r\n\rx", "0\r\nx: y\rz",
            "0\r\nno colon\r\n\r\n", &extensions, &trailers,
        ] {
            assert_eq!(read(chunks.as_bytes()), Err(InvalidChunk), "{chunks:?}");
        }
        assert_eq!(read(b"FFFFFFFFFFFFFFFF\r\n"), Ok(false));
        assert_eq!(read(b"1\r\na\r\n0\r\nx: y\r\n\r\n"), Ok(true));
    }
}
