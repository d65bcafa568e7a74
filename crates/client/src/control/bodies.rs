//! Reads the bodies of requests to the control port, whose bytes in memory have a bound.

use std::time::Duration;

use axum::{
    body::Body,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use weir_wire::MAX_SNAPSHOT_BYTES;

use super::failure;

/// The number of bytes of a too large body that are read before the connection is closed. A sender reads the response
/// 413 only after it has sent its body.
const MAX_READ_BYTES: usize = 16 * MAX_SNAPSHOT_BYTES;

/// The time limit for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest sum of the bodies that are in memory. Clients without a certificate can send bodies, too.
const MOST_BODY_BYTES: usize = 16 * MAX_SNAPSHOT_BYTES;

/// Counts the bytes of all bodies: a permit for each byte.
#[derive(Debug)]
pub(crate) struct Bodies(Semaphore);

impl Default for Bodies {
    fn default() -> Self {
        Self(Semaphore::new(MOST_BODY_BYTES))
    }
}

/// A body whose bytes are counted until it is dropped.
#[derive(Debug)]
pub(super) struct CountedBody<'a> {
    pub(super) bytes: Vec<u8>,
    pub(super) permits: SemaphorePermit<'a>,
}

/// The reason why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    /// The client has usually disconnected and does not receive this response.
    #[error("incomplete body: {0}")]
    Broken(axum::Error),
    #[error("the body took too long to arrive")]
    Late,
    #[error("too many other requests have large bodies: repeat the request later")]
    Full,
}

impl IntoResponse for Unread {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Broken(_) => (StatusCode::BAD_REQUEST, "incomplete"),
            Self::Late => (StatusCode::REQUEST_TIMEOUT, "incomplete"),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        };
        failure(status, error, &self.to_string())
    }
}

impl Bodies {
    /// The whole body, or `None` if it is larger than `most`.
    pub(super) async fn read(&self, body: Body, most: usize) -> Result<Option<CountedBody<'_>>, Unread> {
        timeout(BODY_TIMEOUT, self.gather(body, most)).await.unwrap_or(Err(Unread::Late))
    }

    async fn gather(&self, mut body: Body, most: usize) -> Result<Option<CountedBody<'_>>, Unread> {
        let (mut counted, mut seen) = (self.counted(0)?, 0);
        while seen <= MAX_READ_BYTES
            && let Some(frame) = body.frame().await
        {
            let Ok(data) = frame.map_err(Unread::Broken)?.into_data() else { continue };
            seen += data.len();
            if seen <= most {
                counted.permits.merge(self.counted(data.len())?.permits);
                counted.bytes.extend_from_slice(&data);
            } else {
                counted = self.counted(0)?;
            }
        }
        Ok((seen <= most).then_some(counted))
    }

    fn counted(&self, bytes: usize) -> Result<CountedBody<'_>, Unread> {
        let permits = u32::try_from(bytes).ok().and_then(|bytes| self.0.try_acquire_many(bytes).ok());
        Ok(CountedBody { bytes: Vec::new(), permits: permits.ok_or(Unread::Full)? })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use futures::{FutureExt, StreamExt, stream};

    use super::*;

    const LARGEST: usize = MOST_BODY_BYTES / 4;

    /// A body of which this many bytes arrive, and not the end.
    fn unfinished(bytes: usize) -> Body {
        let data = Ok::<_, Infallible>(Bytes::from(vec![b'x'; bytes]));
        Body::from_stream(stream::iter([data]).chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_bodies_of_many_clients_have_a_bound() {
        let bodies = Bodies::default();
        let mut held: Vec<_> = (0..4).map(|_| Box::pin(bodies.read(unfinished(LARGEST), LARGEST))).collect();
        for body in &mut held {
            assert!(body.now_or_never().is_none(), "its end is missing");
        }
        assert!(matches!(bodies.read(Body::from("x"), LARGEST).await, Err(Unread::Full)));

        held.pop();
        let body = bodies.read(Body::from(vec![b'x'; LARGEST]), LARGEST).await.expect("there is room again");
        assert_eq!(body.expect("not too large").bytes.len(), LARGEST);
        assert!(matches!(bodies.read(unfinished(LARGEST + 1), LARGEST).await, Err(Unread::Late)));
        assert!(matches!(held.remove(0).await, Err(Unread::Late)));
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_holds_no_memory() {
        let bodies = Bodies::default();
        let body = Body::from_stream(stream::iter((0..8).map(|_| Ok::<_, Infallible>(Bytes::from(vec![0; LARGEST])))));
        assert!(bodies.read(body, LARGEST).await.is_ok_and(|body| body.is_none()));
        assert_eq!(bodies.0.available_permits(), MOST_BODY_BYTES);
    }
}
