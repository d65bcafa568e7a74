//! Parses the headers of frames, and writes small frames (RFC 6455 section 5.2).
//!
//! The two sides are allowed to send different frames. [`client`](super::client) checks this.

/// The longest payload of a control frame.
pub(super) const MAX_CONTROL: u8 = 125;

pub(super) mod opcode {
    pub(in super::super) const CONTINUATION: u8 = 0x0;
    pub(in super::super) const TEXT: u8 = 0x1;
    pub(in super::super) const BINARY: u8 = 0x2;
    pub(in super::super) const CLOSE: u8 = 0x8;
    pub(in super::super) const PING: u8 = 0x9;
    pub(in super::super) const PONG: u8 = 0xa;

    pub(in super::super) fn is_known(opcode: u8) -> bool {
        matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG)
    }

    /// Whether frames with this opcode are allowed between the frames of a message.
    pub(in super::super) fn is_control(opcode: u8) -> bool {
        opcode & 0x8 != 0
    }
}

/// Close codes (RFC 6455 section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    GoingAway = 1001,
    Protocol = 1002,
    Policy = 1008,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) last: bool,
    /// The three bits that only extensions use.
    pub(super) reserved: u8,
    pub(super) opcode: u8,
    pub(super) masked: bool,
    /// The payload's length.
    pub(super) length: u64,
    /// Whether the length has its shortest form and is below 2^63.
    pub(super) proper_length: bool,
    /// The header's size in bytes.
    pub(super) size: usize,
}

impl Header {
    /// The header at the start of `input`, or `None` if it is incomplete.
    pub(super) fn parse(input: &[u8]) -> Option<Self> {
        let (&[first, second], rest) = input.split_first_chunk()?;
        let (length, extended, proper_length) = match second & 0x7f {
            126 => {
                let length = u16::from_be_bytes(*rest.first_chunk()?);
                (length.into(), 2, length > 125)
            }
            127 => {
                let length = u64::from_be_bytes(*rest.first_chunk()?);
                (length, 8, length > 0xffff && length >> 63 == 0)
            }
            short => (short.into(), 0, true),
        };
        let masked = second & 0x80 != 0;
        let size = 2 + extended + if masked { 4 } else { 0 };
        (input.len() >= size).then_some(Self {
            last: first & 0x80 != 0,
            reserved: first >> 4 & 0x7,
            opcode: first & 0xf,
            masked,
            length,
            proper_length,
            size,
        })
    }
}

/// A text message in one frame, as a server sends it.
pub(super) fn text(message: &str) -> Vec<u8> {
    encode(opcode::TEXT, message.as_bytes(), None)
}

/// A close frame, masked if the agent sends it as a client. A reason that is too long for a control frame is cut.
pub(super) fn close(code: Code, reason: &str, mask: Option<[u8; 4]>) -> Vec<u8> {
    let reason = &reason[..reason.floor_char_boundary(usize::from(MAX_CONTROL) - 2)];
    let payload = [&(code as u16).to_be_bytes(), reason.as_bytes()].concat();
    encode(opcode::CLOSE, &payload, mask)
}

fn encode(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    let mask_bit = if mask.is_some() { 0x80 } else { 0 };
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length @ ..=MAX_CONTROL), _) => frame.push(mask_bit | length),
        (_, Ok(length)) => {
            frame.push(mask_bit | 126);
            frame.extend(length.to_be_bytes());
        }
        _ => {
            frame.push(mask_bit | 127);
            frame.extend((payload.len() as u64).to_be_bytes());
        }
    }
    match mask {
        Some(mask) => {
            frame.extend(mask);
            frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        }
        None => frame.extend(payload),
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_once_all_of_it_is_there() {
        for (bytes, length, proper_length) in [
            (&[0x81, 0x05][..], 5, true),
            (&[0x81, 0x85, 1, 2, 3, 4], 5, true),
            (&[0x81, 0x7e, 0x00, 0x7e], 126, true),
            (&[0x81, 0xfe, 0x00, 0x7d, 1, 2, 3, 4], 125, false),
            (&[0x81, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0], 65536, true),
            (&[0x81, 0x7f, 0, 0, 0, 0, 0, 0, 0xff, 0xff], 65535, false),
            (&[0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], 1 << 63, false),
        ] {
            for part in 0..bytes.len() {
                assert_eq!(Header::parse(&bytes[..part]), None, "{bytes:?} {part}");
            }
            let expected = Header {
                last: true,
                reserved: 0,
                opcode: opcode::TEXT,
                masked: bytes[1] & 0x80 != 0,
                length,
                proper_length,
                size: bytes.len(),
            };
            assert_eq!(Header::parse(bytes), Some(expected));
            assert_eq!(
                Header::parse(&[bytes, &[0; 3]].concat()),
                Some(expected),
                "the bytes after the header are ignored"
            );
        }
        let odd = Header::parse(&[0x5b, 0x00]).unwrap();
        assert_eq!((odd.last, odd.reserved, odd.opcode), (false, 5, 0xb));
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let mask = [1, 2, 3, 4];
        let frame = close(Code::Policy, &"ä".repeat(100), Some(mask));
        assert_eq!(frame[..2], [0x88, 0x80 | 124]);
        let payload: Vec<u8> = frame[6..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(payload, [&[0x03, 0xf0], "ä".repeat(61).as_bytes()].concat());
        assert_eq!(close(Code::GoingAway, "", None), [0x88, 2, 0x03, 0xe9]);
    }

    #[test]
    fn every_length_is_written_as_it_is_read() {
        for length in [0, 1, 125, 126, 65_535, 65_536, 100_000] {
            for mask in [None, Some([9, 8, 7, 6])] {
                let frame = encode(opcode::BINARY, &vec![7; length], mask);
                let header = Header::parse(&frame).unwrap();
                assert!(header.proper_length && header.last && header.masked == mask.is_some(), "{header:?}");
                assert_eq!((header.length, header.size + length), (length as u64, frame.len()));
            }
        }
    }
}
