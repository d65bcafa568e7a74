//! Parses random bytes of a client. Weir must read the same headers as tungstenite, and find the same frames and
//! violations as a simple implementation of RFC 6455. The result must not depend on the pieces in which the bytes
//! arrive.

use tokio_tungstenite::tungstenite::protocol::frame::{FrameHeader, coding::OpCode};
use weir_fuzz::{Choices, Target};

use super::{
    client::{ClientFrames, Step},
    frame::{Header, opcode},
};

#[test]
fn any_frames_are_read_as_others_read_them() {
    Target::new("frames").run(500, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    // Half of the inputs are frames with at most one changed byte. The others are random.
    let input = if choices.rarely(2) { bytes.to_vec() } else { frames(&mut choices) };
    header(&input)?;
    let cuts: Vec<usize> = (0..8).map(|_| choices.below(input.len() + 1)).collect();
    let refused = choices.byte();
    let whole = followed(&input, &[], refused)?;
    let mut every: Vec<usize> = cuts;
    every.sort_unstable();
    for cuts in [every, (0..input.len()).collect()] {
        let pieces = followed(&input, &cuts, refused)?;
        if pieces != whole {
            return Err(format!("{input:02x?} in pieces {cuts:?} is\n{pieces:?}\nand as a whole\n{whole:?}"));
        }
    }
    let expected = expected(&input, refused);
    if whole == expected { Ok(()) } else { Err(format!("{input:02x?} is\n{whole:?}\nand should be\n{expected:?}")) }
}

/// Mostly valid frames, one after the other.
fn frames(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + choices.below(6) {
        let opcode = *choices.one(&[1, 2, 0, 0, 8, 9, 10, 1, 2, 3, 0xb]);
        let last = if choices.rarely(3) { 0 } else { 0x80 };
        let reserved = if choices.rarely(40) { choices.byte() & 0x70 } else { 0 };
        let length = *choices.one(&[0, 1, 2, 5, 125, 126, 127, 300, 65_535, 65_536]);
        let masked = if choices.rarely(40) { 0 } else { 0x80 };
        bytes.push(last | reserved | opcode);
        // Rarely, the length has more bytes than necessary.
        let form = if choices.rarely(30) { *choices.one(&[1, 2]) } else { 0 };
        match (form, length) {
            (0, 0..=125) => bytes.push(masked | u8::try_from(length).unwrap_or(0)),
            (0, 126..=0xffff) | (1, 0..=0xffff) => {
                bytes.push(masked | 126);
                bytes.extend(u16::try_from(length).unwrap_or(0).to_be_bytes());
            }
            _ => {
                bytes.push(masked | 127);
                let huge = if choices.rarely(10) { 1 << 63 } else { 0 };
                bytes.extend((length as u64 | huge).to_be_bytes());
            }
        }
        if masked > 0 {
            bytes.extend([choices.byte(); 4]);
        }
        bytes.extend(std::iter::repeat_n(choices.byte(), length));
    }
    if choices.rarely(4) {
        let at = choices.below(bytes.len());
        bytes[at] = choices.byte();
    }
    if choices.rarely(4) {
        bytes.truncate(choices.below(bytes.len()));
    }
    bytes
}

/// Compares a header with the one that tungstenite reads.
fn header(input: &[u8]) -> Result<(), String> {
    let ours = Header::parse(input);
    let mut cursor = std::io::Cursor::new(input);
    // tungstenite refuses reserved bits and unknown opcodes while it reads. Weir checks them later.
    let theirs = match FrameHeader::parse(&mut cursor) {
        Err(_) => return Ok(()),
        Ok(None) => None,
        Ok(Some((header, length))) => Some((header, length, cursor.position())),
    };
    let same = match (&ours, &theirs) {
        (None, None) => true,
        (Some(ours), Some((theirs, length, size))) => {
            let code: u8 = theirs.opcode.into();
            ours.last == theirs.is_final
                && ours.reserved == u8::from(theirs.rsv1) << 2 | u8::from(theirs.rsv2) << 1 | u8::from(theirs.rsv3)
                && ours.opcode == code
                && OpCode::from(ours.opcode) == theirs.opcode
                && ours.masked == theirs.mask.is_some()
                && ours.length == *length
                && ours.size as u64 == *size
        }
        _ => false,
    };
    if same { Ok(()) } else { Err(format!("{:02x?}: {ours:?} is not {theirs:?}", &input[..input.len().min(16)])) }
}

/// The result for all bytes, and whether they ended in a violation.
#[derive(Debug, Default, PartialEq, Eq)]
struct Followed {
    passed: Vec<u8>,
    dropped: usize,
    messages: usize,
    violation: bool,
    closed: bool,
}

/// Whether a message is refused: `refused` has the bit of its number set.
fn is_refused(refused: u8, message: usize) -> bool {
    refused >> (message % 8) & 1 != 0
}

fn followed(input: &[u8], cuts: &[usize], refused: u8) -> Result<Followed, String> {
    let mut frames = ClientFrames::default();
    let mut outcome = Followed::default();
    let mut at = 0;
    'pieces: for &end in cuts.iter().chain([&input.len()]) {
        loop {
            let left = end.saturating_sub(at);
            match frames.next(&input[at..at + left]) {
                Ok(Step::Pass(count) | Step::Drop(count)) if count == 0 || count > left => {
                    return Err(format!("{count} bytes of {left}"));
                }
                Ok(Step::Pass(count)) => {
                    outcome.passed.extend(&input[at..at + count]);
                    at += count;
                }
                Ok(Step::Drop(count)) => {
                    outcome.dropped += count;
                    at += count;
                }
                Ok(Step::Message) => {
                    if is_refused(refused, outcome.messages) {
                        frames.refuse();
                    } else {
                        frames.admit();
                    }
                    outcome.messages += 1;
                }
                Ok(Step::More) => break,
                Err(_) => {
                    outcome.violation = true;
                    break 'pieces;
                }
            }
        }
    }
    outcome.closed = frames.closed();
    Ok(outcome)
}

