//! The meta commands of Memcached that a store needs, and their responses.

use std::fmt::Write as _;

#[cfg(test)]
mod fuzz;

/// The maximum length of the first line of a response.
const LONGEST_LINE: usize = 2_048;

/// The maximum size of a value. The values of a store are much smaller.
const LARGEST_VALUE: usize = 16_384;

/// The condition under which a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteIf {
    /// The key has no value.
    Missing,
    /// The value still has this version number.
    Unchanged(u64),
}

/// A response of Memcached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response {
    Value {
        data: Vec<u8>,
        /// The version number of the value.
        cas: Option<u64>,
    },
    Done,
    Missing,
    /// The condition of the write is not true.
    Changed,
    /// The server's version, as it writes it.
    Version(String),
    Failed(String),
}

impl Response {
    /// Returns true if the next bytes may belong to another command. The server has not understood this command, so it
    /// can have read the command's data as further commands.
    pub(super) fn loses_order(&self) -> bool {
        matches!(self, Self::Failed(text) if !text.starts_with("SERVER_ERROR"))
    }
}

/// The server violates the protocol. The bytes that follow cannot be interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled;

pub(super) fn version() -> Vec<u8> {
    b"version\r\n".to_vec()
}

pub(super) fn get(key: &str) -> Vec<u8> {
    format!("mg {key} v c\r\n").into_bytes()
}

pub(super) fn set(key: &str, data: &[u8], write_if: WriteIf, expiry: u64) -> Vec<u8> {
    let mut line = format!("ms {key} {} T{expiry}", data.len());
    let _ = match write_if {
        WriteIf::Missing => write!(line, " ME\r\n"),
        WriteIf::Unchanged(cas) => write!(line, " C{cas}\r\n"),
    };
    [line.as_bytes(), data, b"\r\n"].concat()
}

/// Adds `delta` to a number. If the number does not exist, it is created with the value `initial` and expires after
/// `seconds`.
pub(super) fn increment(key: &str, delta: u64, initial: u64, seconds: u64) -> Vec<u8> {
    format!("ma {key} N{seconds} J{initial} D{delta} v\r\n").into_bytes()
}

/// Subtracts `delta` from a number, down to zero.
pub(super) fn decrement(key: &str, delta: u64) -> Vec<u8> {
    format!("ma {key} MD D{delta} v\r\n").into_bytes()
}

pub(super) fn delete(key: &str) -> Vec<u8> {
    format!("md {key}\r\n").into_bytes()
}

/// Parses the response at the start of these bytes. Also returns its length in bytes. None if it is incomplete.
pub(super) fn response(bytes: &[u8]) -> Result<Option<(Response, usize)>, Garbled> {
    let Some(end) = bytes.windows(2).take(LONGEST_LINE).position(|pair| pair == b"\r\n") else {
        return if bytes.len() > LONGEST_LINE { Err(Garbled) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| Garbled)?;
    let rest = &bytes[end + 2..];
    let mut words = line.split(' ');
    let found = match words.next().unwrap_or_default() {
        "VA" => return value(words, rest).map(|found| found.map(|(found, length)| (found, end + 2 + length))),
        "HD" => Response::Done,
        "EN" | "NF" => Response::Missing,
        "NS" | "EX" => Response::Changed,
        "VERSION" => Response::Version(words.collect::<Vec<_>>().join(" ")),
        "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => Response::Failed(line.to_owned()),
        _ => return Err(Garbled),
    };
    Ok(Some((found, end + 2)))
}

/// Parses a value. `words` contains its length and its flags.
fn value<'a>(mut words: impl Iterator<Item = &'a str>, rest: &[u8]) -> Result<Option<(Response, usize)>, Garbled> {
    let length = words.next().and_then(digits).and_then(|length| usize::try_from(length).ok()).ok_or(Garbled)?;
    if length > LARGEST_VALUE {
        return Err(Garbled);
    }
    let mut cas = None;
    for flag in words {
        if let Some(number) = flag.strip_prefix('c') {
            cas = Some(digits(number).ok_or(Garbled)?);
        }
    }
    let Some((data, end)) = rest.get(..length + 2).map(|data| data.split_at(length)) else { return Ok(None) };
    if end != b"\r\n" {
        return Err(Garbled);
    }
    Ok(Some((Response::Value { data: data.to_vec(), cas }, length + 2)))
}

/// Parses a number without a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_the_protocol_defines_them() {
        assert_eq!(version(), b"version\r\n");
        assert_eq!(get("k"), b"mg k v c\r\n");
        assert_eq!(set("k", b"ab", WriteIf::Missing, 9), b"ms k 2 T9 ME\r\nab\r\n");
        assert_eq!(set("k", b"ab", WriteIf::Unchanged(7), 9), b"ms k 2 T9 C7\r\nab\r\n");
        assert_eq!(increment("k", 2, 5, 9), b"ma k N9 J5 D2 v\r\n");
        assert_eq!(decrement("k", 2), b"ma k MD D2 v\r\n");
    }
}
