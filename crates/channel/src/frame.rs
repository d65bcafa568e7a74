//! The frames of the channel. A frame has four bytes of length (big-endian, the length of tag and payload), one byte of
//! tag, and the payload.
//!
//! A peer can be hostile. So the decoder checks the length before it allocates, and its memory grows with the bytes
//! that have arrived, not with the announced length.

use bytes::{Buf, Bytes};
use weir_wire::MAX_SNAPSHOT_BYTES;

/// The longest payload. This bound has room for a snapshot that is slightly too long, so that the agent can reject the
/// snapshot with a reason.
pub const MAX_PAYLOAD_BYTES: usize = MAX_SNAPSHOT_BYTES + 64 * 1024;

/// The bytes of the length and the tag.
pub(crate) const HEAD_BYTES: usize = 5;

/// The number of bytes that the decoder allocates beyond the bytes that have arrived.
const STEP: usize = 8 * 1024;

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of message.
    pub tag: u8,
    /// The message.
    pub payload: Vec<u8>,
}

/// The reason why bytes are not a frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFrame {
    /// The length leaves no room for a tag.
    #[error("a frame has no tag")]
    Empty,
    /// The payload is longer than [`MAX_PAYLOAD_BYTES`].
    #[error("a frame of {0} bytes is longer than {MAX_PAYLOAD_BYTES} bytes")]
    TooLong(usize),
}

/// A frame that is ready to be written. Frames of several connections can share the end of their payload.
#[derive(Clone, Debug)]
pub struct Outgoing {
    head: Bytes,
    shared: Bytes,
}

impl Outgoing {
    /// Returns a frame with this payload. `None` if the payload is longer than [`MAX_PAYLOAD_BYTES`].
    pub fn new(tag: u8, payload: &[u8]) -> Option<Self> {
        Self::ending_with(tag, payload, Bytes::new())
    }

    /// Returns a frame whose payload is `start` followed by `shared`. `None` if both together are longer than
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

    /// Returns all bytes of the frame, in order.
    pub fn into_buf(self) -> impl Buf {
        self.head.chain(self.shared)
    }
}

/// A decoder, which assembles frames from the bytes that arrive. Between frames it uses no heap memory.
///
/// The caller calls [`space`](Self::space), fills a part of it, and reports the number of bytes with
/// [`filled`](Self::filled). So the caller never reads beyond the current frame, and a cancelled read loses nothing.
#[derive(Debug, Default)]
pub struct Decoder {
    head: [u8; HEAD_BYTES],
    /// The number of bytes of the head that have arrived.
    head_filled: usize,
    payload: Vec<u8>,
    /// The number of bytes of the payload that have arrived.
    payload_filled: usize,
}

impl Decoder {
    /// Returns the buffer for the next bytes, which is never empty.
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
    /// [`InvalidFrame`]. The bytes after an invalid frame have no meaning.
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

    /// Returns true if a part of a frame has arrived.
    pub fn is_within_frame(&self) -> bool {
        self.head_filled > 0
    }

    /// Returns the length that the head announces, which is the length of the tag and the payload.
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

    /// Returns all frames in `input`, which arrives in pieces whose sizes cycle through `sizes`.
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
