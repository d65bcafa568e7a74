//! Parses the app's frames only to find the end of each one. All bytes are forwarded unchanged.
//!
//! This module refuses nothing: if an app violates the protocol, the client detects it. The length of a frame is always
//! unambiguous.

use super::frame::{Header, opcode};

/// The position in the app's frames.
#[derive(Debug, Default)]
pub(super) struct AppFrames {
    /// Remaining payload bytes of the current frame.
    rest: u64,
    in_message: bool,
    closed: bool,
}

impl AppFrames {
    /// Returns how many of the first bytes of `input` to forward: a header, or the available part of a payload. 0 means
    /// that more bytes are needed.
    pub(super) fn next(&mut self, input: &[u8]) -> usize {
        if self.rest > 0 {
            let there = usize::try_from(self.rest).map_or(input.len(), |rest| rest.min(input.len()));
            self.rest -= there as u64;
            return there;
        }
        let Some(header) = Header::parse(input) else { return 0 };
        if !opcode::is_control(header.opcode) {
            self.in_message = !header.last;
        }
        self.closed |= header.opcode == opcode::CLOSE;
        self.rest = header.length;
        header.size
    }

    /// Whether a control frame can be inserted here: not inside a frame, and not after a close.
    pub(super) fn takes_control(&self) -> bool {
        self.rest == 0 && !self.closed
    }

    /// Whether a message can be inserted here: not inside another message either.
    pub(super) fn takes_message(&self) -> bool {
        self.takes_control() && !self.in_message
    }

    /// Whether the app's close frame has passed completely.
    pub(super) fn closed(&self) -> bool {
        self.closed && self.rest == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets at which a control frame can be inserted, and those at which a message can be inserted.
    fn gaps(bytes: &[u8], pieces: usize) -> (Vec<usize>, Vec<usize>) {
        let mut frames = AppFrames::default();
        let (mut control, mut message) = (Vec::new(), Vec::new());
        let mut at = 0;
        for end in (0..=bytes.len()).step_by(pieces).chain([bytes.len()]) {
            loop {
                if frames.takes_control() && control.last() != Some(&at) {
                    control.push(at);
                }
                if frames.takes_message() && message.last() != Some(&at) {
                    message.push(at);
                }
                match frames.next(&bytes[at..end]) {
                    0 => break,
                    passed => at += passed,
                }
            }
        }
        assert_eq!(at, bytes.len());
        (control, message)
    }

    #[test]
    fn messages_fit_between_messages_and_control_frames_between_frames() {
        let bytes = [
            &[0x81, 2, b'a', b'b'][..],      // a whole message
            &[0x01, 1, b'c'],                // the first frame of another message
            &[0x89, 0],                      // a ping inside the message
            &[0x00, 0],                      // an empty frame of the message
            &[0x80, 1, b'd'],                // the end of the message
            &[0xc2, 0x81, 1, 2, 3, 4, b'e'], // invalid: an extension bit and a mask
            &[0x82, 0x7e, 0, 1, b'f'],       // a length in a form that is too long
            &[0x88, 2, 3, 0xe8],             // close
            &[0x81, 1, b'g'],                // a message after the close
        ]
        .concat();
        for pieces in 1..=bytes.len() {
            let (control, message) = gaps(&bytes, pieces);
            assert_eq!(control, [0, 4, 7, 9, 11, 14, 21, 26], "{pieces}");
            assert_eq!(message, [0, 4, 14, 21, 26], "{pieces}");
        }
    }
}
