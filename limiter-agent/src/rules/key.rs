//! What requests are told apart by, as bytes.
//!
//! Every part carries its kind and its length, so that no two different lists of parts have the same bytes: an absent
//! header is not an empty one, and `a`,`bc` is not `ab`,`c`. Keys are chosen by clients, so a long value is replaced by
//! its SHA-256: a table of keys has a bound in bytes too.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use super::client_ip::client_ip;

/// Longer header values are digested.
const LONGEST_PLAIN: usize = 64;

const ABSENT: u8 = 0;
const PLAIN: u8 = 1;
const DIGEST: u8 = 2;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// A rule's `key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeySpec(Vec<Part>);

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Header(HeaderName),
    ClientIp { trusted_hops: u8, ipv6_prefix: u8 },
}

impl KeySpec {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        Self(parts)
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.0
    }

    /// Appends the key of a request.
    pub(super) fn write(&self, headers: &HeaderMap, peer: IpAddr, to: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Header(name) => match headers.get(name) {
                    Some(value) => write_value(value.as_bytes(), to),
                    None => to.push(ABSENT),
                },
                Part::ClientIp { trusted_hops, ipv6_prefix } => {
                    write_address(client_ip(headers, peer, *trusted_hops), *ipv6_prefix, to);
                }
            }
        }
    }
}

impl Part {
    /// Appends this part of a key that an override names; an error says what is wrong with the value.
    pub(super) fn write_named(&self, value: &str, to: &mut Vec<u8>) -> Result<(), &'static str> {
        match self {
            Self::Header(_) => write_value(value.as_bytes(), to),
            Self::ClientIp { ipv6_prefix, .. } => {
                let address: IpAddr = value.parse().map_err(
                    |_| "is not an IP address: this part of the key is clientIP, write it as in `192.0.2.7`",
                )?;
                write_address(address.to_canonical(), *ipv6_prefix, to);
            }
        }
        Ok(())
    }
}

fn write_value(value: &[u8], to: &mut Vec<u8>) {
    match u8::try_from(value.len()) {
        Ok(length) if value.len() <= LONGEST_PLAIN => {
            to.extend([PLAIN, length]);
            to.extend_from_slice(value);
        }
        _ => {
            to.push(DIGEST);
            to.extend_from_slice(&Sha256::digest(value));
        }
    }
}

fn write_address(address: IpAddr, ipv6_prefix: u8, to: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            to.push(IPV4);
            to.extend(address.octets());
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            to.push(IPV6);
            to.extend(Ipv6Addr::from_bits(address.to_bits() & mask).octets());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn headers(values: &[Option<Vec<u8>>]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (index, value) in values.iter().enumerate() {
            if let Some(value) = value {
                headers.append(name(index), http::HeaderValue::from_bytes(value).expect("visible bytes"));
            }
        }
        headers
    }

    fn name(index: usize) -> HeaderName {
        HeaderName::try_from(format!("x-{index}")).unwrap()
    }

    fn key(spec: &KeySpec, headers: &HeaderMap, peer: &str) -> Vec<u8> {
        let mut key = Vec::new();
        spec.write(headers, peer.parse().unwrap(), &mut key);
        key
    }

    #[test]
    fn ipv6_clients_are_told_apart_by_their_prefix() {
        let spec = |ipv6_prefix| KeySpec::new(vec![Part::ClientIp { trusted_hops: 0, ipv6_prefix }]);
        let none = HeaderMap::new();
        for (prefix, one, other, same) in [
            (64, "2001:db8::1", "2001:db8::ffff", true),
            (64, "2001:db8::1", "2001:db8:0:1::1", false),
            (128, "2001:db8::1", "2001:db8::2", false),
            (1, "2001:db8::1", "7fff::", true),
            (1, "2001:db8::1", "8000::", false),
            (64, "::ffff:192.0.2.1", "192.0.2.1", true),
            (1, "::ffff:192.0.2.1", "::ffff:192.0.2.2", false),
        ] {
            assert_eq!(
                key(&spec(prefix), &none, one) == key(&spec(prefix), &none, other),
                same,
                "{one} {other} /{prefix}"
            );
        }
    }

    #[test]
    fn an_override_names_the_key_that_a_request_has() {
        let parts = vec![Part::Header(name(0)), Part::ClientIp { trusted_hops: 0, ipv6_prefix: 64 }];
        let long = "k".repeat(100);
        for (value, address, peer) in [("gold", "192.0.2.7", "::ffff:192.0.2.7"), (&long, "2001:db8::", "2001:db8::9")]
        {
            let mut named = Vec::new();
            parts[0].write_named(value, &mut named).unwrap();
            parts[1].write_named(address, &mut named).unwrap();
            let headers = headers(&[Some(value.into())]);
            assert_eq!(named, key(&KeySpec::new(parts.clone()), &headers, peer), "{value} {address}");
        }
        assert!(parts[1].write_named("gold", &mut Vec::new()).is_err());
    }

    proptest! {
        #[test]
        fn different_values_have_different_keys(
            requests in prop::collection::hash_set(prop::collection::vec(prop::option::of("[ab]{0,3}|c{63,66}"), 3), 2..12),
        ) {
            let spec = KeySpec::new((0..3).map(|index| Part::Header(name(index))).collect());
            let keys: HashSet<Vec<u8>> = requests
                .iter()
                .map(|values| values.iter().map(|value| value.clone().map(String::into_bytes)).collect::<Vec<_>>())
                .map(|values| key(&spec, &headers(&values), "192.0.2.1"))
                .collect();
            prop_assert_eq!(keys.len(), requests.len());
        }
    }
}
