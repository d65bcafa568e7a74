//! A target of `cargo xtask fuzz`: the parser of Memcached responses.

use weir_fuzz::{Choices, Target};

use super::{Garbled, LARGEST_VALUE, LONGEST_LINE, Response, response};

#[test]
fn any_bytes_are_responses_or_refused() {
    Target::new("memcached")
        .seeds(&[
            b"VA 2 c17\r\n10\r\nHD\r\nEN\r\n",
            b"VERSION 1.6.18\r\nCLIENT_ERROR bad data chunk\r\n",
            b"VA 0 c1 t5\r\n\r\nSERVER_ERROR out of memory\r\nEX\r\nNS\r\nNF\r\n",
        ])
        .run(2_000, script);
}

/// Parses the bytes as a whole, byte by byte, and in pieces of three. Compares each result with [`defined`].
fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let mut input = bytes.to_vec();
    if choices.rarely(3) {
        let pieces =
            ["VA ", "HD", "EN", "NF", "\r\n", "2", " c9", " c", "ab", "EX", "NS", "ERROR", "VERSION", "-1", "+1", " "];
        input = choices.text(&pieces, 30).into_bytes();
    }
    if choices.rarely(20) {
        input.splice(0..0, std::iter::repeat_n(b'a', 3_000));
    }
    let expected = defined(&input);
    for step in [usize::MAX, 1, 3] {
        let found = read(&input, step);
        if found != expected {
            return Err(format!("{:?} is {found:?}, not {expected:?}", String::from_utf8_lossy(&input)));
        }
    }
    Ok(())
}

/// Parses all responses of bytes that arrive in pieces of `step`. Also returns true if the rest is invalid.
fn read(input: &[u8], step: usize) -> (Vec<Response>, bool) {
    let (mut found, mut buffer) = (Vec::new(), Vec::new());
    for piece in input.chunks(step.min(input.len().max(1))) {
        buffer.extend_from_slice(piece);
        loop {
            match response(&buffer) {
                Ok(Some((one, length))) => {
                    buffer.drain(..length);
                    found.push(one);
                }
                Ok(None) => break,
                Err(Garbled) => return (found, true),
            }
        }
    }
    (found, false)
}

/// A second implementation of the protocol, line by line.
fn defined(mut input: &[u8]) -> (Vec<Response>, bool) {
    let mut found = Vec::new();
    loop {
        let line: Vec<u8> = input
            .iter()
            .copied()
            .scan(0, |last, byte| {
                let is_end = (*last, byte) == (b'\r', b'\n');
                *last = byte;
                (!is_end).then_some(byte)
            })
            .collect();
        let is_whole = line.len() < input.len();
        // The line still ends with its carriage return.
        if line.len() > LONGEST_LINE || (!is_whole && input.len() > LONGEST_LINE) {
            return (found, true);
        }
        if !is_whole {
            return (found, false);
        }
        let Ok(text) = String::from_utf8(line[..line.len() - 1].to_vec()) else { return (found, true) };
        input = &input[line.len() + 1..];
        let (name, flags) = text.split_once(' ').unwrap_or((&text, ""));
        found.push(match name {
            "HD" => Response::Done,
            "EN" | "NF" => Response::Missing,
            "NS" | "EX" => Response::Changed,
            "VERSION" => Response::Version(flags.to_owned()),
            "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => Response::Failed(text.clone()),
            "VA" if text.len() > 2 => {
                let number = |text: &str| {
                    let is_number = !text.is_empty() && !text.contains(|letter: char| !"0123456789".contains(letter));
                    if is_number { text.parse::<u64>().ok() } else { None }
                };
                let flags: Vec<&str> = flags.split(' ').collect();
                let length = number(flags[0]).filter(|&length| length <= LARGEST_VALUE as u64);
                let versions: Vec<_> =
                    flags[1..].iter().filter(|flag| flag.starts_with('c')).map(|flag| number(&flag[1..])).collect();
                let (Some(length), true) = (length, versions.iter().all(Option::is_some)) else {
                    return (found, true);
                };
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if input.len() < length + 2 {
                    return (found, false);
                }
                let data = input[..length].to_vec();
                if &input[length..length + 2] != b"\r\n" {
                    return (found, true);
                }
                input = &input[length + 2..];
                Response::Value { data, cas: versions.last().copied().flatten() }
            }
            _ => return (found, true),
        });
    }
}
