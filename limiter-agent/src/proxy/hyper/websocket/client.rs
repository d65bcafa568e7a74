//! Checks the client's frames against the protocol, and passes or drops each message.
//!
//! The check covers only the framing, because the agent and the app must agree on it. The app checks whether text is
//! UTF-8 and whether a close code exists.

use super::frame::{Header, MAX_CONTROL, opcode};

/// The position in the client's frames.
#[derive(Debug, Default)]
pub(super) struct ClientFrames {
    /// Remaining payload bytes of the current frame.
    rest: u64,
    /// Whether the current frame passes or is dropped.
    fate: MessageVerdict,
    /// Whether the current message passes or is dropped. Control frames are allowed between its frames.
    message: Option<MessageVerdict>,
    /// The decision about the message that begins next.
    verdict: Option<MessageVerdict>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MessageVerdict {
    #[default]
    Pass,
    Drop,
}

/// The next step for the first bytes of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Pass this many bytes to the app.
    Pass(usize),
    /// Drop this many bytes.
    Drop(usize),
    /// A message begins here. Call [`ClientFrames::admit`] or [`ClientFrames::refuse`], then continue.
    Message,
    /// More bytes are needed.
    More,
}

/// A violation of the protocol by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("a frame uses an extension that was not agreed on")]
    Reserved,
    #[error("a frame has an unknown opcode")]
    Opcode,
    #[error("a frame of the client is not masked")]
    Unmasked,
    #[error("the length of a frame is not written in the shortest way")]
    Length,
    #[error("a control frame is longer than 125 bytes")]
    LongControl,
    #[error("a control frame is fragmented")]
    FragmentedControl,
    #[error("a continuation frame continues no message")]
    Continuation,
    #[error("a message begins inside another")]
    Interleaved,
}

impl ClientFrames {
    /// Returns the step for the first bytes of `input`. Bytes that were passed or dropped must not be in `input` again.
    ///
    /// # Errors
    ///
    /// Returns the violation if a frame is invalid. No byte after it can be parsed. Violations are detected at a
    /// frame's header, so the passed bytes end with a complete frame.
    pub(super) fn next(&mut self, input: &[u8]) -> Result<Step, Violation> {
        if self.rest > 0 {
            let there = usize::try_from(self.rest).map_or(input.len(), |rest| rest.min(input.len()));
            self.rest -= there as u64;
            return Ok(self.step(there));
        }
        if self.closed {
            // RFC 6455 section 5.5.1: no frame is allowed to follow a close, and an app need not handle one.
            self.fate = MessageVerdict::Drop;
            return Ok(self.step(input.len()));
        }
        let Some(header) = Header::parse(input) else { return Ok(Step::More) };
        self.check(header)?;
        match header.opcode {
            control if opcode::is_control(control) => {
                self.fate = MessageVerdict::Pass;
                self.closed = control == opcode::CLOSE;
            }
            opcode::CONTINUATION => {
                self.fate = self.message.take().ok_or(Violation::Continuation)?;
                self.message = (!header.last).then_some(self.fate);
            }
            _ => {
                let Some(verdict) = self.verdict.take() else { return Ok(Step::Message) };
                self.fate = verdict;
                self.message = (!header.last).then_some(verdict);
            }
        }
        self.rest = header.length;
        Ok(self.step(header.size))
    }

    /// Admits the message that begins here, so that the app gets it.
    pub(super) fn admit(&mut self) {
        self.verdict = Some(MessageVerdict::Pass);
    }

    /// Refuses the message that begins here: it is dropped up to its last frame.
    pub(super) fn refuse(&mut self) {
        self.verdict = Some(MessageVerdict::Drop);
    }

    /// Whether a control frame for the app can be inserted here: the passed bytes end with a complete frame, which is
    /// not a close.
    pub(super) fn takes_control(&self) -> bool {
        !self.closed && (self.rest == 0 || self.fate == MessageVerdict::Drop)
    }

    /// Whether the client's close frame was read completely.
    pub(super) fn closed(&self) -> bool {
        self.closed && self.rest == 0
    }

    fn step(&self, length: usize) -> Step {
        match self.fate {
            _ if length == 0 => Step::More,
            MessageVerdict::Pass => Step::Pass(length),
            MessageVerdict::Drop => Step::Drop(length),
        }
    }

    fn check(&self, header: Header) -> Result<(), Violation> {
        let Header { last, reserved, opcode, masked, length, proper_length, .. } = header;
        let control = opcode::is_control(opcode);
        let violation = match opcode {
            _ if reserved != 0 => Violation::Reserved,
            _ if !opcode::is_known(opcode) => Violation::Opcode,
            _ if !masked => Violation::Unmasked,
            _ if control && length > MAX_CONTROL.into() => Violation::LongControl,
            _ if !proper_length => Violation::Length,
            _ if control && !last => Violation::FragmentedControl,
            opcode::TEXT | opcode::BINARY if self.message.is_some() => Violation::Interleaved,
            _ => return Ok(()),
        };
        Err(violation)
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
