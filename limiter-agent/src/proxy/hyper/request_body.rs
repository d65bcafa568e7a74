//! Streams the body of a request, and handles a body that is dropped before its end.

use std::{
    pin::Pin,
    sync::Arc,
    task::{self, Context, Poll},
    time::Duration,
};

use axum::body;
use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::{
    activity::{Activity, OpenBody},
    expect::{self, Expectation},
};
use crate::proxy::{headers::cleaned, stalled_uploads::Upload, traffic::Protocol};

/// The maximum number of bytes to read of an unwanted request body, so that the client receives the response.
const MAX_DISCARDED: usize = 256 * 1024;

/// The time limit for reading an unwanted body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// A client's request body.
///
/// A request can be answered before its body was read, for example by a refusal. If the agent then closed the
/// connection, the kernel would reset it because of the unread bytes, and the client might never receive the response.
/// So the agent reads and discards a bounded part of the rest.
///
/// A client that waits for `100 Continue` is an exception: it can send its next request instead of the body. So a response
/// before the end of such a body is the last one on its connection.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    open: Option<OpenBody>,
    /// Whether the connection serves more requests after this body.
    discard: bool,
    /// The longest pause of the client that is allowed, and the timer of the current pause.
    stall_timeout: Duration,
    stall: Option<Pin<Box<Sleep>>>,
}

/// A request's body that is forwarded to the app.
#[derive(Debug, Default)]
pub(super) struct ForwardedBody {
    body: body::Body,
    /// The client sends its body after this expectation is met, or times out.
    pub(super) expectation: Option<Expectation>,
    /// The upload of which the body is a part.
    pub(super) upload: Option<Arc<Upload>>,
}

/// The reason why a request body did not reach its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error("no data for {0:?}")]
    Stalled(Duration),
}

impl RequestBody {
    pub(super) fn of(request: Request<Incoming>, activity: &Arc<Activity>) -> Request<body::Body> {
        let discard = activity.protocol == Protocol::Http1 && !expect::is_expected(request.headers());
        let stall_timeout = activity.open.proxy.settings.stall_timeout;
        request.map(|incoming| {
            if incoming.is_end_stream() {
                return body::Body::empty();
            }
            let open = Some(OpenBody::new(activity));
            body::Body::new(Self { incoming: Some(incoming), open, discard, stall_timeout, stall: None })
        })
    }

    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let limit = self.stall_timeout;
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        task::ready!(stall.as_mut().poll(cx));
        // Later bytes are ignored, so the connection cannot be used again.
        self.incoming = None;
        Poll::Ready(Some(Err(BodyError::Stalled(limit))))
    }

    fn has_ended(&mut self) {
        self.incoming = None;
        if let Some(open) = self.open.take() {
            open.end();
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(mut rest) = self.incoming.take() else { return };
        if rest.is_end_stream() {
            return self.has_ended();
        }
        let open = self.open.take();
        // There is no runtime if the runtime itself is shutting down.
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| self.discard);
        let Some(runtime) = runtime else { return };
        runtime.spawn(tokio::time::timeout(DISCARD_TIMEOUT, async move {
            let mut discarded = 0;
            while discarded < MAX_DISCARDED {
                match rest.frame().await {
                    Some(Ok(frame)) => discarded += frame.data_ref().map_or(0, Bytes::len),
                    Some(Err(_)) => return,
                    None => return open.into_iter().for_each(OpenBody::end),
                }
            }
        }));
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.poll_stalled(cx),
        };
        let ended = incoming.is_end_stream();
        self.stall = None;
        match &frame {
            Some(Err(_)) => self.incoming = None,
            // Nothing follows trailers, and hyper does not ask for it.
            Some(Ok(frame)) if !ended && !frame.is_trailers() => {}
            Some(Ok(_)) | None => self.has_ended(),
        }
        Poll::Ready(frame.map(|frame| frame.map(cleaned).map_err(BodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl ForwardedBody {
    pub(super) fn new(body: body::Body) -> Self {
        Self { body, expectation: None, upload: None }
    }
}

impl Drop for ForwardedBody {
    fn drop(&mut self) {
        // hyper has sent the body to its end, or no longer sends it.
        if let Some(upload) = &self.upload {
            upload.progress.asked();
        }
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(expectation) = &mut self.expectation {
            task::ready!(expectation.poll_over(cx));
            self.expectation = None;
        }
        let Self { body, upload, .. } = &mut *self;
        let Some(upload) = upload else { return Pin::new(body).poll_frame(cx) };
        upload.enter();
        upload.progress.asked();
        let frame = task::ready!(Pin::new(body).poll_frame(cx));
        if frame.is_some() {
            upload.progress.given();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
