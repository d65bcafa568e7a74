//! The key of a request, as bytes.
//!
//! The bytes of every part contain its kind and its length, so two different lists of parts never have the same bytes:
//! an absent header differs from an empty header, and `a`,`bc` differs from `ab`,`c`. Clients choose their keys, so
//! SHA-256 replaces a long value, which bounds the memory of a table.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv6Addr},
};

use http::{HeaderName, header::COOKIE};
use sha2::{Digest, Sha256};
use weir_expressions::{InvalidValue, NamedPart, cookie_value};

use super::jwt::Tokens;
use crate::matching::RequestView;

/// The length in bytes above which a value is hashed.
const LONGEST_PLAIN: usize = 64;

const ABSENT: u8 = 0;
const PLAIN: u8 = 1;
const DIGEST: u8 = 2;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// The `key` of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeySpec {
    parts: Vec<Part>,
    /// Distinguishes this list of parts from others. `None` for a rule without a key.
    identity: Option<[u8; 16]>,
}

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Header(HeaderName),
    ClientIp {
        trusted_hops: u8,
        ipv6_prefix: u8,
    },
    Cookie(Box<str>),
    Query(Box<str>),
    /// The number of a path segment, counted from 1.
    PathSegment(u8),
    Path,
    Host,
    Method,
    JwtClaim {
        header: HeaderName,
        claim: Box<str>,
    },
    /// The key of an entry of descriptors.
    Descriptor(Box<str>),
}

/// The value of one part of a key, for one request.
enum Value<'a> {
    Absent,
    Text(Cow<'a, [u8]>),
    Address(IpAddr, u8),
}

impl KeySpec {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        let identity = (!parts.is_empty()).then(|| identity(&parts));
        Self { parts, identity }
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The name of a key in a store, which is the same in all agents. It depends on what the parts read, too: if the
    /// `key` of a rule changes, a client with an equal value of another part has its own counts and bans.
    pub(super) fn hash(&self, key: &[u8]) -> u128 {
        let mut digest = Sha256::new();
        if let Some(identity) = &self.identity {
            digest.update(identity);
        }
        digest.update(key);
        digest.finalize().iter().take(16).fold(0, |hash, byte| (hash << 8) | u128::from(*byte))
    }

    /// Appends the key of a request.
    pub(super) fn write(&self, request: &RequestView<'_>, tokens: &Tokens<'_>, to: &mut Vec<u8>) {
        for part in &self.parts {
            part.write(request, tokens, to);
        }
    }

    /// Returns the key with these values, one for each part. `None` if no request has such a key.
    pub(super) fn named(&self, values: &[impl AsRef<[u8]>]) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        let is_valid = values.len() == self.parts.len()
            && self.parts.iter().zip(values).all(|(part, value)| part.write_bytes(value.as_ref(), &mut key));
        is_valid.then_some(key)
    }

    /// Returns the keys with these values, one for each part. An empty value also stands for a part that a request does
    /// not have, so each empty value can double the number of keys. Empty if no request has such a key.
    pub(super) fn all_named(&self, values: &[impl AsRef<[u8]>]) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (values.len() == self.parts.len()).then(Vec::new).into_iter().collect();
        for (part, value) in self.parts.iter().zip(values.iter().map(AsRef::as_ref)) {
            let absent = value.is_empty().then(|| vec![ABSENT]);
            let mut written = Vec::new();
            let present = part.write_bytes(value, &mut written).then_some(written);
            let forms: Vec<_> = absent.into_iter().chain(present).collect();
            keys = keys.iter().flat_map(|key| forms.iter().map(move |form| [&key[..], &form[..]].concat())).collect();
        }
        keys
    }

    /// Returns the key of a request as text: one value for each part, `None` if the request does not have the part.
    pub(super) fn show(&self, request: &RequestView<'_>, tokens: &Tokens<'_>) -> Vec<Option<String>> {
        let shown = |part: &Part| match part.read(request, tokens) {
            Value::Absent => None,
            Value::Text(value) => Some(shown(&value)),
            Value::Address(IpAddr::V4(address), _) => Some(address.to_string()),
            Value::Address(IpAddr::V6(address), prefix) => Some(masked(address, prefix).to_string()),
        };
        self.parts.iter().map(shown).collect()
    }
}

