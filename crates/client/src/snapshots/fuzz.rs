//! Puts a sequence of nearly valid snapshots. The agent must enforce each one, or reject it with faults that name a
//! location. After each snapshot, the agent decides on random requests.

use std::{convert::Infallible, net::Ipv4Addr};

use axum::body::Body;
use futures::FutureExt;
use http::{Request, Response};
use serde_json::{Value, json};
use tower::{Layer, Service};
use weir_enforce::{AmbiguousPaths, GateOptions};
use weir_fuzz::{Choices, Target, json::change};
use weir_wire::ExplainRequest;

use super::*;

/// Regression inputs, as hex. One makes the agent report invalid UTF-8 as a fault at a path that does not exist.
/// Another causes a panic by a control character in a limit's name.
const CORPUS: &str = "
0000a400000000000000fd0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000a60000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000fe00e20000dd00f9b8
00f1b6ce000000360000000000715f000062";

const GOLDEN: [&str; 2] = [
    include_str!("../../../wire/tests/golden/snapshot.json"),
    include_str!("../../../wire/tests/golden/snapshot-full.json"),
];

/// Values that people and programs write in the wrong place.
const WORDS: &[&str] = &[
    "", "a", "TokenBucket", "GCRA", "LeakyBucket", "SlidingWindowLog", "SlidingWindowCounter", "FixedWindow",
    "TokenBucketWithDebt", "Bypass", "Limit", "Shadow", "Disabled", "Message", "Legacy", "Both", "None", "Close",
    "requestBytes", "responseBytes", "/", "/**", "/a/**/b", "/***", "/a?b", "*", "*.", "*.example.com", "[::1]",
    "a:80", "a b", "x-a", "X-A", "\u{e4}", "a\r\nb", "\0", "0", "-1", "::1", "192.0.2.1", "1.2.3.4/33", "^(a+)+$", "(",
    "[a-", "\\p{L}", "a{1000}{1000}", "(?i)x", "true", "request.method == 'GET'", "request.headers['x']",
    "request.path.matches('(a+)+')", "1 / 0 == 1", "request.query.a.startsWith('b')", "[1].all(x, x > 0)", "!!true",
    "a in a", "((((", "request.headers.exists(h, h == 'a')", "size(request.path) > 4", "request", "''", "a.b.c", ".a",
    "text/plain", "text/plain\nx",
];

#[test]
fn any_snapshot_is_refused_or_enforced() {
    Target::new("snapshot").corpus(CORPUS).run(100, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let _inside = runtime.enter();
    let mut choices = Choices(bytes);
    let clock = MonotonicClock::of_tokio();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: true });
    let snapshots = Snapshots::new(rules.clone(), clock, None);
    let mut snapshot: Value = serde_json::from_str(GOLDEN[choices.below(2)]).map_err(|error| error.to_string())?;
    let mut sequence = 1;
    while !choices.is_over() {
        let mut changed = snapshot.clone();
        for _ in 0..1 + choices.below(3) {
            change(&mut changed, WORDS, &mut choices);
        }
        if let Some(fields) = changed.as_object_mut()
            && !choices.rarely(10)
        {
            sequence += 1;
            fields.insert("sequence".to_owned(), json!(sequence));
            fields.insert("revision".to_owned(), json!(format!("r{sequence}")));
        }
        let mut body = changed.to_string().into_bytes();
        if choices.rarely(10) {
            let at = choices.below(body.len());
            match choices.below(6) {
                // Text whose fault only a full parse detects.
                kind @ 0..3 => drop(body.splice(at..at, ["\\ud800", "1e999", "[[[[[[[["][kind].bytes())),
                _ => body[at] = choices.byte(),
            }
        }
        match snapshots.apply_pushed(Some(&body)) {
            // Each enforced snapshot is the base of the next one, so the snapshots become more and more unusual.
            Ok(_) => snapshot = changed,
            Err(rejection) => check_rejection(&rejection, &body)?,
        }
        for _ in 0..3 {
            ask(&rules, clock, &mut choices)?;
        }
    }
    Ok(())
}

