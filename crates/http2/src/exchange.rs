//! One question and its answer.

use bytes::Bytes;
use http::{HeaderName, Method, Response};

use crate::error::{Error, Fault, Reason};
use crate::frame::{FrameHead, HEAD_BYTES, MAX_PAYLOAD_BYTES, flag, kind};
use crate::head::Head;
use crate::settings::WINDOW;
use crate::window::{ReceiveWindow, SendWindow};
use crate::{MAX_BODY_BYTES, MAX_HEAD_BYTES, hpack};

/// More heads than that before the real one are too many.
const MAX_INTERIM: u8 = 8;

/// For so many bytes of an answer that is taken as it comes, memory is kept between its parts.
const KEPT_BYTES: usize = 64;

/// What is asked, by `https`.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// What to do.
    pub method: Method,
    /// Host and port.
    pub authority: &'a str,
    /// The path, with its query.
    pub path: &'a str,
    /// More fields. A length is added for a body.
    pub fields: &'a [(HeaderName, &'a [u8])],
    /// Nothing, if it is empty.
    pub body: Bytes,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    method: Method,
    /// None until there is room for it.
    pub(crate) stream: Option<u32>,
    /// What has not been sent: a frame with the whole head, but for what stands before its payload.
    head: Vec<u8>,
    body: Bytes,
    pub(crate) window: SendWindow,
    /// Whether its answer is taken as it comes.
    pub(crate) is_streamed: bool,
    // The answer.
    has_head: bool,
    /// Until it is taken.
    head_read: Option<Head>,
    interim: u8,
    /// How long the body has to be, if that is known, and how much of it has come.
    expected: Option<u64>,
    length: u64,
    /// What of it was not taken.
    body_read: Vec<u8>,
    allowed: ReceiveWindow,
    has_ended: bool,
}

impl Exchange {
    pub(crate) fn new(request: Request<'_>, window: u32, is_streamed: bool) -> Result<Self, Error> {
        Ok(Self {
            head: encode(&request)?,
            method: request.method,
            stream: None,
            body: request.body,
            window: SendWindow::new(window),
            is_streamed,
            has_head: false,
            head_read: None,
            interim: 0,
            expected: None,
            length: 0,
            body_read: Vec::new(),
            allowed: ReceiveWindow::new(WINDOW),
            has_ended: false,
        })
    }

    /// Whether something of the request is yet to be sent.
    pub(crate) fn is_unsent(&self) -> bool {
        self.stream.is_none() || !self.body.is_empty()
    }

    /// Sends the head.
    pub(crate) fn open(&mut self, stream: u32, out: &mut Vec<u8>) {
        self.stream = Some(stream);
        let mut frame = std::mem::take(&mut self.head);
        let length = u32::try_from(frame.len() - HEAD_BYTES).expect("a head has a bound");
        let ends = if self.body.is_empty() { flag::END_STREAM } else { 0 };
        let head = FrameHead { length, kind: kind::HEADERS, flags: flag::END_HEADERS | ends, stream };
        frame[..HEAD_BYTES].copy_from_slice(&head.bytes());
        // At rest nothing else is to be sent, and what was put together goes out as it is.
        if out.is_empty() {
            *out = frame;
        } else {
            out.extend_from_slice(&frame);
        }
    }

    /// Sends the next frame of the body, if both windows allow one.
    pub(crate) fn send_data(&mut self, connection: &mut SendWindow, out: &mut Vec<u8>) -> bool {
        let Some(stream) = self.stream else { return false };
        let left = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        let length = left.min(MAX_PAYLOAD_BYTES).min(self.window.left()).min(connection.left());
        if length == 0 {
            return false;
        }
        self.window.take(length);
        connection.take(length);
        let part = self.body.split_to(length as usize);
        let flags = if self.body.is_empty() { flag::END_STREAM } else { 0 };
        FrameHead { length, kind: kind::DATA, flags, stream }.write(out);
        out.extend_from_slice(&part);
        true
    }

