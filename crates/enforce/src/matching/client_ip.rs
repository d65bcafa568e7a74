//! Finds the address of the client behind trusted proxies.
//!
//! Every trusted proxy appends the address of its peer to `X-Forwarded-For`. So with `n` trusted proxies, the client's
//! address is the `n`-th entry from the end, counted over all occurrences of the header. The client can write any
//! entries before that one, so they are never trusted. If the header has fewer entries, the peer's address is used.

use std::net::{IpAddr, SocketAddr};

use http::HeaderName;

use super::Headers;

/// The header to which proxies append the address of their peer.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the client's address. An IPv4-mapped IPv6 address becomes IPv4.
pub(super) fn client_ip(headers: Headers<'_>, peer: IpAddr, trusted_hops: u8) -> IpAddr {
    let named = usize::from(trusted_hops).checked_sub(1).and_then(|from_the_end| {
        let name = X_FORWARDED_FOR;
        let lines = headers.all(&name).rev();
        lines.flat_map(entries_backwards).nth(from_the_end).and_then(parse)
    });
    named.unwrap_or(peer).to_canonical()
}

/// Returns the entries of a line, last entry first. The line is split as bytes, because invalid UTF-8 in an entry of
/// the client must not hide the entries of proxies after it.
fn entries_backwards(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// Parses an address as proxies write it: with or without brackets and port.
fn parse(entry: &[u8]) -> Option<IpAddr> {
    let entry = str::from_utf8(entry).ok()?.trim_matches('"');
    let bare = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    entry.parse().ok().or_else(|| entry.parse::<SocketAddr>().ok().map(|address| address.ip())).or_else(bare)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn only_what_trusted_proxies_wrote_is_believed() {
        let peer = "10.0.0.9";
        for (lines, hops, expected) in [
            (vec![], 0, peer),
            (vec![], 1, peer),
            (vec!["192.0.2.1"], 0, peer),
            (vec!["192.0.2.1"], 1, "192.0.2.1"),
            (vec!["6.6.6.6, 192.0.2.1"], 1, "192.0.2.1"),
            (vec!["6.6.6.6, 192.0.2.1, 10.0.0.1"], 2, "192.0.2.1"),
            (vec!["6.6.6.6", "192.0.2.1", "10.0.0.1"], 2, "192.0.2.1"),
            (vec!["192.0.2.1"], 2, peer),
            (vec!["", " , 192.0.2.1 ,"], 1, "192.0.2.1"),
            (vec!["192.0.2.1:4711"], 1, "192.0.2.1"),
            (vec!["[2001:db8::1]:4711"], 1, "2001:db8::1"),
            (vec!["[2001:db8::1]"], 1, "2001:db8::1"),
            (vec!["2001:db8::1"], 1, "2001:db8::1"),
            (vec!["::ffff:192.0.2.1"], 1, "192.0.2.1"),
            (vec!["192.0.2.1, unknown"], 1, peer),
            (vec!["[192.0.2.1]"], 1, peer),
            // Bytes that are not UTF-8 make only their own entry invalid.
            (vec!["\u{e4}, 192.0.2.1"], 1, "192.0.2.1"),
            (vec!["6.6.6.6, \u{e4}, 192.0.2.1, 10.0.0.1"], 2, "192.0.2.1"),
            (vec!["6.6.6.6", "\u{e4}, 192.0.2.1", "10.0.0.1"], 2, "192.0.2.1"),
            (vec!["6.6.6.6, \u{e4}"], 1, peer),
        ] {
            let mut headers = HeaderMap::new();
            for line in &lines {
                let line: Vec<u8> = line.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin-1")).collect();
                headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(&line).unwrap());
            }
            let address = client_ip(Headers::Map(&headers), peer.parse().unwrap(), hops);
            assert_eq!(address, expected.parse::<IpAddr>().unwrap(), "{lines:?} with {hops} hops");
        }
    }
}
