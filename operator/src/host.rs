//! Finds the host in the authority of a URL.

/// Returns the host of `host`, `host:port` or `[::1]:port`.
pub(crate) fn without_port(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

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
