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
    /// The head as HTTP/1.1 has it, up to the number of seconds.
    head: Box<[u8]>,
    body: Option<Bytes>,
    /// The agent's own body up to the number of seconds, for each limit.
    starts: Vec<String>,
}

/// The agent's own body behind the number of seconds.
const END: &[u8] = b"}\n";

impl RefusalText {
    pub(super) fn new(form: RefusalForm, policy: &str, rule: &str, limits: &[Box<str>]) -> Self {
        let RefusalForm { status, body, content_type, closes } = form;
        let starts = limits.iter().map(|limit| start(policy, rule, limit)).collect();
        let head = head(status, &content_type);
        Self { status, content_type, closes, head, body, starts }
    }

    /// The body of a refusal.
    pub(super) fn body(&self, limit: usize, retry_after_seconds: u64) -> Bytes {
        if let Some(body) = &self.body {
            return body.clone();
        }
        let mut digits = itoa::Buffer::new();
        let seconds = digits.format(retry_after_seconds);
        let mut body = Vec::with_capacity(self.body_length(limit, seconds));
        self.append_body(limit, seconds, &mut body);
        Bytes::from(body)
    }

    /// How long it is; `seconds` until the client may come again, in digits.
    pub(super) fn body_length(&self, limit: usize, seconds: &str) -> usize {
        match &self.body {
            Some(body) => body.len(),
            None => self.start(limit).len() + seconds.len() + END.len(),
        }
    }

    pub(super) fn append_body(&self, limit: usize, seconds: &str, to: &mut Vec<u8>) {
        match &self.body {
            Some(body) => to.extend_from_slice(body),
            None => {
                to.extend_from_slice(self.start(limit).as_bytes());
                to.extend_from_slice(seconds.as_bytes());
                to.extend_from_slice(END);
            }
        }
    }

    /// The status line, `Content-Type` and `Retry-After`.
    pub(super) fn append_head(&self, seconds: &str, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.head);
        to.extend_from_slice(seconds.as_bytes());
        to.extend_from_slice(b"\r\n");
    }

    /// As in `Advice::policy`, the place of the limit may be that of a later snapshot.
    fn start(&self, limit: usize) -> &str {
        self.starts.get(limit).unwrap_or(&self.starts[0])
    }
}

fn head(status: StatusCode, content_type: &HeaderValue) -> Box<[u8]> {
    // What hyper writes for a status without a name.
    let reason = status.canonical_reason().unwrap_or("<none>");
    let line = format!("HTTP/1.1 {} {reason}\r\ncontent-type: ", status.as_str());
    [line.as_bytes(), content_type.as_bytes(), b"\r\nretry-after: "].concat().into()
}

/// Names are DNS labels and need no escapes.
fn start(policy: &str, rule: &str, limit: &str) -> String {
    format!(r#"{{"error":"rate limited","policy":"{policy}","rule":"{rule}","limit":"{limit}","retryAfterSeconds":"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: Option<&'static str>) -> RefusalText {
        let form = RefusalForm {
            status: StatusCode::from_u16(499).expect("a status"),
            body: body.map(Bytes::from),
            content_type: HeaderValue::from_static("text/x"),
            closes: false,
        };
        RefusalText::new(form, "shop/checkout", "per-client", &["burst".into(), "daily".into()])
    }

    #[test]
    fn a_body_is_as_long_as_it_says() {
        for (text, limit) in [(text(None), 0), (text(None), 1), (text(None), 2), (text(Some("slow down")), 0)] {
            for seconds in [0, 1, 9, 10, 99, 100, 86_400, u64::MAX] {
                let mut appended = b"before".to_vec();
                let digits = seconds.to_string();
                text.append_body(limit, &digits, &mut appended);
                let body = text.body(limit, seconds);
                assert_eq!(&appended[6..], body);
                assert_eq!(text.body_length(limit, &digits), body.len(), "{seconds}");
            }
        }
        let said: serde_json::Value = serde_json::from_slice(&text(None).body(1, 30)).expect("JSON");
        assert_eq!((&said["limit"], &said["retryAfterSeconds"]), (&"daily".into(), &30.into()));
        assert_eq!(text(Some("slow down")).body(0, 1), "slow down");
    }

    #[test]
    fn a_head_begins_as_hyper_would_write_it() {
        let mut head = Vec::new();
        text(None).append_head("7", &mut head);
        assert_eq!(head, b"HTTP/1.1 499 <none>\r\ncontent-type: text/x\r\nretry-after: 7\r\n");
    }
}
