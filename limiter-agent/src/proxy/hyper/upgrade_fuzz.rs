//! Sends requests for an upgrade to an app that accepts WebSocket like tungstenite. If a rule counts messages, the app
//! must accept only connections that the agent counts. Otherwise it must accept the same requests as without an agent.

use std::net::Ipv4Addr;

use http::{HeaderName, Method};
use serde_json::json;
use tokio_tungstenite::tungstenite::handshake::server::create_response;
use weir_enforce::{AmbiguousPaths, GateOptions, LiveRules, Stores, lower};
use weir_fuzz::{Choices, Target};
use weir_tower::MonotonicClock;

use super::{super::request_body::ForwardedBody, *};
use crate::proxy::headers::{Peer, to_client, to_upstream};

/// A handshake that every server accepts.
const HANDSHAKE: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];
const NAMES: &[&str] = &[
    "connection", "upgrade", "sec-websocket-version", "sec-websocket-key", "sec-websocket-extensions",
    "sec-websocket-protocol", "x-a",
];
const WORDS: &[&str] = &[
    "websocket", "WebSocket", "websocket/13", "web", "socket", "upgrade", "UPGRADE", "keep-alive", "close", "13", "8",
    "h2c", "HTTP/2.0", "http", "TLS/1.2", "irc/6.9", ",", ", ", " ", "\t", "/", "sec-websocket-key", "x-a", "\u{e4}",
    "permessage-deflate", ";", "=",
];

#[test]
fn any_upgrade_is_counted_or_passed_on_as_an_app_takes_it() {
    let rules = rules();
    Target::new("upgrades").run(1_000, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            upgrade(&mut choices, &rules)?;
        }
        Ok(())
    });
}

/// Rules that count the messages of every connection.
fn rules() -> LiveRules {
    let clock = MonotonicClock::start();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let limit = json!({"name": "l", "strategy": "TokenBucket", "requests": 1, "periodMillis": 1000, "burst": 1});
    let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": [{
        "uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce",
        "rules": [{"name": "m", "action": "Limit", "per": "Message", "limits": [limit]}],
    }]});
    let snapshot = serde_json::from_value(snapshot).expect("a snapshot");
    let lowered = lower(&snapshot).expect("a valid snapshot");
    let guard = rules.write();
    guard.replace(guard.rules().with_snapshot(snapshot, lowered, &Stores::new(), || clock.now()));
    drop(guard);
    rules
}

