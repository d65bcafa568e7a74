//! SETTINGS (RFC 9113, section 6.5): ours, and what of the peer's matters to a client that never indexes a field.

use crate::error::{Fault, Reason};
use crate::frame::{FrameHead, MAX_31, MAX_PAYLOAD_BYTES, kind, wrong_length};
use crate::window::INITIAL;
use crate::{MAX_BODY_BYTES, MAX_HEAD_BYTES};

const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;

/// What the peer may send of one answer before it is allowed more.
pub(crate) const WINDOW: u32 = MAX_BODY_BYTES;

const OURS: [(u16, u32); 5] = [
    (HEADER_TABLE_SIZE, 0),
    (ENABLE_PUSH, 0),
    (INITIAL_WINDOW_SIZE, WINDOW),
    (MAX_FRAME_SIZE, MAX_PAYLOAD_BYTES),
    (MAX_HEADER_LIST_SIZE, MAX_HEAD_BYTES),
];

/// Writes the frame with ours.
pub(crate) fn write_ours(out: &mut Vec<u8>) {
    let length = 6 * u32::try_from(OURS.len()).expect("a few");
    FrameHead { length, kind: kind::SETTINGS, flags: 0, stream: 0 }.write(out);
    for (name, value) in OURS {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// What the peer asked for.
///
/// Frames are never longer than what everybody must take, so its MAX_FRAME_SIZE is only checked. Its HEADER_TABLE_SIZE and
/// MAX_HEADER_LIST_SIZE bind nobody who indexes nothing and sends short heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    pub(crate) initial_window: u32,
    /// Whether a stream may be opened, one at a time.
    pub(crate) takes_streams: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self { initial_window: INITIAL, takes_streams: true }
    }
}

impl PeerSettings {
    /// Takes over what a frame says. What is unknown is left out.
    pub(crate) fn update(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let (entries, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(wrong_length());
        }
        for &[n0, n1, v0, v1, v2, v3] in entries {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([n0, n1]) {
                ENABLE_PUSH if value != 0 => return Err(Fault::protocol("a server cannot be pushed to")),
                MAX_CONCURRENT_STREAMS => self.takes_streams = value > 0,
                INITIAL_WINDOW_SIZE if value > MAX_31 => {
                    return Err(Fault::new(Reason::FLOW_CONTROL_ERROR, "a window is larger than 2^31-1"));
                }
                INITIAL_WINDOW_SIZE => self.initial_window = value,
                MAX_FRAME_SIZE if !(MAX_PAYLOAD_BYTES..1 << 24).contains(&value) => {
                    return Err(Fault::protocol("frames cannot be of the size that is asked for"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(entries: &[(u16, u32)]) -> Result<PeerSettings, Reason> {
        let payload: Vec<u8> =
            entries.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        let mut settings = PeerSettings::default();
        settings.update(&payload).map_err(|fault| fault.reason)?;
        Ok(settings)
    }

    #[test]
    fn values_are_checked_and_the_last_one_counts() {
        let like = |initial_window, takes_streams| Ok(PeerSettings { initial_window, takes_streams });
        for (entries, expected) in [
            (&[][..], like(65_535, true)),
            (&[(0x1, u32::MAX), (0x2, 0), (0x6, 0), (0x99, 7)], like(65_535, true)),
            (&[(0x2, 1)], Err(Reason::PROTOCOL_ERROR)),
            (&[(0x3, 0)], like(65_535, false)),
            (&[(0x3, 0), (0x3, 1)], like(65_535, true)),
            (&[(0x4, 0)], like(0, true)),
            (&[(0x4, MAX_31)], like(MAX_31, true)),
            (&[(0x4, MAX_31 + 1)], Err(Reason::FLOW_CONTROL_ERROR)),
            (&[(0x5, 16_384), (0x5, 16_777_215)], like(65_535, true)),
            (&[(0x5, 16_383)], Err(Reason::PROTOCOL_ERROR)),
            (&[(0x5, 16_777_216)], Err(Reason::PROTOCOL_ERROR)),
        ] {
            assert_eq!(update(entries), expected, "{entries:?}");
        }
        assert_eq!(PeerSettings::default().update(&[0; 7]).unwrap_err().reason, Reason::FRAME_SIZE_ERROR);
    }
}
