//! Frames: their heads, and the payloads that have a layout of their own (RFC 9113, section 4.1 and 6).

use crate::error::{Fault, Reason};

/// What a client says first (section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const HEAD_BYTES: usize = 9;
/// The longest payload that everybody must take, and the longest that is sent or taken here.
pub(crate) const MAX_PAYLOAD_BYTES: u32 = 16 * 1024;
/// The largest stream identifier, window, and increment of one.
pub(crate) const MAX_31: u32 = 0x7fff_ffff;

pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0x0;
    pub(crate) const HEADERS: u8 = 0x1;
    pub(crate) const PRIORITY: u8 = 0x2;
    pub(crate) const RST_STREAM: u8 = 0x3;
    pub(crate) const SETTINGS: u8 = 0x4;
    pub(crate) const PUSH_PROMISE: u8 = 0x5;
    pub(crate) const PING: u8 = 0x6;
    pub(crate) const GOAWAY: u8 = 0x7;
    pub(crate) const WINDOW_UPDATE: u8 = 0x8;
    pub(crate) const CONTINUATION: u8 = 0x9;
}

pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// What stands before each payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHead {
    pub(crate) fn read(bytes: [u8; HEAD_BYTES]) -> Self {
        let [l0, l1, l2, kind, flags, stream @ ..] = bytes;
        let length = u32::from_be_bytes([0, l0, l1, l2]);
        Self { length, kind, flags, stream: u32::from_be_bytes(stream) & MAX_31 }
    }

    pub(crate) fn bytes(self) -> [u8; HEAD_BYTES] {
        debug_assert!(self.length <= MAX_PAYLOAD_BYTES);
        let ([_, l0, l1, l2], [s0, s1, s2, s3]) = (self.length.to_be_bytes(), self.stream.to_be_bytes());
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A frame with a payload of four bytes.
pub(crate) fn write_u32(kind: u8, stream: u32, value: u32, out: &mut Vec<u8>) {
    FrameHead { length: 4, kind, flags: 0, stream }.write(out);
    out.extend_from_slice(&value.to_be_bytes());
}

/// The payload of a frame that must have four bytes.
pub(crate) fn read_u32(payload: &[u8]) -> Result<u32, Fault> {
    let bytes = payload.try_into().map_err(|_| wrong_length())?;
    Ok(u32::from_be_bytes(bytes))
}

/// The peer is told that it is heard no more; no stream of its own was ever opened.
pub(crate) fn write_goaway(reason: Reason, out: &mut Vec<u8>) {
    FrameHead { length: 8, kind: kind::GOAWAY, flags: 0, stream: 0 }.write(out);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&reason.code().to_be_bytes());
}

pub(crate) const fn wrong_length() -> Fault {
    Fault::new(Reason::FRAME_SIZE_ERROR, "a frame has a length that it must not have")
}

/// What is left of a payload without padding, if the frame may have any.
pub(crate) fn unpadded(head: FrameHead, payload: &[u8]) -> Result<&[u8], Fault> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or_else(wrong_length)?;
    let length = rest.len().checked_sub(usize::from(*padding));
    length.map(|length| &rest[..length]).ok_or(Fault::protocol("a frame has more padding than payload"))
}

/// The part of the payload of HEADERS that is a head.
pub(crate) fn fragment(head: FrameHead, payload: &[u8]) -> Result<&[u8], Fault> {
    let payload = unpadded(head, payload)?;
    if !head.has(flag::PRIORITY) {
        return Ok(payload);
    }
    payload.get(5..).ok_or_else(wrong_length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_a_round_and_the_reserved_bit_does_not() {
        let head = FrameHead { length: 16_384, kind: 0x9, flags: 0x5, stream: MAX_31 };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(bytes, [0, 0x40, 0, 9, 5, 0x7f, 0xff, 0xff, 0xff]);
        bytes[5] |= 0x80;
        assert_eq!(FrameHead::read(bytes.try_into().unwrap()), head);
    }

    #[test]
    fn padding_and_priority_are_taken_off() {
        const PROTOCOL: Option<Reason> = Some(Reason::PROTOCOL_ERROR);
        const LENGTH: Option<Reason> = Some(Reason::FRAME_SIZE_ERROR);
        for (flags, payload, expected) in [
            (0, &b"abc"[..], Ok(&b"abc"[..])),
            (flag::PADDED, b"\x02abc__", Ok(b"abc")),
            (flag::PADDED, b"\x03abc", Ok(b"")),
            (flag::PADDED, b"\x00", Ok(b"")),
            (flag::PADDED, b"\x04abc", Err(PROTOCOL)),
            (flag::PADDED, b"", Err(LENGTH)),
            (flag::PRIORITY, b"12345abc", Ok(b"abc")),
            (flag::PRIORITY, b"1234", Err(LENGTH)),
            (flag::PADDED | flag::PRIORITY, b"\x0112345abc_", Ok(b"abc")),
            (flag::PADDED | flag::PRIORITY, b"\x0112345", Err(LENGTH)),
        ] {
            let head = FrameHead { length: 0, kind: kind::HEADERS, flags, stream: 1 };
            let found = fragment(head, payload).map_err(|fault| Some(fault.reason));
            assert_eq!(found, expected, "{flags:#x} {payload:?}");
        }
    }
}
