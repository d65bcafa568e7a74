//! One client connection, from its first byte to its end, with any protocol.
//!
//! An idle connection is only a socket and a timer. hyper's state and buffers are created when bytes arrive, and
//! dropped when the connection is idle. So thousands of clients can keep their connections alive.
//!
//! Before the agent closes a connection on which the client may still send, it informs the client (by a FIN,
//! `Connection: close`, or GOAWAY) and waits for a short time. Otherwise the kernel would answer with a reset, which
//! also discards the data that the client has not read yet.

use std::{convert::Infallible, future::poll_fn, sync::Arc};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use weir_client::agent::Eviction;

use super::{
    hand_over::{End, HandOver},
    hyper::{LingeringClose, http1, http2, partial_head},
    idle::first_bytes,
    open_connection::OpenConnection,
    plain,
    traffic::Protocol,
};

/// The maximum number of requests that hyper serves before the short path gets the connection again.
const MOST_THROUGH_HYPER: u64 = 64;

/// Serves one client until it disconnects or the drain ends the connection. `service` gets every request that the short
/// path does not take.
pub(super) async fn serve<S, F>(
    mut stream: TcpStream,
    service: S,
    short: Option<plain::Client>,
    open: &Arc<OpenConnection>,
) where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let mut through_hyper = u64::MAX;
    let mut before = Bytes::new();
    let mut first = true;
    let mut used = false;
    let mut open_count = None;
    loop {
        let protocol = if before.is_empty() { first_bytes(&stream, first, open).await } else { Some(Protocol::Http1) };
        let Some(protocol) = protocol else { return leave(stream, open).await };
        open_count.get_or_insert_with(|| open.proxy.traffic.open(protocol));
        if protocol == Protocol::Http2 {
            return Box::pin(http2(stream, service, open)).await;
        }
        if !before.is_empty() && !open.set_busy() {
            return;
        }
        let end = match &short {
            Some(short) => plain::serve(stream, before, used, short).await,
            None => End::HandOver(HandOver { stream, before, used, served: false }),
        };
        let end = match end {
            End::HandOver(HandOver { stream, before, used, served }) => {
                match Box::pin(partial_head::rest(stream, before, short.is_none(), open)).await {
                    Ok((stream, before)) => {
                        if short.is_some() {
                            through_hyper = requests_through_hyper(through_hyper, served);
                        }
                        // Boxed, so that an idle connection uses no memory for it.
                        Box::pin(http1(stream, before, used, (&service, open, through_hyper))).await
                    }
                    Err(end) => end,
                }
            }
            end => end,
        };
        match end {
            End::HandOver(with) => HandOver { stream, before, used, .. } = with,
            End::Leave(stream) => return leave(stream, open).await,
            End::Closed => return,
        }
        first = false;
    }
}

/// Returns how many requests hyper serves before the short path gets the connection again. `before` is the last such
/// number, and `served` is true if the short path has served a request since then. So one request that had to wait
/// does not slow down those after it, and a client whose requests all need hyper seldom changes the path.
fn requests_through_hyper(before: u64, served: bool) -> u64 {
    if served || before == u64::MAX { 1 } else { (2 * before).min(MOST_THROUGH_HYPER) }
}

/// Closes the connection without a reset, unless other connections need its slot.
async fn leave(mut stream: TcpStream, open: &OpenConnection) {
    if open.eviction() == Eviction::AtOnce {
        return;
    }
    open.set_idle(open.proxy.clock.now());
    let _ = stream.shutdown().await;
    let mut lingering = LingeringClose::default();
    let lingering = poll_fn(|cx| lingering.poll_over(&mut stream, cx));
    tokio::select! {
        () = lingering => {}
        () = open.evicted(), if !open.is_evicted() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_need_hyper_seldom_change_the_path() {
        let mut numbers = vec![requests_through_hyper(u64::MAX, false)];
        for served in [false, false, false, true, false] {
            numbers.push(requests_through_hyper(numbers[numbers.len() - 1], served));
        }
        assert_eq!(numbers, [1, 2, 4, 8, 1, 2]);
        assert_eq!(requests_through_hyper(MOST_THROUGH_HYPER, false), MOST_THROUGH_HYPER);
    }
}
