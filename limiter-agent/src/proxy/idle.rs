//! An idle client connection: waits for the first bytes of a request without reading them, until the connection must
//! end.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    net::TcpStream,
    task::yield_now,
    time::{sleep, timeout, timeout_at},
};

use super::{open_connection::OpenConnection, traffic::Protocol};
use crate::clock;

/// An HTTP/2 connection begins with these bytes (RFC 9113 section 3.4). No HTTP/1 request begins with them.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The time limit for a preface that arrives in pieces, and the interval at which to check for the rest.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
const PREFACE_PAUSE: Duration = Duration::from_millis(10);

/// The time limit for the first request on a connection, from its acceptance, while the app is down or during a drain.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for the first bytes of a request without reading them. Returns their protocol. `None` if the client has
/// disconnected, or if the connection must end.
pub(super) async fn first_bytes(stream: &TcpStream, first: bool, open: &OpenConnection) -> Option<Protocol> {
    let proxy = &open.proxy;
    open.set_idle(proxy.clock.now());
    let protocol = parked(stream, first, open).await;
    if open.set_busy() { protocol } else { None }
}

/// Waits for the first bytes, like [`first_bytes`]. Meanwhile the connection can be evicted.
async fn parked(stream: &TcpStream, first: bool, open: &OpenConnection) -> Option<Protocol> {
    let proxy = &open.proxy;
    let _parked = open.worker.park();
    let look = async {
        let mut start = [0; PREFACE.len()];
        let begun = async {
            loop {
                match stream.peek(&mut start).await {
                    Ok(0) | Err(_) => return None,
                    Ok(count) if !first || !PREFACE.starts_with(&start[..count]) => return Some(Protocol::Http1),
                    Ok(count) if count == PREFACE.len() => return Some(Protocol::Http2),
                    // While bytes are unread, the socket does not signal new ones.
                    Ok(_) => sleep(PREFACE_PAUSE).await,
                }
            }
        };
        // The preface's time limit does not apply to the first byte.
        match stream.readable().await {
            Ok(()) => timeout(PREFACE_TIMEOUT, begun).await.unwrap_or(Some(Protocol::Http1)),
            Err(_) => None,
        }
    };
    let up = proxy.upstream.up();
    let (look, dismissed, evicted) = (pin!(look), pin!(up.cancelled()), pin!(open.evicted()));
    begun(look, first, proxy.settings.idle_timeout, dismissed, evicted).await.flatten()
}

/// Waits until a request begins. Returns `None` if the connection must end before that: it was idle for too long, it
/// was `dismissed` because the app is down or a drain began, or it was `evicted`.
///
/// A client that has just connected is about to send its first request, so a dismissal does not end its connection
/// within [`FIRST_TIMEOUT`]. Otherwise it would get no response, on a connection on which nothing has worked before.
async fn begun<T>(
    mut look: Pin<&mut impl Future<Output = T>>,
    first: bool,
    idle_timeout: Duration,
    dismissed: Pin<&mut impl Future<Output = ()>>,
    mut evicted: Pin<&mut impl Future<Output = ()>>,
) -> Option<T> {
    let grace = first.then(|| clock::now() + FIRST_TIMEOUT);
    tokio::select! {
        begun = timeout(idle_timeout, &mut look) => match begun {
            Ok(begun) => return Some(begun),
            Err(_elapsed) => {
                // If the process was stopped, the timer can expire before the runtime has looked at the sockets.
                yield_now().await;
                return look.now_or_never();
            }
        },
        () = dismissed => {}
        () = &mut evicted => return look.now_or_never(),
    }
    let Some(grace) = grace else {
        // A client that has already sent a request gets a response.
        return look.now_or_never();
    };
    tokio::select! {
        begun = timeout_at(grace, &mut look) => begun.ok(),
        () = evicted => look.now_or_never(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    /// What [`begun`] returns for a request after `request`, and a dismissal and an eviction at these times, and when.
    async fn outcome(request: u64, first: bool, dismissed: Option<u64>, evicted: Option<u64>) -> (bool, u64) {
        let at = async |time: Option<u64>| match time {
            Some(time) => sleep(Duration::from_millis(time)).await,
            None => pending().await,
        };
        let started = clock::now();
        let request = pin!(at(Some(request)));
        let begun = begun(request, first, IDLE, pin!(at(dismissed)), pin!(at(evicted))).await;
        let took = clock::now().duration_since(started).as_millis();
        (begun.is_some(), u64::try_from(took).expect("short"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_just_connected_gets_a_response_while_the_app_is_down() {
        // The app goes down between the client's connection and its first request.
        assert_eq!(outcome(300, true, Some(10), None).await, (true, 300));
        // It is down already.
        assert_eq!(outcome(300, true, Some(0), None).await, (true, 300));
        assert_eq!(outcome(1_001, true, Some(10), None).await, (false, 1_000));
        assert_eq!(outcome(5_001, true, Some(5_000), None).await, (false, 5_000), "it did not connect just now");
        assert_eq!(outcome(300, true, Some(10), Some(200)).await, (false, 200), "another client needs the slot");
        // A connection that has worked ends, as it would end at an app that stops.
        assert_eq!(outcome(300, false, Some(10), None).await, (false, 10));
        assert_eq!(outcome(300, false, None, Some(10)).await, (false, 10));
        assert_eq!(outcome(300, false, None, None).await, (true, 300));
        assert_eq!(outcome(70_000, true, None, None).await, (false, 60_000));
        // The process was stopped, and sees the request only after the timeout.
        let started = clock::now();
        let mut looks = 0;
        let late = pin!(std::future::poll_fn(|_| {
            looks += usize::from(clock::now() - started >= IDLE);
            if looks > 1 { std::task::Poll::Ready(7) } else { std::task::Poll::Pending }
        }));
        assert_eq!(begun(late, false, IDLE, pin!(pending()), pin!(pending())).await, Some(7));
        // A request that has begun is served.
        let sent = begun(pin!(ready(7)), false, IDLE, pin!(ready(())), pin!(pending())).await;
        assert_eq!(sent, Some(7));
    }
}
