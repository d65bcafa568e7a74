//! `Expect: 100-continue`: the client waits with its body until the app wants it.
//!
//! Reading a body makes hyper tell the client to go on. So the body is not touched until the app has said 100 itself;
//! an app that refuses from the head alone answers before a byte of the body was sent.

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
use http::{HeaderMap, Request, StatusCode, header};
use tokio::time::{Sleep, sleep};

/// How long the app may leave it open: some never say 100, and clients do not wait much longer for it either.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ends once the app has asked for the body, or has said nothing about it for too long.
#[derive(Debug)]
pub(super) struct Expectation {
    asked: Arc<Asked>,
    patience: Pin<Box<Sleep>>,
}

#[derive(Debug, Default)]
struct Asked {
    yes: AtomicBool,
    waiting: AtomicWaker,
}

/// Whether a request says so. Other expectations are between client and app: nobody waits for them (RFC 9110 section
/// 10.1.1).
pub(super) fn is_expected(headers: &HeaderMap) -> bool {
    let members =
        headers.get_all(header::EXPECT).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    members.into_iter().any(|member| member.trim_ascii().eq_ignore_ascii_case(b"100-continue"))
}

impl Expectation {
    /// To be told by the connection that `request` is sent on.
    pub(super) fn of<B>(request: &mut Request<B>) -> Self {
        let asked = Arc::new(Asked::default());
        let tell = Arc::clone(&asked);
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                tell.yes.store(true, Ordering::Release);
                tell.waiting.wake();
            }
        });
        Self { asked, patience: Box::pin(sleep(PATIENCE)) }
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
    fn only_who_says_100_continue_waits_with_its_body() {
        for (values, expected) in [
            (&[][..], false),
            (&["100-continue"], true),
            (&["100-Continue"], true),
            (&["x"], false),
            (&["100-continued"], false),
            (&["x,  100-continue "], true),
            (&["x", "100-continue"], true),
            (&[""], false),
        ] {
            let headers: HeaderMap =
                values.iter().map(|value| (header::EXPECT, value.parse().expect("a value"))).collect();
            assert_eq!(is_expected(&headers), expected, "{values:?}");
        }
    }
}
