//! Compares the hosts of requests with the `http` crate, and patterns of hosts with their definition.

use http::uri::Authority;
use weir_fuzz::{Choices, Target};

use crate::matching::{HostPattern, RequestView};

const PIECES: &[&str] = &[
    "a", "b", "Shop", "example", "com", ".", ".", "-", "_", ":", ":80", ":0", "[", "]", "::1", "[::1]",
    "[2001:db8::1]", "*", "*.", "@", "u@", "/", " ", "%61", "\u{e4}", "192.0.2.1", "xn--a",
];

#[test]
fn any_host_and_pattern_agree_with_the_definition() {
    Target::new("hosts").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let host = choices.text(PIECES, 8);
        let pattern = if choices.rarely(2) { related(&host, &mut choices) } else { choices.text(PIECES, 8) };
        let found = read(&host)?;
        pattern_matches(&pattern, &found)?;
        pattern_matches(&pattern, &choices.text(&["a", "b", ".", "example", "COM"], 6))?;
    }
    Ok(())
}

/// Derives a pattern from a host.
fn related(host: &str, choices: &mut Choices<'_>) -> String {
    let name = host.split(':').next().unwrap_or_default();
    match choices.below(4) {
        0 => name.to_uppercase(),
        1 => format!("*.{}", name.split_once('.').map_or(name, |(_, rest)| rest)),
        2 => format!("{name}."),
        _ => format!("*.{name}"),
    }
}

/// Reads the host of a request from its `Host` header and from its target.
fn read(host: &str) -> Result<String, String> {
    let mut request = http::Request::new(());
    let Ok(value) = http::HeaderValue::from_bytes(host.as_bytes()) else { return Ok(String::new()) };
    request.headers_mut().insert(http::header::HOST, value);
    let peer = std::net::Ipv4Addr::LOCALHOST.into();
    let found = RequestView::new(&request, peer).host().to_owned();
    let Ok(authority) = host.parse::<Authority>() else { return Ok(found) };
    // A host with an invalid port is refused before any rule is checked.
    let port = host.strip_prefix(authority.host()).unwrap_or("@");
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|it| it.is_ascii_digit()));
    let expected = authority.host();
    let expected = expected.strip_suffix('.').unwrap_or(expected);
    if is_port && found != expected {
        return Err(format!("the host of {host:?} is {found:?}, and should be {expected:?}"));
    }
    let target = http::Uri::builder().scheme("http").authority(authority).path_and_query("/").build();
    if let Ok(target) = target {
        *request.uri_mut() = target;
        request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("other"));
        let named = RequestView::new(&request, peer).host().to_owned();
        if named != found {
            return Err(format!("the host of {host:?} is {found:?} in a field and {named:?} in a target"));
        }
    }
    Ok(found)
}

fn pattern_matches(pattern: &str, host: &str) -> Result<(), String> {
    let parsed = pattern.parse::<HostPattern>();
    let plain = pattern.strip_suffix('.').unwrap_or(pattern).to_ascii_lowercase();
    let name = plain.strip_prefix("*.").unwrap_or(&plain);
    let is_name = !name.is_empty() && name.chars().all(|it| matches!(it, 'a'..='z' | '0'..='9' | '-' | '.' | '_'));
    let is_literal = plain.len() > 2
        && plain.starts_with('[')
        && plain.ends_with(']')
        && plain[1..plain.len() - 1].parse::<std::net::Ipv6Addr>().is_ok();
    let is_sound = (is_name || is_literal) && name.len() <= 253;
    if parsed.is_ok() != is_sound {
        return Err(format!("the pattern {pattern:?} is {parsed:?}"));
    }
    let Ok(parsed) = parsed else { return Ok(()) };
    let host = host.to_ascii_lowercase();
    let expected = match plain.strip_prefix('*') {
        Some(domain) => host.ends_with(domain) && host != domain,
        None => host == plain,
    };
    let found = parsed.matches(&host) && parsed.matches(&host.to_ascii_uppercase());
    if found == expected {
        Ok(())
    } else {
        Err(format!("{pattern:?} on {host:?} is {found}, and should be {expected}"))
    }
}