/// Returns a key in bytes as text, as [`KeySpec::show`] returns the key of a request. Only the hash of a long value is
/// known.
pub(super) fn show_bytes(mut key: &[u8]) -> Vec<Option<String>> {
    let mut take = |count: usize| {
        let (taken, rest) = key.split_at_checked(count)?;
        key = rest;
        Some(taken)
    };
    let mut parts = Vec::new();
    while let Some(&[kind]) = take(1) {
        parts.push(match kind {
            PLAIN => {
                let length = take(1).map_or(0, |length| usize::from(length[0]));
                take(length).map(shown)
            }
            DIGEST => take(32).map(|digest| in_hex("sha256:", digest)),
            IPV4 => take(4).and_then(|octets| <[u8; 4]>::try_from(octets).ok()).map(|it| IpAddr::from(it).to_string()),
            IPV6 => {
                take(16).and_then(|octets| <[u8; 16]>::try_from(octets).ok()).map(|it| IpAddr::from(it).to_string())
            }
            _ => None,
        });
    }
    parts
}

/// Returns a value as text. Values that are not UTF-8 are shown in hexadecimal digits, so that they differ. A
/// client can also send this text.
fn shown(value: &[u8]) -> String {
    str::from_utf8(value).map_or_else(|_| in_hex("bytes:", value), str::to_owned)
}

fn in_hex(start: &str, bytes: &[u8]) -> String {
    bytes.iter().fold(start.to_owned(), |mut text, byte| {
        text.extend([byte >> 4, byte & 15].map(|half| char::from_digit(half.into(), 16).unwrap_or('0')));
        text
    })
}

/// The first bytes of the hash of the parts in a form that must never change: stores contain it.
fn identity(parts: &[Part]) -> [u8; 16] {
    let mut form = Vec::new();
    for part in parts {
        part.write_form(&mut form);
    }
    let digest = Sha256::digest(&form);
    std::array::from_fn(|index| digest[index])
}

impl Part {
    /// Appends what the part reads: its kind, and each name with its length.
    fn write_form(&self, to: &mut Vec<u8>) {
        let mut write = |kind: u8, names: &[&str], options: &[u8]| {
            to.push(kind);
            for name in names {
                to.extend_from_slice(&(name.len() as u64).to_be_bytes());
                to.extend_from_slice(name.as_bytes());
            }
            to.extend_from_slice(options);
        };
        match self {
            Self::Header(name) => write(1, &[name.as_str()], &[]),
            Self::ClientIp { trusted_hops, ipv6_prefix } => write(2, &[], &[*trusted_hops, *ipv6_prefix]),
            Self::Cookie(name) => write(3, &[name], &[]),
            Self::Query(name) => write(4, &[name], &[]),
            Self::PathSegment(number) => write(5, &[], &[*number]),
            Self::Host => write(6, &[], &[]),
            Self::Method => write(7, &[], &[]),
            Self::JwtClaim { header, claim } => write(8, &[header.as_str(), claim], &[]),
            Self::Descriptor(key) => write(9, &[key], &[]),
            Self::Path => write(10, &[], &[]),
        }
    }

    #[inline]
    fn write(&self, request: &RequestView<'_>, tokens: &Tokens<'_>, to: &mut Vec<u8>) {
        match self {
            // A header is the most common part. Writing it directly avoids an intermediate `Value`.
            Self::Header(name) => match request.headers().get(name) {
                Some(value) => write_value(value, to),
                None => to.push(ABSENT),
            },
            Self::ClientIp { trusted_hops, ipv6_prefix } => {
                write_address(request.client_ip(*trusted_hops), *ipv6_prefix, to);
            }
            other => match other.read(request, tokens) {
                Value::Absent => to.push(ABSENT),
                Value::Text(value) => write_value(&value, to),
                Value::Address(address, ipv6_prefix) => write_address(address, ipv6_prefix, to),
            },
        }
    }

