//! How a rule's refusals look, written as far as it does not depend on the request.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

/// What `onLimit` says, parsed.
#[derive(Clone, Debug)]
pub(super) struct RefusalForm {
    pub(super) status: StatusCode,
    pub(super) body: Option<Bytes>,
    pub(super) content_type: HeaderValue,
    pub(super) closes: bool,
}

/// The refusals of one rule.
#[derive(Debug)]
pub(super) struct RefusalText {
    pub(super) status: StatusCode,
    pub(super) content_type: HeaderValue,
    /// Whether a connection is closed for a message beyond a limit.
    pub(super) closes: bool,
    body: Option<Bytes>,
    /// The agent's own body up to the number of seconds, for each limit.
    starts: Vec<String>,
}

impl RefusalText {
    pub(super) fn new(form: RefusalForm, policy: &str, rule: &str, limits: &[Box<str>]) -> Self {
        let RefusalForm { status, body, content_type, closes } = form;
        let starts = limits.iter().map(|limit| start(policy, rule, limit)).collect();
        Self { status, content_type, closes, body, starts }
    }

    /// The body of a refusal. As in `Advice::policy`, the place of the limit may be that of a later snapshot.
    pub(super) fn body(&self, limit: usize, retry_after_seconds: u64) -> Bytes {
        if let Some(body) = &self.body {
            return body.clone();
        }
        let start = self.starts.get(limit).unwrap_or(&self.starts[0]);
        Bytes::from(format!("{start}{retry_after_seconds}}}\n"))
    }
}

/// Names are DNS labels and need no escapes.
fn start(policy: &str, rule: &str, limit: &str) -> String {
    format!(r#"{{"error":"rate limited","policy":"{policy}","rule":"{rule}","limit":"{limit}","retryAfterSeconds":"#)
}
