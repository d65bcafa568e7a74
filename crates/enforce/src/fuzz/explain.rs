//! Described requests: a description is refused with the name of the invalid field, or explained with the verdict that
//! the request itself gets.

use std::{net::Ipv4Addr, sync::Arc};

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue, Request};
use serde_json::{Value, json};
use weir_core::Time;
use weir_fuzz::{Choices, Target};
use weir_tower::MonotonicClock;
use weir_wire::{Decision, ExplainRequest};

use crate::{
    Gate, GateOptions, Gates, RulesInForce,
    decide::verdict::Verdict,
    jwt::Tokens,
    key::{KeySpec, Part},
    lower,
    matching::{AmbiguousPaths, RequestView},
};

const TARGETS: &[&str] = &[
    "/", "*", "/api/x?page=2", "/api/%2e/x", "//api", "http://b/api", "https://u@b:80/x?y", "b:80", "?", "#", "/a#b",
    "", "/\u{e9}", "/a b", "/%2f", "ftp://a/", "/..;/api",
];
const NAMES: &[&str] = &[
    "host", "Host", "x-api-key", "X-Api-Key", "cookie", "x-forwarded-for", "", "a b", "\u{e4}", "authorization", "te",
];
const VALUES: &[&str] = &[
    "", "a", " a", "a\t", "\u{a0}a", "a\u{85}", "\u{2003}a", "b:80", "id=1; id=2", "192.0.2.1, 192.0.2.2", "\r\n",
    "\0", "Bearer e30.eyJzdWIiOiJhbm4ifQ.", "\u{e4}", "[::1]:80", "\x7f",
];

#[test]
fn any_described_request_is_refused_or_explained_as_it_is_decided() {
    Target::new("explain").run(500, script);
}