    fn read<'a>(&self, request: &'a RequestView<'_>, tokens: &Tokens<'_>) -> Value<'a> {
        match self {
            Self::Header(name) => Value::text(request.headers().get(name)),
            Self::ClientIp { trusted_hops, ipv6_prefix } => {
                Value::Address(request.client_ip(*trusted_hops), *ipv6_prefix)
            }
            Self::Cookie(name) => Value::text(cookie(request, name)),
            Self::Query(name) => request.query(name.as_bytes()).next().map_or(Value::Absent, Value::Text),
            Self::PathSegment(number) => {
                let segments = request.path().strip_prefix('/').unwrap_or_default().split('/');
                let segment = segments.filter(|segment| !segment.is_empty()).nth(usize::from(*number) - 1);
                Value::text(segment.map(str::as_bytes))
            }
            Self::Path => {
                let path = request.path();
                // Globs and apps read a path with a final slash as the path without it.
                let plain = path.strip_suffix('/').filter(|plain| !plain.is_empty());
                Value::text(Some(plain.unwrap_or(path).as_bytes()))
            }
            Self::Host => {
                let host = request.host();
                if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
                    Value::Text(Cow::Owned(host.to_ascii_lowercase().into_bytes()))
                } else {
                    Value::text(Some(host.as_bytes()).filter(|host| !host.is_empty()))
                }
            }
            Self::Method => Value::text(Some(request.method().as_bytes())),
            Self::Descriptor(key) => {
                let entry = request.descriptor().iter().find(|(entry, _)| *entry == &**key);
                Value::text(entry.map(|(_, value)| value.as_bytes()))
            }
            Self::JwtClaim { header, claim } => match tokens.claim(request, header, claim) {
                Some(claim) => Value::Text(Cow::Owned(claim.into_bytes())),
                None => Value::Absent,
            },
        }
    }

    /// Appends the value that an override specifies for this part. An error explains why the value is invalid.
    pub(super) fn write_named(&self, value: &str, to: &mut Vec<u8>) -> Result<(), InvalidValue> {
        let normal = self.named().normal(value)?;
        match self {
            Self::ClientIp { ipv6_prefix, .. } => {
                write_address(normal.parse().map_err(|_| InvalidValue::Address)?, *ipv6_prefix, to);
            }
            _ => write_value(normal.as_bytes(), to),
        }
        Ok(())
    }

    /// Appends the value of this part in a key. A value that is not UTF-8 is the value of a request. Returns false if no
    /// request has the value.
    fn write_bytes(&self, value: &[u8], to: &mut Vec<u8>) -> bool {
        match (str::from_utf8(value), self) {
            (Ok(text), _) => return self.write_named(text, to).is_ok(),
            (Err(_), Self::Header(_) | Self::Query(_)) => write_value(value, to),
            (Err(_), Self::Cookie(_)) => write_value(cookie_value(value), to),
            (Err(_), _) => return false,
        }
        true
    }

    fn named(&self) -> NamedPart {
        match self {
            Self::Header(_) | Self::Query(_) | Self::JwtClaim { .. } | Self::Descriptor(_) => NamedPart::Text,
            Self::Cookie(_) => NamedPart::Cookie,
            Self::ClientIp { ipv6_prefix, .. } => NamedPart::Address { ipv6_prefix: *ipv6_prefix },
            Self::PathSegment(_) => NamedPart::Segment,
            Self::Path => NamedPart::Path,
            Self::Host => NamedPart::Host,
            Self::Method => NamedPart::Method,
        }
    }
}

impl<'a> Value<'a> {
    fn text(value: Option<&'a [u8]>) -> Self {
        value.map_or(Self::Absent, |value| Self::Text(Cow::Borrowed(value)))
    }
}

/// Returns the value of the first cookie of this name (RFC 6265 section 5.4: `name=value` pairs separated by `;`). Apps
/// ignore blanks around the name and the value, and quotation marks around the value, so they must not change the key.
fn cookie<'a>(request: &RequestView<'a>, name: &str) -> Option<&'a [u8]> {
    let pairs = request.headers().all(&COOKIE).flat_map(|line| line.split(|byte| *byte == b';'));
    let mut named = pairs.filter_map(|pair| {
        let (known, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        (known.trim_ascii() == name.as_bytes()).then_some(&value[1..])
    });
    named.next().map(cookie_value)
}

fn write_value(value: &[u8], to: &mut Vec<u8>) {
    match u8::try_from(value.len()) {
        Ok(length) if value.len() <= LONGEST_PLAIN => {
            to.extend_from_slice(&[PLAIN, length]);
            to.extend_from_slice(value);
        }
        _ => write_digest(value, to),
    }
}

#[cold]
fn write_digest(value: &[u8], to: &mut Vec<u8>) {
    to.push(DIGEST);
    to.extend_from_slice(&Sha256::digest(value));
}

fn write_address(address: IpAddr, ipv6_prefix: u8, to: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            to.push(IPV4);
            to.extend(address.octets());
        }
        IpAddr::V6(address) => {
            to.push(IPV6);
            to.extend(masked(address, ipv6_prefix).octets());
        }
    }
}

fn masked(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

#[cfg(test)]
mod tests;
