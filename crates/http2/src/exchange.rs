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
    // The answer.
    head_read: Option<Head>,
    interim: u8,
    body_read: Vec<u8>,
    allowed: ReceiveWindow,
}

impl Exchange {
    pub(crate) fn new(request: Request<'_>, window: u32) -> Result<Self, Error> {
        Ok(Self {
            head: encode(&request)?,
            method: request.method,
            stream: None,
            body: request.body,
            window: SendWindow::new(window),
            head_read: None,
            interim: 0,
            body_read: Vec::new(),
            allowed: ReceiveWindow::new(WINDOW),
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

    /// A head came, whole.
    pub(crate) fn take_head(&mut self, block: &[u8], is_end: bool) -> Result<(), Fault> {
        if self.head_read.is_some() {
            // Trailers.
            crate::head::skip_trailers(block)?;
            return if is_end { Ok(()) } else { Err(Fault::answer("it has a head in the middle")) };
        }
        let head = Head::read(block)?;
        if !head.status.is_informational() {
            self.head_read = Some(head);
            return Ok(());
        }
        // To change the protocol is impossible in HTTP/2 (section 8.6).
        if is_end || head.status == http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(Fault::answer("it ends before it begins"));
        }
        self.interim += 1;
        if self.interim > MAX_INTERIM { Err(Fault::too_much("it announces itself without end")) } else { Ok(()) }
    }

    /// A part of the body came; `frame` is its length with padding. How much to allow anew.
    pub(crate) fn take_data(&mut self, part: &[u8], frame: u32) -> Result<Option<u32>, Fault> {
        let Some(head) = &self.head_read else { return Err(Fault::answer("it has a body and no head")) };
        self.allowed.take(frame)?;
        let length = self.body_read.len() + part.len();
        if length > MAX_BODY_BYTES as usize {
            return Err(Fault::too_much("it is longer than any answer"));
        }
        if head.body_length(&self.method).is_some_and(|expected| (length as u64) > expected) {
            return Err(Fault::answer("its body is longer than it says"));
        }
        self.body_read.extend_from_slice(part);
        Ok(self.allowed.refill())
    }

    /// The answer has ended.
    pub(crate) fn finish(self) -> Result<Response<Bytes>, Fault> {
        let head = self.head_read.ok_or(Fault::answer("it ends before it begins"))?;
        if head.body_length(&self.method).is_some_and(|expected| (self.body_read.len() as u64) < expected) {
            return Err(Fault::answer("its body is shorter than it says"));
        }
        let mut response = Response::new(Bytes::from(self.body_read));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.fields;
        Ok(response)
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
