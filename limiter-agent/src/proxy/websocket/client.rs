//! What the client sends: held against the protocol, message by message let through or left out.
//!
//! Only what concerns the framing is checked here, because that is what an intermediary could get out of step by.
//! Whether text is UTF-8 and a close code exists is for the app to say.

use super::frame::{Header, MAX_CONTROL, opcode};

/// How far into the client's frames a connection is.
#[derive(Debug, Default)]
pub(super) struct ClientFrames {
    /// Payload of the current frame still to come.
    rest: u64,
    /// What becomes of the current frame.
    fate: Fate,
    /// The message that has begun and not ended; control frames may stand between its frames.
    message: Option<Fate>,
    /// What was decided about the message that begins next.
    verdict: Option<Fate>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Pass,
    Drop,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes are for the app.
    Pass(usize),
    /// So many bytes go nowhere.
    Drop(usize),
    /// A message begins here: [`ClientFrames::admit`] or [`ClientFrames::refuse`] it, then go on.
    Message,
    /// Nothing to be said before more bytes are there.
    More,
}

/// How a client can break the protocol.
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
    /// What becomes of the bytes that `input` begins with. Those that are passed or dropped are not to be shown again.
    ///
    /// # Errors
    ///
    /// Nothing that follows can be understood. It is found at a frame's header, so what has passed ends with a whole frame.
    pub(super) fn next(&mut self, input: &[u8]) -> Result<Step, Violation> {
        if self.rest > 0 {
            let there = usize::try_from(self.rest).map_or(input.len(), |rest| rest.min(input.len()));
            self.rest -= there as u64;
            return Ok(self.step(there));
        }
        if self.closed {
            // RFC 6455 section 5.5.1: nothing may follow, and an app need not expect it.
            self.fate = Fate::Drop;
            return Ok(self.step(input.len()));
        }
        let Some(header) = Header::parse(input) else { return Ok(Step::More) };
        self.check(header)?;
        match header.opcode {
            control if opcode::is_control(control) => {
                self.fate = Fate::Pass;
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

    /// The message that begins is for the app.
    pub(super) fn admit(&mut self) {
        self.verdict = Some(Fate::Pass);
    }

    /// The message that begins goes nowhere, up to its last frame.
    pub(super) fn refuse(&mut self) {
        self.verdict = Some(Fate::Drop);
    }

    /// Whether a control frame for the app may be put here: what has passed ends with a whole frame, and is no close.
    pub(super) fn takes_control(&self) -> bool {
        !self.closed && (self.rest == 0 || self.fate == Fate::Drop)
    }

    /// Whether the client's close frame was seen, to its end.
    pub(super) fn closed(&self) -> bool {
        self.closed && self.rest == 0
    }

    fn step(&self, length: usize) -> Step {
        match self.fate {
            _ if length == 0 => Step::More,
            Fate::Pass => Step::Pass(length),
            Fate::Drop => Step::Drop(length),
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