/// Creates a bypass, and a rule for a part of the API whose key has all kinds of parts that read the request.
fn rules() -> Result<RulesInForce, String> {
    let key = json!([
        {"header": "x-api-key"}, {"cookie": "id"}, {"query": "page"}, {"host": {}}, {"method": {}}, {"pathSegment": 2}, {"path": {}},
        {"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}, {"jwtClaim": {"header": "authorization", "claim": "sub"}},
    ]);
    let limit = json!({"name": "l", "strategy": "TokenBucket", "requests": 1, "periodMillis": 3_600_000, "burst": 1});
    let rules = json!([
        {"name": "some", "action": "Limit", "match": [{"paths": ["/api/**"]}, {"hosts": ["b"]}], "key": key,
         "maxKeys": 16, "limits": [limit]},
        {"name": "all", "action": "Bypass", "match": [{"methods": ["OPTIONS"]}]},
    ]);
    let policy = json!({"uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce", "rules": rules});
    let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": [policy]});
    let snapshot: weir_wire::Snapshot = serde_json::from_value(snapshot).map_err(|error| error.to_string())?;
    let lowered = lower(&snapshot).map_err(|faults| format!("{faults:?}"))?;
    Ok(RulesInForce::default().with_snapshot(snapshot, lowered, &Default::default(), || Time::from_nanos(0)))
}

fn parts() -> KeySpec {
    KeySpec::new(vec![
        Part::Header(HeaderName::from_static("x-api-key")),
        Part::Cookie("id".into()),
        Part::Query("page".into()),
        Part::Host,
        Part::Method,
        Part::PathSegment(2),
        Part::Path,
        Part::ClientIp { trusted_hops: 1, ipv6_prefix: 64 },
        Part::JwtClaim { header: http::header::AUTHORIZATION, claim: "sub".into() },
    ])
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let clock = MonotonicClock::start();
    while !choices.is_over() {
        let method = *choices.one(&["GET", "POST", "OPTIONS", "get", "", "A B", "M-SEARCH"]);
        let target = *choices.one(TARGETS);
        let count = choices.below(5);
        let headers: Vec<[&str; 2]> = (0..count).map(|_| [*choices.one(NAMES), *choices.one(VALUES)]).collect();
        let mut described = json!({"method": method, "target": target, "headers": headers});
        if choices.rarely(3) {
            described["peer"] = json!(choices.one(&["::1", "192.0.2.9", "x", ""]));
        }
        let described: Result<ExplainRequest, _> = serde_json::from_value(described);
        let Ok(described) = described else { continue };
        same(&described, clock)?;
    }
    Ok(())
}

fn same(described: &ExplainRequest, clock: MonotonicClock) -> Result<(), String> {
    let rules = Arc::new(ArcSwap::from_pointee(rules()?));
    let reply = match rules.load().explain(described, clock, AmbiguousPaths::Keep) {
        Ok(reply) => reply,
        Err(invalid) => {
            let message = invalid.to_string();
            let field = message.split_once(": ").map(|(field, _)| field.to_owned()).unwrap_or_default();
            let known = ["method", "target"].contains(&field.as_str()) || header(described, &field);
            return if known { Ok(()) } else { Err(format!("{described:?} has no {field:?}: {message}")) };
        }
    };
    let request = request(described).ok_or_else(|| format!("{described:?} is not a request, and was explained"))?;
    let peer = described.peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let view = RequestView::new(&request, peer).reading(AmbiguousPaths::Keep);
    let now = || clock.now();
    let expected = parts().show(&view, &Tokens::new(None, &now));
    if let Some(rule) = reply.rules.iter().find(|rule| rule.rule == "some")
        && rule.key != expected
    {
        return Err(format!("the key of {described:?} is explained as {:?}, but is {expected:?}", rule.key));
    }
    // The verdict on the first request and on the next one with the same key must agree with the explanation.
    let options = GateOptions { clock, paths: AmbiguousPaths::Keep, log_keys: false };
    let gate = Gates::new(Arc::clone(&rules), options).of(peer);
    for (turn, decision) in [reply.decision, explained(&rules, described, clock)?].into_iter().enumerate() {
        let decision = if turn == 0 { decision } else { explained(&rules, described, clock)? };
        let passes = gate.decide(&request, |verdict| matches!(verdict, Verdict::Pass(_)));
        if passes != matches!(decision, Decision::Allow | Decision::Bypass) {
            return Err(format!("{described:?} is explained as {decision:?} at turn {turn}, and passes: {passes}"));
        }
    }
    Ok(())
}

fn explained(
    rules: &ArcSwap<RulesInForce>,
    described: &ExplainRequest,
    clock: MonotonicClock,
) -> Result<Decision, String> {
    let reply = rules.load().explain(described, clock, AmbiguousPaths::Keep);
    reply.map(|reply| reply.decision).map_err(|invalid| invalid.to_string())
}

fn header(described: &ExplainRequest, field: &str) -> bool {
    let index =
        field.strip_prefix("headers[").and_then(|rest| rest.split_once(']')).and_then(|(index, _)| index.parse().ok());
    index.is_some_and(|index: usize| index < described.headers.len())
}

/// Creates the request that a client would send. Spaces and tabs around a value are not part of the value (RFC 9110
/// section 5.5).
fn request(described: &ExplainRequest) -> Option<Request<()>> {
    let mut request = Request::builder().method(described.method.as_str()).uri(&described.target);
    for (name, value) in &described.headers {
        let value = HeaderValue::from_bytes(value.trim_matches([' ', '\t']).as_bytes()).ok()?;
        request = request.header(HeaderName::try_from(name.as_str()).ok()?, value);
    }
    request.body(()).ok()
}

/// Unicode spaces around a value are part of the value.
#[test]
fn a_value_keeps_all_but_blanks_and_tabs() {
    let described = json!({"target": "/api/x", "headers": [["x-api-key", " \t\u{2003}a\u{a0}\t "]]});
    let described: ExplainRequest = serde_json::from_value(described).expect("a request");
    let rules = rules().expect("good rules");
    let reply = rules.explain(&described, MonotonicClock::start(), AmbiguousPaths::Keep).expect("an answer");
    assert_eq!(reply.rules[0].key[0].as_deref(), Some("\u{2003}a\u{a0}"));
}

/// The rules of this target have the parts that the explanations are compared with.
#[test]
fn the_parts_are_those_of_the_rule() {
    let rules = rules().expect("good rules");
    let described: ExplainRequest = serde_json::from_value(json!({"target": "/api/x"})).expect("a request");
    let reply = rules.explain(&described, MonotonicClock::start(), AmbiguousPaths::Keep).expect("an answer");
    assert_eq!(reply.rules[0].key.len(), parts().parts().len());
    assert_eq!(Value::Null, json!(reply.rules[0].key[0]));
}
