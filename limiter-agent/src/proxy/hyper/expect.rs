//! `Expect: 100-continue`: the client sends its body only after the app asks for it.
//!
//! If the agent polls a body, hyper asks the client to send it. So the agent does not poll the body until the app has
//! sent 100. An app that refuses by the head alone responds before the client sends a byte of the body.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::task::AtomicWaker;
use http::{HeaderMap, Request, StatusCode, Version, header};
use tokio::time::{Sleep, sleep};

/// The time limit for the app's 100. Some apps never send it, and clients do not wait much longer either.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Completes when the app has asked for the body, or after a timeout.
#[derive(Debug)]
pub(super) struct Expectation {
    asked: Arc<ContinueSignal>,
    patience: Pin<Box<Sleep>>,
}

#[derive(Debug, Default)]
struct ContinueSignal {
    yes: AtomicBool,
    waiting: AtomicWaker,
}

/// Whether a request has `Expect: 100-continue`. The agent does not wait for other expectations: they concern only the
/// client and the app (RFC 9110 section 10.1.1).
pub(super) fn is_expected(headers: &HeaderMap) -> bool {
    let members =
        headers.get_all(header::EXPECT).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    members.into_iter().any(|member| member.trim_ascii().eq_ignore_ascii_case(b"100-continue"))
}

/// Whether the body waits for the app's 100. hyper's server asks an HTTP/1 client for its body only if the last `Expect`
/// is `100-continue`, and never a client of HTTP/1.0 (RFC 9110 section 10.1.1). Then waiting would only delay the body.
pub(super) fn waits_for_100<B>(request: &Request<B>) -> bool {
    let last = request.headers().get_all(header::EXPECT).into_iter().next_back();
    let is_last = last.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    is_last && request.version() > Version::HTTP_10
}

impl Expectation {
    /// Creates the expectation of `request`. The connection that sends the request completes it.
    pub(super) fn of<B>(request: &mut Request<B>) -> Self {
        let asked = Arc::new(ContinueSignal::default());
        let tell = Arc::clone(&asked);
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                tell.yes.store(true, Ordering::Release);
                tell.waiting.wake();
            }
        });
        Self { asked, patience: Box::pin(sleep(CONTINUE_TIMEOUT)) }
    }

    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.asked.waiting.register(cx.waker());
        if self.asked.yes.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.patience.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expect_100_continue_delays_the_body() {
        for (values, expected, waits) in [
            (&[][..], false, false),
            (&["100-continue"], true, true),
            (&["100-Continue"], true, true),
            (&["x"], false, false),
            (&["100-continued"], false, false),
            (&["x,  100-continue "], true, false),
            (&["x", "100-continue"], true, true),
            (&["100-continue", "x"], true, false),
            (&[""], false, false),
        ] {
            let headers: HeaderMap =
                values.iter().map(|value| (header::EXPECT, value.parse().expect("a value"))).collect();
            assert_eq!(is_expected(&headers), expected, "{values:?}");
            let mut request = Request::new(());
            *request.headers_mut() = headers;
            assert_eq!(waits_for_100(&request), waits, "{values:?}");
            *request.version_mut() = Version::HTTP_10;
            assert!(!waits_for_100(&request), "{values:?}");
        }
    }
}
