//! Frames. Each has four bytes of length (big-endian, counting what follows), one byte of tag, and the payload.
//!
//! A peer may be hostile. The decoder checks the length before it allocates, and its memory grows with the bytes that
//! have arrived, not with the announced length.

use bytes::{Buf, Bytes};
use weir_wire::MAX_SNAPSHOT_BYTES;

/// The longest payload. It leaves room for a snapshot that is a little too long, so that the agent can reject it with a
/// reason.
pub const MAX_PAYLOAD_BYTES: usize = MAX_SNAPSHOT_BYTES + 64 * 1024;

/// The length and the tag.
pub(crate) const HEAD_BYTES: usize = 5;

/// How much the decoder allocates ahead of the bytes that have arrived.
const STEP: usize = 8 * 1024;

/// A frame that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of message.
    pub tag: u8,
    /// The message.
    pub payload: Vec<u8>,
}

/// Why bytes are not a frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFrame {
    /// The length leaves no room for a tag.
    #[error("a frame without a tag")]
    Empty,
    /// The payload is longer than [`MAX_PAYLOAD_BYTES`].
    #[error("a frame of {0} bytes, and {MAX_PAYLOAD_BYTES} are the most")]
    TooLong(usize),
}

/// A frame that is ready to be written. Frames of several connections can share its end.
#[derive(Clone, Debug)]
pub struct Outgoing {
    head: Bytes,
    shared: Bytes,
}

impl Outgoing {
    /// A frame with this payload. `None` if it is longer than [`MAX_PAYLOAD_BYTES`].
    pub fn new(tag: u8, payload: &[u8]) -> Option<Self> {
        Self::ending_with(tag, payload, Bytes::new())
    }

    /// A frame whose payload is `start` followed by `shared`. `None` if both together are longer than
    /// [`MAX_PAYLOAD_BYTES`].
    pub fn ending_with(tag: u8, start: &[u8], shared: Bytes) -> Option<Self> {
        let payload = start.len() + shared.len();
        if payload > MAX_PAYLOAD_BYTES {
            return None;
        }
        let mut head = Vec::with_capacity(HEAD_BYTES + start.len());
        head.extend(u32::try_from(payload + 1).ok()?.to_be_bytes());
        head.push(tag);
        head.extend_from_slice(start);
        Some(Self { head: head.into(), shared })
    }

    /// All bytes of the frame, in order.
    pub fn into_buf(self) -> impl Buf {
        self.head.chain(self.shared)
    }
}

/// Assembles frames from the bytes that arrive. Between frames it holds no heap memory.
///
/// The caller asks for [`space`](Self::space), fills a part of it, and reports how much with [`filled`](Self::filled).
/// So it never reads beyond the current frame, and a cancelled read loses nothing.
#[derive(Debug, Default)]
pub struct Decoder {
    head: [u8; HEAD_BYTES],
    /// How many bytes of the head have arrived.
    head_filled: usize,
    payload: Vec<u8>,
    /// How many bytes of the payload have arrived.
    payload_filled: usize,
}

impl Decoder {
    /// Where to write the next bytes. Never empty.
    pub fn space(&mut self) -> &mut [u8] {
        if self.head_filled < HEAD_BYTES {
            return &mut self.head[self.head_filled..];
        }
        if self.payload_filled == self.payload.len() {
            let step = (self.payload_len() - self.payload_filled).min(STEP);
            self.payload.reserve_exact(step);
            self.payload.resize(self.payload_filled + step, 0);
        }
        &mut self.payload[self.payload_filled..]
    }

    /// Records that the first `count` bytes of [`space`](Self::space) have arrived. Returns the frame if it is
    /// complete.
    ///
    /// # Errors
    ///
    /// [`InvalidFrame`]. The bytes after it have no meaning.
    pub fn filled(&mut self, count: usize) -> Result<Option<Frame>, InvalidFrame> {
        if self.head_filled < HEAD_BYTES {
            self.head_filled += count;
            if self.head_filled < HEAD_BYTES {
                return Ok(None);
            }
            match self.len() {
                0 => return Err(InvalidFrame::Empty),
                len if len - 1 > MAX_PAYLOAD_BYTES => return Err(InvalidFrame::TooLong(len - 1)),
                _ => {}
            }
        } else {
            self.payload_filled += count;
        }
        if self.payload_filled < self.payload_len() {
            return Ok(None);
        }
        let Self { head, payload, .. } = std::mem::take(self);
        Ok(Some(Frame { tag: head[HEAD_BYTES - 1], payload }))
    }

