//! Streams the body of a response, and handles a body that is dropped before its end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body;
use bytes::Bytes;
use futures::FutureExt;
use http::{
    HeaderValue, Response,
    header::{self, Entry},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::{pool::PooledConnection, streams::Stream};
use crate::proxy::{app::InvalidResponse, headers::cleaned};

/// A body that this program wrote, or one that streams from the app.
#[derive(Debug)]
pub(in super::super) enum ResponseBody {
    Own(Full<Bytes>),
    Upstream(UpstreamBody),
}

/// The app's body, with the connection that it comes from.
#[derive(Debug)]
pub(in super::super) struct UpstreamBody {
    incoming: Incoming,
    /// The first frame, read before the head was sent to the client.
    first: Option<Option<Result<Frame<Bytes>, hyper::Error>>>,
    /// Whether the body has ended. A chunked body reports its end only when it is polled.
    ended: bool,
    connection: Option<UpstreamConnection>,
}

/// The connection or stream of a response, until the response has ended.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    Http1(PooledConnection),
    /// Held so that the stream counts as open.
    Http2(Stream),
}

impl UpstreamConnection {
    /// Returns the connection to its pool. Call this function when the response was read to its end.
    pub(super) fn give_back(self) {
        match self {
            Self::Http1(connection) => connection.give_back(),
            Self::Http2(_stream) => {}
        }
    }
}

impl ResponseBody {
    pub(super) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own(Full::new(text.into()))
    }

    /// A body that this program wrote, as a whole; empty for a streamed one.
    pub(in super::super) fn into_own(self) -> Bytes {
        match self {
            Self::Own(full) => full.collect().now_or_never().and_then(Result::ok).unwrap_or_default().to_bytes(),
            Self::Upstream(_) => Bytes::new(),
        }
    }

    /// # Errors
    ///
    /// Returns an error if the body is invalid from its first byte. The head was not sent yet, so the client can still
    /// get an error response in place of a truncated one.
    pub(super) fn upstream(mut incoming: Incoming, connection: UpstreamConnection) -> Result<Self, InvalidResponse> {
        // A body with a length has no framing that could be invalid.
        let is_chunked = incoming.size_hint().exact().is_none();
        let first = if is_chunked { incoming.frame().now_or_never() } else { None };
        match first {
            Some(Some(Err(error))) if is_invalid(&error) => Err(InvalidResponse::Chunk),
            first => Ok(Self::Upstream(UpstreamBody { incoming, first, ended: false, connection: Some(connection) })),
        }
    }
}

/// Removes the body of a response to HEAD, and keeps its length.
pub(super) fn without_body(mut response: Response<body::Body>) -> Response<body::Body> {
    let length = response.body().size_hint().exact().filter(|length| *length > 0);
    if let (Entry::Vacant(field), Some(length)) = (response.headers_mut().entry(header::CONTENT_LENGTH), length) {
        field.insert(HeaderValue::from(length));
    }
    response.map(|_| body::Body::empty())
}

/// Whether a body's chunks are invalid in HTTP/1.1. A broken connection does not count.
fn is_invalid(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // If the body has not ended, unread bytes remain. Then dropping `connection` closes it.
        if (self.ended || self.incoming.is_end_stream())
            && let Some(connection) = self.connection.take()
        {
            connection.give_back();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Own(full) => Pin::new(full).poll_frame(cx).map_err(|never| match never {}),
            Self::Upstream(body) => {
                let frame = match body.first.take() {
                    Some(first) => Poll::Ready(first),
                    None => Pin::new(&mut body.incoming).poll_frame(cx),
                };
                // Trailers come last, and hyper does not poll after them.
                body.ended |= match &frame {
                    Poll::Ready(Some(Ok(frame))) => frame.is_trailers(),
                    Poll::Ready(frame) => frame.is_none(),
                    Poll::Pending => false,
                };
                frame.map_ok(cleaned)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(full) => full.is_end_stream(),
            Self::Upstream(body) => body.first.is_none() && body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(full) => full.size_hint(),
            Self::Upstream(body) => body.incoming.size_hint(),
        }
    }
}
