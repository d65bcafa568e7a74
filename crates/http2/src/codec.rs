//! The protocol without a transport: bytes in, bytes out.
//!
//! At rest it holds no buffers: what came is taken as it comes, but for a frame of which the rest is missing, and what is to
//! be sent is made when there is room for it.

mod receive;

use bytes::Bytes;
use http::Response;

use crate::error::{Error, Fault, Reason};
use crate::exchange::{Exchange, Request};
use crate::frame::{FrameHead, HEAD_BYTES, MAX_31, PREFACE, kind, write_goaway, write_u32};
use crate::settings::{self, PeerSettings};
use crate::window::{INITIAL, ReceiveWindow, SendWindow};
use crate::{MAX_BODY_BYTES, frame};

/// Frames of a body are put together until there is so much to be sent.
const BATCH_BYTES: usize = 16 * 1024;
/// How many frames that answer nothing are taken between two that do, such as pings. What they ask to be sent is so bounded.
const PATIENCE: u16 = 1000;

/// The client's side of a connection.
#[derive(Debug)]
pub struct Codec {
    /// To be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// A frame of which the rest is missing.
    partial: Vec<u8>,
    /// A head of which the rest is missing.
    block: Option<Box<Block>>,
    peer: PeerSettings,
    /// What the peer has yet to say first: its settings, and that it has seen ours.
    is_greeted: bool,
    is_acknowledged: bool,
    window: SendWindow,
    allowed: ReceiveWindow,
    next_stream: u32,
    /// The newest stream that was given up here: the peer may not know it yet.
    cancelled: u32,
    patience: u16,
    exchange: Option<Box<Exchange>>,
    outcome: Option<Box<Result<Response<Bytes>, Error>>>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The peer goes away, and has looked at streams up to this one.
    Leaving {
        last: u32,
        reason: Reason,
    },
    Over,
}

#[derive(Debug)]
struct Block {
    stream: u32,
    is_end: bool,
    bytes: Vec<u8>,
}

impl Default for Codec {
    fn default() -> Self {
        Self::new()
    }
}

impl Codec {
    /// A connection on which nothing was sent yet.
    pub fn new() -> Self {
        let mut out = PREFACE.to_vec();
        settings::write_ours(&mut out);
        write_u32(kind::WINDOW_UPDATE, 0, MAX_BODY_BYTES - INITIAL, &mut out);
        Self {
            out,
            sent: 0,
            partial: Vec::new(),
            block: None,
            peer: PeerSettings::default(),
            is_greeted: false,
            is_acknowledged: false,
            window: SendWindow::new(INITIAL),
            allowed: ReceiveWindow::new(MAX_BODY_BYTES),
            next_stream: 1,
            cancelled: 0,
            patience: PATIENCE,
            exchange: None,
            outcome: None,
            state: State::Open,
        }
    }

    /// Begins an exchange. One that is under way is given up: nobody waits for its answer any more.
    ///
    /// # Errors
    ///
    /// If the connection takes no more exchanges, or nobody would take this request.
    pub fn start(&mut self, request: Request<'_>) -> Result<(), Error> {
        self.begin(request, false)
    }