    /// Whether a part of a frame has arrived.
    pub fn is_within_frame(&self) -> bool {
        self.head_filled > 0
    }

    /// The length that the head announces: the tag and the payload.
    fn len(&self) -> usize {
        let [a, b, c, d, _] = self.head;
        usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
    }

    fn payload_len(&self) -> usize {
        self.len().saturating_sub(1)
    }
}

#[cfg(test)]
#[path = "frame_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(frame: Outgoing) -> Vec<u8> {
        let mut buffer = frame.into_buf();
        let mut bytes = Vec::new();
        while buffer.has_remaining() {
            let chunk = buffer.chunk();
            bytes.extend_from_slice(chunk);
            let count = chunk.len();
            buffer.advance(count);
        }
        bytes
    }

    /// All frames in `input`, which arrives in pieces whose sizes cycle through `sizes`.
    pub(super) fn decoded(mut input: &[u8], sizes: &[usize]) -> (Vec<Frame>, Option<InvalidFrame>, Decoder) {
        let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
        let mut sizes = sizes.iter().copied().cycle();
        while !input.is_empty() {
            let space = decoder.space();
            assert!(!space.is_empty());
            let count = space.len().min(input.len()).min(sizes.next().unwrap_or(usize::MAX).max(1));
            space[..count].copy_from_slice(&input[..count]);
            input = &input[count..];
            match decoder.filled(count) {
                Ok(frame) => frames.extend(frame),
                Err(error) => return (frames, Some(error), decoder),
            }
            assert!(decoder.payload.capacity() <= decoder.payload_filled + STEP, "more than has arrived");
        }
        (frames, None, decoder)
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded_however_it_is_cut(
            sent in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40), 0..3_usize), 0..6),
            sizes in prop::collection::vec(1..20_usize, 1..8),
        ) {
            let mut input = Vec::new();
            for (tag, payload, cut) in &sent {
                let (start, shared) = payload.split_at(payload.len() * cut / 3);
                input.extend(bytes(Outgoing::ending_with(*tag, start, Bytes::copy_from_slice(shared)).unwrap()));
            }
            let (frames, error, decoder) = decoded(&input, &sizes);
            let sent: Vec<_> = sent.into_iter().map(|(tag, payload, _)| Frame { tag, payload }).collect();
            prop_assert_eq!(frames, sent);
            prop_assert!(error.is_none() && !decoder.is_within_frame() && decoder.payload.capacity() == 0);
        }
    }

    #[test]
    fn a_length_is_checked_before_anything_is_allocated() {
        let too_long = u32::try_from(MAX_PAYLOAD_BYTES + 2).unwrap();
        for (length, expected) in [
            (0, InvalidFrame::Empty),
            (too_long, InvalidFrame::TooLong(MAX_PAYLOAD_BYTES + 1)),
            (u32::MAX, InvalidFrame::TooLong(u32::MAX as usize - 1)),
        ] {
            let mut head = length.to_be_bytes().to_vec();
            head.push(1);
            let (frames, error, decoder) = decoded(&head, &[1]);
            assert_eq!((frames, error, decoder.payload.capacity()), (vec![], Some(expected), 0));
        }
        assert!(Outgoing::new(1, &vec![0; MAX_PAYLOAD_BYTES]).is_some());
        assert!(Outgoing::new(1, &vec![0; MAX_PAYLOAD_BYTES + 1]).is_none());
    }

    #[test]
    fn a_peer_that_only_announces_a_long_frame_takes_little_memory() {
        let mut head = u32::try_from(MAX_PAYLOAD_BYTES + 1).unwrap().to_be_bytes().to_vec();
        head.extend([1, b'{']);
        let (frames, error, decoder) = decoded(&head, &[usize::MAX]);
        assert!(frames.is_empty() && error.is_none() && decoder.payload.capacity() <= STEP);
    }
}