    /// Whether something of the answer is yet to come on this stream.
    pub(crate) fn is_on(&self, stream: u32) -> bool {
        self.stream == Some(stream) && !self.has_ended
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// A head came, whole.
    pub(crate) fn take_head(&mut self, block: &[u8], is_end: bool) -> Result<(), Fault> {
        if self.has_head {
            // Trailers.
            crate::head::skip_trailers(block)?;
            return if is_end { Ok(()) } else { Err(Fault::answer("it has a head in the middle")) };
        }
        let head = Head::read(block)?;
        if !head.status.is_informational() {
            self.expected = head.body_length(&self.method);
            (self.has_head, self.head_read) = (true, Some(head));
            return Ok(());
        }
        // To change the protocol is impossible in HTTP/2 (section 8.6).
        if is_end || head.status == http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(Fault::answer("it ends before it begins"));
        }
        self.interim += 1;
        if self.interim > MAX_INTERIM { Err(Fault::too_much("it announces itself without end")) } else { Ok(()) }
    }

    /// A part of the body came; `frame` is its length with padding. How much to allow again.
    pub(crate) fn take_data(&mut self, part: &[u8], frame: u32) -> Result<Option<u32>, Fault> {
        if !self.has_head {
            return Err(Fault::answer("it has a body and no head"));
        }
        self.allowed.take(frame)?;
        if self.body_read.len() + part.len() > MAX_BODY_BYTES as usize {
            return Err(Fault::too_much("it is longer than any answer"));
        }
        self.length += part.len() as u64;
        if self.expected.is_some_and(|expected| self.length > expected) {
            return Err(Fault::answer("its body is longer than it says"));
        }
        self.body_read.extend_from_slice(part);
        Ok(self.allowed.refill())
    }

    /// The answer has ended.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        if !self.has_head {
            return Err(Fault::answer("it ends before it begins"));
        }
        if self.expected.is_some_and(|expected| self.length < expected) {
            return Err(Fault::answer("its body is shorter than it says"));
        }
        self.has_ended = true;
        Ok(())
    }

    /// Nobody needs what of the request was not sent.
    pub(crate) fn give_up_the_rest(&mut self) {
        self.body = Bytes::new();
    }

    /// The whole answer, once it has ended.
    pub(crate) fn whole(self) -> Option<Response<Bytes>> {
        self.head_read.map(|head| head.response(Bytes::from(self.body_read)))
    }

    /// Whether there is something of the answer to be taken, if it is taken as it comes.
    pub(crate) fn has_news(&self) -> bool {
        self.is_streamed && (self.has_more() || self.has_ended)
    }

    /// Whether something came that was not taken.
    pub(crate) fn has_more(&self) -> bool {
        self.head_read.is_some() || !self.body_read.is_empty()
    }

    /// The head of the answer, once.
    pub(crate) fn head(&mut self) -> Option<Response<()>> {
        self.head_read.take().map(|head| head.response(()))
    }

    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.body_read.capacity()
    }

    /// Moves what came of the body; false if that is nothing.
    pub(crate) fn part(&mut self, body: &mut Vec<u8>) -> bool {
        let is_some = !self.body_read.is_empty();
        body.extend_from_slice(&self.body_read);
        // What is short comes again and again.
        if self.body_read.capacity() > KEPT_BYTES {
            self.body_read = Vec::new();
        } else {
            self.body_read.clear();
        }
        is_some
    }
}

/// The head of a request as one block, which fits one frame, behind room for what stands before its payload.
fn encode(request: &Request<'_>) -> Result<Vec<u8>, Error> {
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(request.authority) || !is_plain(request.path) {
        return Err(Error::Request("its authority and path must be of visible characters"));
    }
    let mut head = Vec::with_capacity(192);
    head.resize(HEAD_BYTES, 0);
    hpack::encode(":method", request.method.as_str().as_bytes(), &mut head);
    hpack::encode(":scheme", b"https", &mut head);
    hpack::encode(":authority", request.authority.as_bytes(), &mut head);
    hpack::encode(":path", request.path.as_bytes(), &mut head);
    for (name, value) in request.fields {
        if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            return Err(Error::Request("a field has a value that none has"));
        }
        hpack::encode(name.as_str(), value, &mut head);
    }
    if !request.body.is_empty() {
        hpack::encode("content-length", request.body.len().to_string().as_bytes(), &mut head);
    }
    if head.len() - HEAD_BYTES > MAX_HEAD_BYTES as usize {
        return Err(Error::Request("its head is too long"));
    }
    Ok(head)
}

/// Why an exchange ends with a reset.
pub(crate) fn reset(reason: Reason) -> Error {
    if reason == Reason::REFUSED_STREAM { Error::NotTaken(reason) } else { Error::Reset(reason) }
}
