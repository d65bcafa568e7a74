//! Host patterns: an exact name, or `*.example.com` for every subdomain. Port, case and a final dot are ignored.

use std::str::FromStr;

/// The maximum length of a host name without the final dot (RFC 1035 section 2.3.4).
const LONGEST: usize = 253;

/// One entry of a `hosts` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// Exactly this host.
    Exact(String),
    /// Every subdomain of this domain. The text includes the leading dot.
    Below(String),
}

/// The error for an invalid host pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidHost {
    #[error("is empty: write a host such as `shop.example.com`, or remove `hosts`")]
    Empty,
    #[error("`*` may only be the whole first label, as in `*.example.com`")]
    Wildcard,
    #[error("is longer than {LONGEST} characters, the maximum of a host name")]
    TooLong,
    #[error("is not a host name: write it without scheme, port or path, as in `shop.example.com`")]
    NotAHost,
}

impl HostPattern {
    /// Whether the pattern matches. `host` must have no port: see [`without_port`].
    pub(crate) fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => host.eq_ignore_ascii_case(name),
            Self::Below(domain) => {
                let (host, domain) = (host.as_bytes(), domain.as_bytes());
                host.len() > domain.len() && host[host.len() - domain.len()..].eq_ignore_ascii_case(domain)
            }
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let (name, below) = match text.strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (text, false),
        };
        if name.len() > LONGEST {
            return Err(InvalidHost::TooLong);
        }
        if name.is_empty() {
            return Err(if below { InvalidHost::Wildcard } else { InvalidHost::Empty });
        }
        if name.contains('*') {
            return Err(InvalidHost::Wildcard);
        }
        let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let valid = match literal {
            Some(address) => !below && address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
        };
        match (valid, below) {
            (false, _) => Err(InvalidHost::NotAHost),
            (true, true) => Ok(Self::Below(format!(".{name}"))),
            (true, false) => Ok(Self::Exact(name.to_owned())),
        }
    }
}

/// Removes user, port and final dot: `shop.example.com.:8080` -> `shop.example.com`, `[::1]:80` -> `[::1]`.
pub(crate) fn without_port(host: &str) -> &str {
    let host = host.rsplit_once('@').map_or(host, |(_user, host)| host);
    let host = match host.rfind(']') {
        Some(end) if host.starts_with('[') => &host[..=end],
        _ => host.split_once(':').map_or(host, |(host, _port)| host),
    };
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_final_dots_are_cut() {
        for (host, expected) in [
            ("example.com", "example.com"),
            ("example.com:80", "example.com"),
            ("example.com.:80", "example.com"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("user@example.com:1", "example.com"),
            ("a[]b:1", "a[]b"),
            ("", ""),
        ] {
            assert_eq!(without_port(host), expected, "{host}");
        }
    }

    #[test]
    fn patterns_match_by_label() {
        for (pattern, host, expected) in [
            ("example.com", "example.com", true),
            ("Example.com", "eXample.COM", true),
            ("example.com", "a.example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "A.b.Example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.example.com", "badexample.com", false),
            ("*.example.com", "é.example.com", true),
            ("[::1]", "[::1]", true),
            ("example.com.", "example.com", true),
        ] {
            let parsed: HostPattern = pattern.parse().expect(pattern);
            assert_eq!(parsed.matches(host), expected, "{pattern} on {host}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (text, expected) in [
            ("", InvalidHost::Empty),
            ("*", InvalidHost::Wildcard),
            ("*.", InvalidHost::Wildcard),
            ("a.*.com", InvalidHost::Wildcard),
            ("*a.com", InvalidHost::Wildcard),
            ("example.com:80", InvalidHost::NotAHost),
            ("https://example.com", InvalidHost::NotAHost),
            ("example.com/x", InvalidHost::NotAHost),
            ("*.[::1]", InvalidHost::NotAHost),
            (&"a".repeat(254), InvalidHost::TooLong),
        ] {
            assert_eq!(text.parse::<HostPattern>(), Err(expected), "{text}");
        }
    }
}