/// Checks that a rejection names each fault and its path. The last element of the path can be missing in the snapshot.
fn check_rejection(rejection: &Rejection, body: &[u8]) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}: {rejection:?} of {}", String::from_utf8_lossy(body)));
    if rejection.message.is_empty() {
        return wrong("a rejection without a message");
    }
    if rejection.error != RejectionKind::Invalid {
        return Ok(());
    }
    if rejection.faults.is_empty() {
        return wrong("an `Invalid` rejection without faults");
    }
    // The agent does not parse the rest of a snapshot of another version, so the body may be invalid JSON.
    let body: Option<Value> = serde_json::from_slice(body).ok();
    for Fault { path, message } in &rejection.faults {
        if path.is_empty() || message.is_empty() {
            return wrong("a fault without a path or a message");
        }
        if body.as_ref().is_some_and(|body| !leads(path, body)) {
            return wrong(&format!("the snapshot has no {path}"));
        }
    }
    Ok(())
}

/// Returns true if the path leads to a value, or to a missing field of an existing object.
fn leads(path: &str, to: &Value) -> bool {
    let path = path.strip_prefix('.').unwrap_or(path);
    match to {
        _ if path.is_empty() => true,
        // serde also accepts a struct as an array of its fields, in order.
        Value::Array(_) if !path.starts_with('[') => true,
        Value::Array(list) => {
            path.strip_prefix('[').and_then(|rest| rest.split_once(']')).is_some_and(|(index, rest)| {
                index.parse().ok().and_then(|index: usize| list.get(index)).is_some_and(|entry| leads(rest, entry))
            })
        }
        Value::Object(fields) => {
            // Field names can contain dots.
            let mut named = fields.iter().filter_map(|(name, value)| Some((path.strip_prefix(name.as_str())?, value)));
            named.any(|(rest, value)| leads(rest, value)) || !path.contains(['.', '['])
        }
        _ => false,
    }
}

/// Sends a random request, and calls `explain` for the same request.
fn ask(rules: &LiveRules, clock: MonotonicClock, choices: &mut Choices<'_>) -> Result<(), String> {
    let method = *choices.one(&["GET", "POST", "PUT", "OPTIONS", "a"]);
    let target =
        *choices.one(&["/api/v1/x?page=2&user=a", "/", "/healthz", "/ws", "/api/%2e/b?user=%zz", "/a/b", "*", "//x"]);
    let fields = [
        ("host", *choices.one(&["shop.example.com", "a", "[::1]:80", ":"])),
        ("x-api-key", *choices.one(&["gold-key", "", "b"])),
        ("x-forwarded-for", *choices.one(&["192.0.2.7", "x", "2001:db8::1, 192.0.2.1"])),
        ("cookie", *choices.one(&["session=a", "a", "=;;"])),
        ("authorization", *choices.one(&["Bearer a.eyJzdWIiOiJ4In0.c", "x", "Bearer .."])),
        ("x-tier", *choices.one(&["free", "gold"])),
        ("x-cost", *choices.one(&["1", "18446744073709551615", "-1", "x"])),
    ];
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in fields {
        request = request.header(name, value);
    }
    let request = request.body(()).map_err(|error| error.to_string())?;
    let app = tower::service_fn(async |_: Request<()>| {
        let answer = Response::builder().header("x-units", "7").header("x-cost", "18446744073709551615");
        Ok::<_, Infallible>(answer.body(Body::from("ok")).expect("a response"))
    });
    let messages = rules.messages(Ipv4Addr::LOCALHOST.into(), &request);
    if let Some(messages) = messages {
        let _ = (messages.decide(), messages.decide());
    }
    // If the request must wait, dropping its future cancels the wait.
    let limits = rules.layer(|_| Some(Ipv4Addr::LOCALHOST.into()));
    let _ = limits.layer(app).call(request).now_or_never();
    let headers = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let (method, target) = (method.to_owned(), target.to_owned());
    let described = ExplainRequest { method, target, headers, peer: None, descriptor: None };
    let _ = rules.load().explain(&described, clock, AmbiguousPaths::Keep);
    Ok(())
}
