//! What each kind of frame does (RFC 9113, section 6).

use super::{Block, Codec, PATIENCE, State};
use crate::MAX_HEAD_BYTES;
use crate::error::{Error, Fault, Reason};
use crate::exchange::reset;
use crate::frame::{FrameHead, MAX_31, flag, fragment, kind, read_u32, unpadded, write_u32, wrong_length};

/// Whose stream a frame is on.
enum Stream {
    /// That of the exchange.
    Current,
    /// One that was closed.
    Past,
}

impl Codec {
    pub(super) fn take_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        if !self.is_greeted && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(Fault::protocol("its first words are no settings"));
        }
        if let Some(block) = &self.block
            && (head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return Err(Fault::protocol("a head is interrupted"));
        }
        let is_of_stream = match head.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION => true,
            kind::SETTINGS | kind::PING | kind::GOAWAY => false,
            _ => head.stream != 0,
        };
        if is_of_stream != (head.stream != 0) {
            return Err(Fault::protocol("a frame belongs to a stream, or to none, and should not"));
        }
        match head.kind {
            kind::DATA => self.data(head, payload),
            kind::HEADERS => self.headers(head, payload),
            kind::CONTINUATION => self.continuation(head, payload),
            kind::RST_STREAM => self.rst_stream(head, payload),
            kind::SETTINGS => self.settings(head, payload),
            kind::PING => self.ping(head, payload),
            kind::GOAWAY => self.goaway(payload),
            kind::WINDOW_UPDATE => self.window_update(head, payload),
            kind::PUSH_PROMISE => Err(Fault::protocol("it pushes, and was told not to")),
            kind::PRIORITY if payload.len() != 5 => Err(wrong_length()),
            _ => self.be_patient(),
        }
    }

    fn stream(&self, stream: u32) -> Result<Stream, Fault> {
        if self.exchange.as_ref().is_some_and(|exchange| exchange.is_on(stream)) {
            return Ok(Stream::Current);
        }
        let was_opened = stream % 2 == 1 && stream < self.next_stream;
        if was_opened { Ok(Stream::Past) } else { Err(Fault::protocol("a frame is on a stream that nobody opened")) }
    }

    /// What may come on a stream that was closed: the peer may not have known it yet, if it was closed here.
    fn be_late(&mut self, stream: u32) -> Result<(), Fault> {
        if stream > self.cancelled {
            return Err(Fault::new(Reason::STREAM_CLOSED, "an answer goes on after its end"));
        }
        self.be_patient()
    }

    /// One more that answers nothing.
    fn be_patient(&mut self) -> Result<(), Fault> {
        let left = self.patience.checked_sub(1);
        self.patience = left.ok_or(Fault::new(Reason::ENHANCE_YOUR_CALM, "it says too much that answers nothing"))?;
        Ok(())
    }

    fn data(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        let stream = self.stream(head.stream)?;
        let part = unpadded(head, payload)?;
        self.allowed.take(head.length)?;
        if let Some(increment) = self.allowed.refill() {
            write_u32(kind::WINDOW_UPDATE, 0, increment, &mut self.out);
        }
        let is_end = head.has(flag::END_STREAM);
        match (stream, &mut self.exchange) {
            (Stream::Current, Some(exchange)) => {
                let refilled = exchange.take_data(part, head.length)?;
                if is_end {
                    return self.finish();
                }
                if let Some(increment) = refilled {
                    write_u32(kind::WINDOW_UPDATE, head.stream, increment, &mut self.out);
                }
                if part.is_empty() {
                    return self.be_patient();
                }
                if exchange.is_streamed {
                    // It may go on for days, and each part is an answer.
                    self.patience = PATIENCE;
                }
                Ok(())
            }
            _ => self.be_late(head.stream),
        }
    }

    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        if let Stream::Past = self.stream(head.stream)? {
            self.be_late(head.stream)?;
        }
        let fragment = fragment(head, payload)?;
        let is_end = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.head(head.stream, is_end, fragment);
        }
        self.block = Some(Box::new(Block { stream: head.stream, is_end, bytes: fragment.to_vec() }));
        Ok(())
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        let Some(mut block) = self.block.take() else {
            return Err(Fault::protocol("a head goes on that did not begin"));
        };
        self.be_patient()?;
        if block.bytes.len() + payload.len() > MAX_HEAD_BYTES as usize {
            return Err(Fault::too_much("its head is longer than any answer's"));
        }
        block.bytes.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            return self.head(block.stream, block.is_end, &block.bytes);
        }
        self.block = Some(block);
        Ok(())
    }

    /// A head is whole. One of a past stream changes nothing, because there is no table that it could change.
    fn head(&mut self, stream: u32, is_end: bool, block: &[u8]) -> Result<(), Fault> {
        match &mut self.exchange {
            Some(exchange) if exchange.is_on(stream) => exchange.take_head(block, is_end)?,
            _ => return Ok(()),
        }
        if is_end { self.finish() } else { Ok(()) }
    }

    /// The answer has ended.
    fn finish(&mut self) -> Result<(), Fault> {
        let Some(mut exchange) = self.exchange.take() else { return Ok(()) };
        if let Some(stream) = exchange.stream
            && exchange.is_unsent()
        {
            // It did not need the rest of the question.
            self.reset(stream);
        }
        exchange.end()?;
        self.patience = PATIENCE;
        if exchange.is_streamed {
            exchange.give_up_the_rest();
            self.exchange = Some(exchange);
        } else {
            self.outcome = exchange.whole().map(|answer| Box::new(Ok(answer)));
        }
        Ok(())
    }

    fn fail(&mut self, error: Error) {
        self.exchange = None;
        self.outcome = Some(Box::new(Err(error)));
    }

    fn rst_stream(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        let reason = Reason::from_code(read_u32(payload)?);
        match self.stream(head.stream)? {
            Stream::Current => self.fail(reset(reason)),
            Stream::Past => {}
        }
        self.be_patient()
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        self.be_patient()?;
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(wrong_length());
            }
            let is_second = std::mem::replace(&mut self.is_acknowledged, true);
            return if is_second { Err(Fault::protocol("it has seen settings that nobody sent")) } else { Ok(()) };
        }
        let before = self.peer.initial_window;
        self.peer.update(payload)?;
        if let Some(exchange) = &mut self.exchange {
            exchange.window.resize(before, self.peer.initial_window)?;
        }
        self.is_greeted = true;
        FrameHead { length: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }.write(&mut self.out);
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        if payload.len() != 8 {
            return Err(wrong_length());
        }
        if !head.has(flag::ACK) {
            FrameHead { flags: flag::ACK, ..head }.write(&mut self.out);
            self.out.extend_from_slice(payload);
        }
        self.be_patient()
    }

    fn goaway(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let Some((last, rest)) = payload.split_first_chunk() else { return Err(wrong_length()) };
        let Some(reason) = rest.first_chunk() else { return Err(wrong_length()) };
        let (last, reason) = (u32::from_be_bytes(*last) & MAX_31, Reason::from_code(u32::from_be_bytes(*reason)));
        if let State::Leaving { last: before, .. } = self.state
            && last > before
        {
            return Err(Fault::protocol("it goes away later than it said"));
        }
        self.state = State::Leaving { last, reason };
        if let Some(exchange) = &self.exchange
            && exchange.stream.is_none_or(|stream| stream > last)
            && !exchange.has_ended()
        {
            self.fail(Error::NotTaken(reason));
        }
        self.be_patient()
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Fault> {
        let increment = read_u32(payload)? & MAX_31;
        if head.stream == 0 {
            self.window.grant(increment)?;
        } else if let Stream::Current = self.stream(head.stream)?
            && let Some(exchange) = &mut self.exchange
        {
            exchange.window.grant(increment)?;
        }
        self.be_patient()
    }
}
