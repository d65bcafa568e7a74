//! The bodies of requests and responses on their way through, and what happens when one is dropped half-way.

use std::{
    pin::Pin,
    task::{self, Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::pool::Lease;

/// How much of an unwanted request body is read, so that the client gets to see the answer.
const MAX_DISCARDED: usize = 256 * 1024;

/// How long that may take.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// A client's request body.
///
/// When a request is answered without its body (a refusal), closing the connection with bytes unread would make the
/// kernel reset it, and the client might never see the answer. So a bounded rest is read and thrown away.
///
/// Not so for a client that waits for `100 Continue`: it may well go on with its next request instead of the body.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    discard: bool,
}

impl RequestBody {
    pub(super) fn of(request: Request<Incoming>) -> Request<Self> {
        let discard = !request.headers().contains_key(header::EXPECT);
        request.map(|incoming| Self { incoming: (!incoming.is_end_stream()).then_some(incoming), discard })
    }

    pub(super) fn empty() -> Self {
        Self { incoming: None, discard: false }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(mut rest) = self.incoming.take().filter(|rest| self.discard && !rest.is_end_stream()) else { return };
        // There is none when the runtime itself goes away.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(DISCARD_TIMEOUT, async move {
            let mut discarded = 0;
            while discarded < MAX_DISCARDED
                && let Some(Ok(frame)) = rest.frame().await
            {
                discarded += frame.data_ref().map_or(0, Bytes::len);
            }
        }));
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = task::ready!(Pin::new(incoming).poll_frame(cx));
        if matches!(frame, None | Some(Err(_))) {
            self.incoming = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// A body that this program wrote itself, or one that streams through from the app.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    Own(Full<Bytes>),
    Upstream(UpstreamBody),
}

/// The app's body together with the connection that it comes from.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    /// A chunked body does not know that it is at its end until it was asked.
    ended: bool,
    lease: Option<Lease>,
}

impl ResponseBody {
    pub(crate) fn own(text: impl Into<Bytes>) -> Self {
        Self::Own(Full::new(text.into()))
    }

    pub(super) fn upstream(incoming: Incoming, lease: Lease) -> Self {
        Self::Upstream(UpstreamBody { incoming, ended: false, lease: Some(lease) })
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // Anything else leaves with unread bytes on it: dropping the lease closes that connection.
        if (self.ended || self.incoming.is_end_stream())
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
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
                let frame = Pin::new(&mut body.incoming).poll_frame(cx);
                body.ended |= matches!(frame, Poll::Ready(None));
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(full) => full.is_end_stream(),
            Self::Upstream(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(full) => full.size_hint(),
            Self::Upstream(body) => body.incoming.size_hint(),
        }
    }
}