    /// The same, if the answer is taken as it comes: first its [head](Self::take_head), then [parts](Self::take_part) of its
    /// body, which may go on for as long as the peer likes. Only how it fails is an [outcome](Self::take_outcome).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_streamed(&mut self, request: Request<'_>) -> Result<(), Error> {
        self.begin(request, true)
    }

    fn begin(&mut self, request: Request<'_>, is_streamed: bool) -> Result<(), Error> {
        self.cancel();
        if let Some(end) = self.end() {
            return Err(end);
        }
        self.exchange = Some(Box::new(Exchange::new(request, self.peer.initial_window, is_streamed)?));
        Ok(())
    }

    /// Gives up the exchange that is under way, and its answer.
    pub fn cancel(&mut self) {
        self.outcome = None;
        if let Some(exchange) = self.exchange.take()
            && let Some(stream) = exchange.stream
            && !exchange.has_ended()
        {
            self.reset(stream);
        }
    }

    /// Whether there is something to be taken: how the exchange ended, or more of an answer that is taken as it comes.
    pub fn has_news(&self) -> bool {
        self.outcome.is_some() || self.exchange.as_ref().is_some_and(|exchange| exchange.has_news())
    }

    /// How the exchange ended, once it has.
    pub fn take_outcome(&mut self) -> Option<Result<Response<Bytes>, Error>> {
        self.outcome.take().map(|outcome| *outcome)
    }

    /// The head of an answer that is taken as it comes, once it has come.
    pub fn take_head(&mut self) -> Option<Response<()>> {
        self.streamed().and_then(Exchange::head)
    }

    /// Moves what has come of the body of an answer that is taken as it comes to the end of `body`; false if that is nothing.
    pub fn take_part(&mut self, body: &mut Vec<u8>) -> bool {
        self.streamed().is_some_and(|exchange| exchange.part(body))
    }

    /// Whether an answer is being taken as it comes.
    pub fn is_streaming(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.is_streamed)
    }

    /// Whether the answer that is taken as it comes has ended, and all of it is taken. Then its exchange is over.
    pub fn take_end(&mut self) -> bool {
        let has_ended = self.streamed().is_some_and(|exchange| exchange.has_ended() && !exchange.has_more());
        if has_ended {
            self.exchange = None;
        }
        has_ended
    }

    fn streamed(&mut self) -> Option<&mut Exchange> {
        self.exchange.as_deref_mut().filter(|exchange| exchange.is_streamed)
    }

    /// Why no exchange can begin, if that is so, and none is under way.
    pub fn end(&self) -> Option<Error> {
        match self.state {
            _ if self.exchange.is_some() => None,
            State::Open if self.next_stream <= MAX_31 => None,
            State::Open | State::Over => Some(Error::Closed),
            State::Leaving { reason, .. } => Some(Error::GoneAway(reason)),
        }
    }

    /// What is to be sent next.
    pub fn outgoing(&mut self) -> &[u8] {
        if self.sent == self.out.len() && !self.out.is_empty() {
            (self.out, self.sent) = (Vec::new(), 0);
        }
        if self.state != State::Over
            && let Some(exchange) = &mut self.exchange
        {
            if exchange.stream.is_none() && self.peer.takes_streams {
                exchange.open(self.next_stream, &mut self.out);
                self.next_stream += 2;
            }
            while self.out.len() - self.sent < BATCH_BYTES && exchange.send_data(&mut self.window, &mut self.out) {
                self.patience = PATIENCE;
            }
        }
        &self.out[self.sent..]
    }

    /// So many bytes of [`outgoing`](Self::outgoing) were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.out.len());
    }

    /// Takes bytes that came, in pieces of any length.
    ///
    /// # Errors
    ///
    /// If the peer breaks the protocol. Then it is told so by what is left to be sent, and nothing more is taken.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.state == State::Over {
            return Err(Error::Closed);
        }
        self.take_bytes(bytes).map_err(|fault| {
            write_goaway(fault.reason, &mut self.out);
            self.abandon();
            fault.into()
        })
    }

    /// The transport has ended: nothing more comes, and nothing more is sent.
    pub fn receive_end(&mut self) {
        if self.exchange.is_some() {
            self.outcome = Some(Box::new(Err(Error::Closed)));
        }
        self.abandon();
    }

    fn abandon(&mut self) {
        self.state = State::Over;
        (self.exchange, self.block, self.partial) = (None, None, Vec::new());
    }

    fn take_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        if !self.partial.is_empty() {
            let mut partial = std::mem::take(&mut self.partial);
            fill(&mut partial, HEAD_BYTES, &mut bytes);
            if let Some(head) = frame_head(&partial)? {
                fill(&mut partial, HEAD_BYTES + head.length as usize, &mut bytes);
                if partial.len() == HEAD_BYTES + head.length as usize {
                    self.take_frame(head, &partial[HEAD_BYTES..])?;
                    partial = Vec::new();
                }
            }
            self.partial = partial;
        }
        while let Some(head) = frame_head(bytes)? {
            let end = HEAD_BYTES + head.length as usize;
            let Some(payload) = bytes.get(HEAD_BYTES..end) else { break };
            self.take_frame(head, payload)?;
            bytes = &bytes[end..];
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn reset(&mut self, stream: u32) {
        self.cancelled = stream;
        write_u32(kind::RST_STREAM, stream, Reason::CANCEL.code(), &mut self.out);
    }
}

/// Moves bytes until `buffer` has so many.
fn fill(buffer: &mut Vec<u8>, length: usize, bytes: &mut &[u8]) {
    let missing = length.saturating_sub(buffer.len()).min(bytes.len());
    let (taken, rest) = bytes.split_at(missing);
    buffer.extend_from_slice(taken);
    *bytes = rest;
}

/// The head of a frame, if there is one, and its length is no longer than allowed.
fn frame_head(bytes: &[u8]) -> Result<Option<FrameHead>, Fault> {
    let Some(head) = bytes.first_chunk() else { return Ok(None) };
    let head = FrameHead::read(*head);
    if head.length > frame::MAX_PAYLOAD_BYTES { Err(frame::wrong_length()) } else { Ok(Some(head)) }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
