//! `X-Forwarded-For`: the client is the n-th entry from the end over all lines, and the entries before it are ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderValue;
use weir_fuzz::{Choices, Target};

use crate::matching::{FieldLine, Headers, RequestView, X_FORWARDED_FOR};

const PIECES: &[&str] = &[
    "192.0.2.1", "10.0.0.1", "2001:db8::1", "[2001:db8::1]", "::ffff:192.0.2.1", "[::ffff:10.0.0.1]", ",", ",", ",",
    ", ", " ", "\t", "\"", ":80", ":99999", ":", "[", "]", "%1", "%eth0", "unknown", "_hidden", "for=", ";",
    "256.1.1.1", "01.2.3.4", "127.1", "0x7f.0.0.1", "::", "1", ".", "\u{e4}",
];

#[test]
fn any_forwarded_for_names_the_client_that_the_definition_names() {
    Target::new("addresses").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let peer = *choices.one(&["10.0.0.9", "::1", "::ffff:192.0.2.9"]);
        let peer: IpAddr = peer.parse().map_err(|_| "a wrong peer".to_owned())?;
        let hops = choices.byte() % 5;
        let count = choices.below(4);
        let lines: Vec<String> = (0..count).map(|_| choices.text(PIECES, 9)).collect();
        let lines: Vec<Vec<u8>> = lines.iter().map(|line| latin(line)).collect();
        let mut map = http::HeaderMap::new();
        for line in &lines {
            map.append(X_FORWARDED_FOR, HeaderValue::from_bytes(line).map_err(|error| error.to_string())?);
        }
        let came: Vec<FieldLine<'_>> =
            lines.iter().map(|value| FieldLine { name: b"X-Forwarded-For", value }).collect();
        let expected = defined(&lines, peer, hops);
        for headers in [Headers::Map(&map), Headers::Lines(&came)] {
            let found = RequestView::of_target("GET", ("/", None), headers, peer).client_ip(hops);
            if found != expected {
                let shown: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
                return Err(format!("{shown:?} with {hops} hops is {found}, and should be {expected}"));
            }
        }
    }
    Ok(())
}

/// Encodes the text as Latin-1, which is not UTF-8.
fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|character| u8::try_from(u32::from(character)).unwrap_or(b'?')).collect()
}

fn defined(lines: &[Vec<u8>], peer: IpAddr, hops: u8) -> IpAddr {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for line in lines {
        for entry in line.split(|byte| *byte == b',') {
            let from = entry.iter().position(|byte| !blank(byte)).unwrap_or(entry.len());
            let to = entry.iter().rposition(|byte| !blank(byte)).map_or(from, |last| last + 1);
            if from < to {
                entries.push(entry[from..to].to_vec());
            }
        }
    }
    let named = usize::from(hops).checked_sub(1).and_then(|back| entries.iter().rev().nth(back));
    let address = named.and_then(|entry| address(std::str::from_utf8(entry).ok()?)).unwrap_or(peer);
    match address {
        IpAddr::V6(address) if address.segments()[..6] == [0, 0, 0, 0, 0, 0xffff] => {
            let [.., a, b, c, d] = address.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    }
}

/// Parses an address with or without quotes, brackets and a port.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim_matches('"');
    if let Some(rest) = entry.strip_prefix('[') {
        let (inner, behind) = rest.split_once(']')?;
        // A zone must be a number, and is allowed only with a port.
        let (inner, zone) = inner.split_once('%').map_or((inner, None), |(inner, zone)| (inner, Some(zone)));
        let is_zone =
            zone.is_none_or(|zone| zone.parse::<u32>().is_ok_and(|_| !zone.contains('+')) && !behind.is_empty());
        let is_behind = behind.is_empty() || behind.strip_prefix(':').is_some_and(is_port);
        return inner.parse::<Ipv6Addr>().ok().filter(|_| is_zone && is_behind).map(IpAddr::V6);
    }
    if let Some(address) = version_4(entry) {
        return Some(address.into());
    }
    match entry.split_once(':') {
        Some((host, port)) if is_port(port) && !host.is_empty() && !host.contains(':') => {
            version_4(host).map(IpAddr::V4)
        }
        _ => entry.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Parses four decimal numbers without leading zeros (RFC 6943 section 3.1.1, the strict form).
fn version_4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u8> = text.split('.').map(octet).collect::<Option<_>>()?;
    let [a, b, c, d] = parts[..] else { return None };
    Some(Ipv4Addr::new(a, b, c, d))
}

fn octet(text: &str) -> Option<u8> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}
