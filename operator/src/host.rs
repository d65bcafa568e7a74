//! Finds the host in a URL.

use http::Uri;
use rustls::pki_types::ServerName;

/// Returns the host of an https URL without a user, or `None` if this is another URL, or if its host or port is not
/// valid. Agents have the same rules, in `crates/client/src/https.rs`, and do not start with another URL.
pub(crate) fn of_https(uri: &Uri) -> Option<&str> {
    let (authority, host) = (uri.authority()?.as_str(), uri.host()?);
    let port = authority.strip_prefix(host)?; // there is a user if the authority does not begin with the host
    let digits = if port.is_empty() { port } else { port.strip_prefix(':')? };
    // The library accepts every text as a port. An empty one means the default.
    let is_port = digits.is_empty()
        || digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse().is_ok_and(|port: u16| port > 0);
    // The host of a URL has brackets around an IPv6 address.
    let host = host.trim_matches(['[', ']']);
    (uri.scheme_str() == Some("https") && ServerName::try_from(host).is_ok() && is_port).then_some(host)
}

/// Returns the host of `host`, `host:port` or `[::1]:port`.
pub(crate) fn without_port(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_a_name_are_hosts_with_and_without_a_port() {
        for (authority, expected) in [
            ("agent.test:8481", "agent.test"),
            ("agent.test", "agent.test"),
            ("10.0.0.7:8481", "10.0.0.7"),
            ("[::1]:8481", "::1"),
            ("[fd00::7]", "fd00::7"),
        ] {
            assert_eq!(without_port(authority), expected);
            assert!(ServerName::try_from(expected).is_ok());
        }
    }
}
