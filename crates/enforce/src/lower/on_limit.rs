//! Lowers `onLimit`, which describes the treatment of requests beyond a limit, and the headers that a rule sets.

use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, header};
use weir_expressions::{body_template, template};
use weir_wire::{Action, HeaderStyle, HeadersOn, OnMessage, Per, ResponseHeader, Rule};

use super::{
    conditions::header_name,
    faults::{Faults, Path},
};
use crate::{
    own_header::{OwnBody, RuleHeader},
    prepared_refusal::RefusalForm,
};

/// Lowers the maximum wait. Returns `None` if requests do not wait.
pub(super) fn lower_max_wait(rule: &Rule, path: &Path, faults: &mut Faults) -> Option<Duration> {
    let millis = rule.on_limit.as_ref()?.max_wait_millis.filter(|millis| *millis > 0)?;
    if rule.per == Per::Message {
        faults.add(&path.field("maxWaitMillis"), "messages do not wait: remove it, or count requests");
        return None;
    }
    Some(Duration::from_millis(millis))
}

/// The style of the headers that describe the quota, and the responses that have them.
pub(super) fn style(rule: &Rule) -> (HeaderStyle, HeadersOn) {
    let style = rule.on_limit.as_ref().map(|on_limit| (on_limit.headers, on_limit.headers_on));
    style.unwrap_or((HeaderStyle::Ietf, HeadersOn::All))
}

/// Lowers the form of the refusals of a rule.
pub(super) fn lower_form(rule: &Rule, policy: &str, path: &Path, faults: &mut Faults) -> Option<RefusalForm> {
    let on_limit = rule.on_limit.as_ref();
    let default = if rule.action == Action::Deny { 403 } else { 429 };
    let status = lower_status(on_limit.map_or(default, |on_limit| on_limit.status), path, faults);
    let body = on_limit.and_then(|on_limit| on_limit.body.as_deref());
    let body = body.map(|body| OwnBody::new(body_template(body), policy, &rule.name));
    let default = if body.is_some() { "text/plain; charset=utf-8" } else { "application/json" };
    let content_type = on_limit.and_then(|on_limit| on_limit.content_type.as_deref()).unwrap_or(default);
    let content_type = lower_media_type(content_type, path, faults);
    let on_message = on_limit.and_then(|on_limit| on_limit.on_message);
    if on_message.is_some() && rule.per == Per::Request {
        faults.add(&path.field("onMessage"), "has a meaning only with `per: Message`: remove it");
        return None;
    }
    let set = on_limit.map_or(&[][..], |on_limit| &on_limit.set);
    let set = lower_headers(set, (policy, rule), &path.field("set"), faults);
    let closes = on_message == Some(OnMessage::Close);
    Some(RefusalForm { status: status?, body, content_type: content_type?, closes, set })
}

/// Lowers the `status` of the object at `path`.
pub(super) fn lower_status(code: u16, path: &Path, faults: &mut Faults) -> Option<StatusCode> {
    let status = StatusCode::from_u16(code).ok().filter(|status| (400..=599).contains(&status.as_u16()));
    if status.is_none() {
        faults.add(&path.field("status"), "must be 400 to 599");
    }
    status
}

/// Lowers the `contentType` of the object at `path`.
pub(super) fn lower_media_type(text: &str, path: &Path, faults: &mut Faults) -> Option<HeaderValue> {
    let media_type = HeaderValue::from_str(text).ok().filter(|_| text.contains('/'));
    if media_type.is_none() {
        faults.add(&path.field("contentType"), "must be a media type, such as text/html");
    }
    media_type
}

/// Lowers the response headers that a rule sets.
pub(super) fn lower_headers(
    headers: &[ResponseHeader],
    (policy, rule): (&str, &Rule),
    path: &Path,
    faults: &mut Faults,
) -> Vec<RuleHeader> {
    let (style, _) = style(rule);
    let mut own = Vec::with_capacity(headers.len());
    for (index, header) in headers.iter().enumerate() {
        let path = path.index(index);
        let name = header_name(&header.name, &path.field("name"), faults);
        if name.as_ref().is_some_and(is_reserved) {
            faults.add(&path.field("name"), "is a header that HTTP or the agent needs: choose another name");
        } else if name.as_ref().is_some_and(|name| style.names().contains(&name.as_str())) {
            faults.add(&path.field("name"), "is a header that onLimit.headers also sends: use headers None");
        }
        match (name, template(&header.value)) {
            (Some(name), Ok(pieces)) => own.push(RuleHeader::new(name, pieces, policy, &rule.name)),
            (_, Err(invalid)) => faults.add(&path.field("value"), invalid.to_string()),
            (None, Ok(_)) => {}
        }
    }
    own
}

/// Whether a rule must not set this header: it frames the HTTP message, or every refusal contains it.
fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [HeaderName; 9] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::DATE,
        header::RETRY_AFTER,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    RESERVED.contains(name) || name == "keep-alive" || name.as_str().starts_with("proxy-")
}
