//! Networks of addresses in CIDR notation.

use std::net::{AddrParseError, IpAddr};

use ipnet::{IpNet, PrefixLenError};

/// A network: the addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

/// The error for an invalid network, in one line that explains how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNetwork {
    /// The text is not an address with or without a prefix length.
    #[error("must be a network or an address, such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7")]
    Syntax,
    /// The address has bits after the prefix, so the author intended either the address or the network.
    #[error("has bits after its prefix: write {0} for the network, or {1} for the address")]
    HostBits(IpNet, IpAddr),
    /// The network is IPv4 in IPv6 notation. Client addresses of this form are converted to IPv4, so the network would
    /// never match.
    #[error("must not be IPv4 in IPv6 notation: write it as IPv4, such as 10.0.0.0/8")]
    Mapped,
}

impl From<AddrParseError> for InvalidNetwork {
    fn from(_: AddrParseError) -> Self {
        Self::Syntax
    }
}

impl From<PrefixLenError> for InvalidNetwork {
    fn from(_: PrefixLenError) -> Self {
        Self::Syntax
    }
}

impl Network {
    /// Whether the network contains an address. Addresses that are IPv4 in IPv6 notation must be converted first.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

/// Parses a network such as `10.0.0.0/8`, or a single address.
///
/// # Errors
///
/// If the text is neither a network nor an address, or if it would match other addresses than its author expects.
pub fn network(text: &str) -> Result<Network, InvalidNetwork> {
    let network = match text.split_once('/') {
        None => IpNet::from(text.parse::<IpAddr>()?),
        Some((address, length)) => {
            let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse().ok().filter(|_| is_number).ok_or(InvalidNetwork::Syntax)?;
            IpNet::new(address.parse()?, length)?
        }
    };
    if matches!(network.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return Err(InvalidNetwork::Mapped);
    }
    if network != network.trunc() {
        return Err(InvalidNetwork::HostBits(network.trunc(), network.addr()));
    }
    Ok(Network(network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_that_share_its_prefix() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", vec!["10.0.0.0", "10.255.255.255"], vec!["11.0.0.0", "9.255.255.255", "::a00:0"]),
            ("192.0.2.128/25", vec!["192.0.2.128", "192.0.2.255"], vec!["192.0.2.127"]),
            ("192.0.2.7", vec!["192.0.2.7"], vec!["192.0.2.6", "192.0.2.8"]),
            ("192.0.2.7/32", vec!["192.0.2.7"], vec!["192.0.2.6"]),
            ("0.0.0.0/0", vec!["0.0.0.0", "255.255.255.255"], vec!["::"]),
            ("2001:db8::/32", vec!["2001:db8:ffff::1"], vec!["2001:db9::", "32.1.13.184"]),
            ("::1", vec!["::1"], vec!["::", "127.0.0.1"]),
            ("::/0", vec!["::", "ffff::"], vec!["0.0.0.0"]),
        ] {
            let network = network(text).expect(text);
            let contains = |address: &&str| network.contains(address.parse().expect("an address"));
            assert!(inside.iter().all(contains), "{text}");
            assert!(!outside.iter().any(contains), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_how_to_write_it() {
        for (text, part) in [
            ("", "must be a network or an address"),
            ("10", "must be a network"),
            ("10.0.0.0/", "must be a network"),
            ("10.0.0.0/33", "must be a network"),
            ("10.0.0.0/+8", "must be a network"),
            ("10.0.0.0/255.0.0.0", "must be a network"),
            ("10.0.0.0/8 ", "must be a network"),
            ("2001:db8::/129", "must be a network"),
            ("010.0.0.0/8", "must be a network"),
            ("fe80::1%eth0", "must be a network"),
            ("10.1.2.3/8", "write 10.0.0.0/8 for the network, or 10.1.2.3 for the address"),
            ("2001:db8::1/32", "write 2001:db8::/32"),
            ("::ffff:10.0.0.0/104", "write it as IPv4"),
        ] {
            let invalid = network(text).expect_err(text).to_string();
            assert!(invalid.contains(part), "{text}: {invalid}");
        }
    }
}