fn upgrade(choices: &mut Choices<'_>, rules: &LiveRules) -> Result<(), String> {
    let method = if choices.rarely(12) { Method::POST } else { Method::GET };
    let version = *choices.one(&[Version::HTTP_11, Version::HTTP_11, Version::HTTP_11, Version::HTTP_10]);
    let mut request = Request::builder().method(method).version(version).uri("/").header("host", "shop");
    let mut is_plain = version == Version::HTTP_11;
    for (name, value) in HANDSHAKE {
        let kind = choices.below(12);
        is_plain &= kind > 2;
        match kind {
            0 => {}
            1 => request = request.header(name, value).header(name, value),
            2 => request = request.header(name, choices.text(WORDS, 5)),
            _ => request = request.header(name, value),
        }
    }
    for _ in 0..choices.below(3) {
        let name: &&str = choices.one(NAMES);
        is_plain &= !HANDSHAKE.iter().any(|(known, _)| known == name);
        request = request.header(*name, choices.text(WORDS, 5));
    }
    // The request is not built if a header value is not allowed in HTTP.
    let Ok(mut request) = request.body(ForwardedBody::default()) else { return Ok(()) };
    let is_counted = choices.rarely(2);
    let wrong = |what: &str, to_app: &HeaderMap, request: &Request<ForwardedBody>| {
        let head = (request.method(), request.version(), request.headers());
        Err(format!("{what} (messages counted: {is_counted}): {head:?} became {to_app:?}"))
    };
    let accepts = |headers: &HeaderMap, version: Version, request: &Request<ForwardedBody>| {
        let mut seen = Request::new(());
        *seen.method_mut() = request.method().clone();
        *seen.version_mut() = version;
        *seen.headers_mut() = headers.clone();
        create_response(&seen).is_ok()
    };

    let messages = |request: &Request<_>| rules.messages(Ipv4Addr::LOCALHOST.into(), request);
    let asked = requested(&mut request, |request| is_counted.then(|| messages(request)).flatten());
    let asked = asked.map_err(|unsound| format!("{:?} without a body was refused: {unsound}", request.headers()))?;
    let mut to_app = request.headers().clone();
    to_upstream(&mut to_app, &Peer::new(Ipv4Addr::LOCALHOST.into()), false);
    if let Some(asked) = &asked {
        asked.ask(&mut to_app);
    }
    let is_accepted = accepts(&to_app, Version::HTTP_11, &request);
    if is_accepted && is_counted && asked.as_ref().is_none_or(|asked| asked.messages.is_none()) {
        return wrong("an app opens a connection that is not counted", &to_app, &request);
    }
    if is_counted && is_accepted && to_app.contains_key("sec-websocket-extensions") {
        return wrong("extensions were offered", &to_app, &request);
    }
    if is_plain && accepts(request.headers(), version, &request) && !is_accepted {
        return wrong("the app does not accept the forwarded upgrade", &to_app, &request);
    }
    if asked.is_none() && to_app.contains_key("upgrade") {
        return wrong("an upgrade is forwarded that no relay serves", &to_app, &request);
    }
    for protocol in named(&to_app) {
        let name = protocol.split('/').next().unwrap_or_default().to_ascii_lowercase();
        if ["http", "h2", "h2c", "tls"].contains(&&*name) {
            return wrong("requests could pass the limits", &to_app, &request);
        }
    }
    asked.map_or(Ok(()), |asked| answered(choices, &asked, &to_app))
}

/// Checks a random answer of the app. The relay must start only if it can parse the app's frames.
fn answered(choices: &mut Choices<'_>, asked: &Upgrade, to_app: &HeaderMap) -> Result<(), String> {
    let mut answer = HeaderMap::new();
    for (name, usual) in [("upgrade", "websocket"), ("sec-websocket-extensions", "")] {
        for _ in 0..choices.below(3) {
            let text = if choices.rarely(2) { usual.to_owned() } else { choices.text(WORDS, 4) };
            if let Ok(value) = HeaderValue::from_str(&text) {
                answer.append(HeaderName::from_static(name), value);
            }
        }
    }
    let is_websocket = |protocol: &String| {
        let name = protocol.split('/').next().unwrap_or_default();
        name.eq_ignore_ascii_case("websocket")
    };
    let case = format!("the app is asked {to_app:?} and answers {answer:?}");
    let chosen = named(&answer);
    if asked.agrees(&answer) {
        let has_extension = answer.contains_key("sec-websocket-extensions");
        if asked.messages.is_some() && (has_extension || !chosen.iter().any(is_websocket)) {
            return Err(format!("{case}, which the agent cannot count"));
        }
        if asked.messages.is_none() && chosen.iter().any(is_websocket) && !named(to_app).iter().any(is_websocket) {
            return Err(format!("{case}, a protocol that the rules did not check"));
        }
    } else if asked.protocols == "websocket" && chosen == ["websocket"] && answer.len() == 1 {
        return Err(format!("{case}, which is correct, but was refused"));
    }
    to_client(&mut answer);
    if answer.contains_key("upgrade") {
        Err(format!("{case}, and the hop-by-hop field was forwarded too"))
    } else {
        Ok(())
    }
}

/// The protocols of `Upgrade`, in order (RFC 9110 section 7.8).
fn named(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("upgrade").iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let lines: Vec<String> = values.collect();
    let elements = lines.iter().flat_map(|line| line.split(',')).map(|it| it.trim_matches([' ', '\t']).to_owned());
    elements.filter(|element| !element.is_empty()).collect()
}