/// Computes the expected result by RFC 6455 section 5, one frame at a time.
fn expected(input: &[u8], refused: u8) -> Followed {
    let mut outcome = Followed::default();
    let (mut rest, mut open, mut dropped) = (input, false, false);
    while let [first, second, behind @ ..] = rest {
        if outcome.closed {
            outcome.dropped += rest.len();
            return outcome;
        }
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let masked = second & 0x80 != 0;
        let size = 2 + extended + if masked { 4 } else { 0 };
        if rest.len() < size {
            return outcome;
        }
        let long = behind[..extended].iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
        let length = if extended == 0 { u64::from(second & 0x7f) } else { long };
        let least = match extended {
            0 => 0,
            2 => 126,
            _ => 65_536,
        };
        let (code, last) = (first & 0xf, first & 0x80 != 0);
        let control = matches!(code, opcode::CLOSE | opcode::PING | opcode::PONG);
        let begins = matches!(code, opcode::TEXT | opcode::BINARY);
        let sound = first & 0x70 == 0
            && (control || begins || code == opcode::CONTINUATION)
            && masked
            && length >= least
            && length < 1 << 63
            && !(control && (!last || length > 125))
            && !(begins && open)
            && (code != opcode::CONTINUATION || open);
        if !sound {
            outcome.violation = true;
            return outcome;
        }
        if begins {
            dropped = is_refused(refused, outcome.messages);
            outcome.messages += 1;
        }
        if !control {
            open = !last;
        }
        let there = rest.len().min(usize::try_from(length).unwrap_or(usize::MAX).saturating_add(size));
        if dropped && !control {
            outcome.dropped += there;
        } else {
            outcome.passed.extend(&rest[..there]);
        }
        outcome.closed = code == opcode::CLOSE && (there - size) as u64 == length;
        if code == opcode::CLOSE && !outcome.closed {
            return outcome;
        }
        rest = &rest[there..];
    }
    // A single byte is not a header. After a close frame, it is dropped like all other bytes.
    if outcome.closed {
        outcome.dropped += rest.len();
    }
    outcome
}
