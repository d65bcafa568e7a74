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
    pub(super) fn named(&self, values: &[String]) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        let is_valid = values.len() == self.parts.len()
            && self.parts.iter().zip(values).all(|(part, value)| part.write_named(value, &mut key).is_ok());
        is_valid.then_some(key)
    }

    /// Returns the keys with these values, one for each part. An empty value also stands for a part that a request does
    /// not have, so each empty value can double the number of keys. Empty if no request has such a key.
    pub(super) fn all_named(&self, values: &[String]) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (values.len() == self.parts.len()).then(Vec::new).into_iter().collect();
        for (part, value) in self.parts.iter().zip(values) {
            let absent = value.is_empty().then(|| vec![ABSENT]);
            let mut written = Vec::new();
            let present = part.write_named(value, &mut written).is_ok().then_some(written);
            let forms: Vec<_> = absent.into_iter().chain(present).collect();
            keys = keys.iter().flat_map(|key| forms.iter().map(move |form| [&key[..], &form[..]].concat())).collect();
        }
        keys
    }

    /// Returns the key of a request as text: one value for each part, `None` if the request does not have the part.
    pub(super) fn show(&self, request: &RequestView<'_>, tokens: &Tokens<'_>) -> Vec<Option<String>> {
        let shown = |part: &Part| match part.read(request, tokens) {
            Value::Absent => None,
            Value::Text(value) => Some(String::from_utf8_lossy(&value).into_owned()),
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
                take(length).map(|value| String::from_utf8_lossy(value).into_owned())
            }
            DIGEST => take(32).map(|digest| {
                digest.iter().fold(String::from("sha256:"), |mut text, byte| {
                    text.extend([byte >> 4, byte & 15].map(|half| char::from_digit(half.into(), 16).unwrap_or('0')));
                    text
                })
            }),
            IPV4 => take(4).and_then(|octets| <[u8; 4]>::try_from(octets).ok()).map(|it| IpAddr::from(it).to_string()),
            IPV6 => {
                take(16).and_then(|octets| <[u8; 16]>::try_from(octets).ok()).map(|it| IpAddr::from(it).to_string())
            }
            _ => None,
        });
    }
    parts
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
mod tests {
    use std::collections::HashSet;

    use http::{HeaderMap, Method};
    use proptest::prelude::*;
    use weir_core::Time;

    use super::*;
    use crate::matching::{Headers, HostPattern, respell};

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
        let mut request = http::Request::new(());
        *request.headers_mut() = headers.clone();
        of_request(spec, &request, peer).0
    }

    fn of_request(spec: &KeySpec, request: &http::Request<()>, peer: &str) -> (Vec<u8>, Vec<Option<String>>) {
        let view = RequestView::new(request, peer.parse().unwrap());
        let now = || Time::from_nanos(0);
        let tokens = Tokens::new(None, &now);
        let mut key = Vec::new();
        spec.write(&view, &tokens, &mut key);
        (key, spec.show(&view, &tokens))
    }

    #[test]
    fn parts_are_read_in_their_normal_form() {
        let authorization = http::header::AUTHORIZATION;
        for (part, uri, fields, expected) in [
            (Part::Cookie("id".into()), "/", vec![("cookie", "a=1; id=ann; id=bob")], Some("ann")),
            (Part::Cookie("id".into()), "/", vec![("cookie", "xid=1"), ("cookie", "id=a=b")], Some("a=b")),
            (Part::Cookie("id".into()), "/", vec![("cookie", "id")], None),
            (Part::Cookie("id".into()), "/", vec![("cookie", "=id; id \t= ann ;id=bob")], Some("ann")),
            (Part::Cookie("id".into()), "/", vec![("cookie", "id = \"ann\"")], Some("ann")),
            (Part::Cookie("id".into()), "/", vec![("cookie", "id=\"")], Some("\"")),
            (Part::Query("user".into()), "/?a=1&user=a%20b&user=c", vec![], Some("a b")),
            (Part::Query("user".into()), "/", vec![], None),
            (Part::PathSegment(2), "/api//%6frders/7", vec![], Some("orders")),
            (Part::PathSegment(2), "/api/", vec![], None),
            (Part::PathSegment(1), "/", vec![], None),
            (Part::Path, "/", vec![], Some("/")),
            (Part::Path, "//", vec![], Some("/")),
            (Part::Path, "/api//%6frders/x/../7?a=b", vec![], Some("/api/orders/7")),
            (Part::Path, "/api/orders/", vec![], Some("/api/orders")),
            (Part::Path, "/api%2forders", vec![], Some("/api%2Forders")),
            (Part::Path, "/API", vec![], Some("/API")),
            (Part::Path, "http://shop/a", vec![], Some("/a")),
            (Part::Host, "/", vec![("host", "Shop.Example.com:80")], Some("shop.example.com")),
            (Part::Host, "/", vec![], None),
            (Part::Method, "/", vec![], Some("GET")),
            (
                Part::JwtClaim { header: authorization.clone(), claim: "sub".into() },
                "/",
                vec![("authorization", "Bearer e30.eyJzdWIiOiJhbm4ifQ.")],
                Some("ann"),
            ),
            (Part::JwtClaim { header: authorization, claim: "sub".into() }, "/", vec![], None),
        ] {
            let mut request = http::Request::builder().uri(uri);
            for (name, value) in fields {
                request = request.header(name, value);
            }
            let (key, shown) = of_request(&KeySpec::new(vec![part.clone()]), &request.body(()).unwrap(), "::1");
            assert_eq!(shown, [expected.map(str::to_owned)], "{part:?} {uri}");
            let mut named = Vec::new();
            match expected {
                Some(expected) => part.write_named(expected, &mut named).unwrap(),
                None => named.push(ABSENT),
            }
            assert_eq!(key, named, "{part:?} {uri}");
        }
    }

    /// Stores contain these hashes, so they must never change.
    #[test]
    fn hashes_in_stores_depend_on_the_parts() {
        let hash = |parts: Vec<Part>, key: &[u8]| KeySpec::new(parts).hash(key);
        assert_eq!(hash(vec![], b""), 0xe3b0_c442_98fc_1c14_9afb_f4c8_996f_b924, "a rule without a key");
        assert_eq!(hash(vec![Part::Header(name(0))], b"a"), 0x9b7c_2216_b238_8dab_8d55_15ce_8e2d_3c11);
        let address = |trusted_hops, ipv6_prefix| Part::ClientIp { trusted_hops, ipv6_prefix };
        let claim = |header: usize, claim: &str| Part::JwtClaim { header: name(header), claim: claim.into() };
        for (parts, expected) in [
            (vec![address(1, 64)], 0x2a98_4a6d_4fe4_af84_1417_c367_9021_d08e),
            (vec![Part::Cookie("x-0".into())], 0xb56e_69b9_8509_eda4_ccac_1a7f_cfc6_8c39),
            (vec![Part::Query("x-0".into())], 0x793f_a156_173b_8d82_16b2_c09c_7ed7_d13a),
            (vec![Part::PathSegment(2)], 0x4196_e12e_310e_671b_dc16_240e_83d4_d34f),
            (vec![Part::Host], 0xa30d_0341_076e_a1f0_7c20_2cb4_31c4_7dc1),
            (vec![Part::Method], 0x6297_6d2c_40ee_3797_3f5b_fb1a_dc55_9751),
            (vec![claim(0, "a")], 0x5747_057f_9fd4_1e1e_6f5d_692b_9908_60a9),
            (vec![Part::Descriptor("x-0".into())], 0xfeca_303d_8d3e_25ef_379a_3a25_8a42_1a38),
            (vec![Part::Header(name(0)), Part::Method], 0xd42b_5a03_d7c4_1262_fa62_f86b_230e_00cb),
        ] {
            assert_eq!(hash(parts.clone(), b"a"), expected, "{parts:?}");
        }
        let specs = [
            vec![Part::Header(name(0))],
            vec![Part::Header(name(1))],
            vec![Part::Header(name(0)), Part::Header(name(1))],
            vec![Part::Header(name(1)), Part::Header(name(0))],
            vec![address(0, 64)],
            vec![address(1, 64)],
            vec![address(0, 65)],
            vec![Part::Cookie("x-0".into())],
            vec![Part::Cookie("X-0".into())],
            vec![Part::Query("x-0".into())],
            vec![Part::Descriptor("x-0".into())],
            vec![Part::PathSegment(1)],
            vec![Part::PathSegment(2)],
            vec![Part::Path],
            vec![Part::Host],
            vec![Part::Method],
            vec![claim(0, "a")],
            vec![claim(0, "b")],
            vec![claim(1, "a")],
        ];
        let hashes: HashSet<u128> = specs.iter().map(|parts| hash(parts.clone(), b"a")).collect();
        assert_eq!(hashes.len(), specs.len());
    }

    /// The hashes in stores are those of these bytes.
    #[test]
    fn values_have_the_bytes_that_stores_know() {
        let named = |part: Part, value: &str| {
            let mut key = Vec::new();
            part.write_named(value, &mut key).unwrap();
            key.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
        };
        let address = || Part::ClientIp { trusted_hops: 0, ipv6_prefix: 36 };
        let header = || Part::Header(name(0));
        for (part, value, expected) in [
            (header(), "ann", "0103616e6e"),
            (header(), "", "0100"),
            (header(), &"a".repeat(65), "02635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"),
            (address(), "192.0.2.7", "04c0000207"),
            (address(), "2001:db8:ffff::1", "0620010db8f00000000000000000000000"),
        ] {
            assert_eq!(named(part, value), expected, "{value}");
        }
        assert_eq!(key(&KeySpec::new(vec![header()]), &HeaderMap::new(), "::1"), [0], "an absent header");
    }

    #[test]
    fn a_method_has_one_key_in_any_case() {
        let key = |method: &str| {
            let request = http::Request::builder().method(method).uri("/").body(()).unwrap();
            of_request(&KeySpec::new(vec![Part::Method]), &request, "::1").0
        };
        assert!(key("gEt") == key("GET") && key("purge") == key("PURGE") && key("GET") != key("PURGE"));
    }

    #[test]
    fn values_that_no_request_can_have_are_refused() {
        for (part, value) in [
            (Part::PathSegment(1), ""),
            (Part::PathSegment(1), "a/b"),
            (Part::Path, "a"),
            (Part::Path, "/a/.."),
            (Part::Host, "*.example.com"),
            (Part::Host, "example.com:80"),
            (Part::Host, ""),
            (Part::Method, "get"),
            (Part::Method, ""),
        ] {
            assert!(part.write_named(value, &mut Vec::new()).is_err(), "{part:?} {value}");
        }
        let mut named = Vec::new();
        Part::Host.write_named("Shop.Example.com.", &mut named).unwrap();
        let mut same = Vec::new();
        Part::Host.write_named("shop.example.com", &mut same).unwrap();
        assert_eq!(named, same);
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

    /// A request has each part with a value, with an empty value, or not at all.
    #[test]
    fn an_empty_value_stands_for_empty_and_for_absent_parts() {
        let spec = KeySpec::new((0..3).map(|index| Part::Header(name(index))).collect());
        let forms = |value: &str| match value {
            "" => vec![None, Some(Vec::new())],
            _ => vec![Some(value.as_bytes().to_vec())],
        };
        for values in [["", "", ""], ["", "a", ""], ["a", "", "b"], ["a", "b", "c"]] {
            let mut expected = HashSet::new();
            for first in forms(values[0]) {
                for second in forms(values[1]) {
                    for third in forms(values[2]) {
                        expected.insert(key(&spec, &headers(&[first.clone(), second.clone(), third]), "::1"));
                    }
                }
            }
            let named = spec.all_named(&values.map(str::to_owned));
            assert_eq!(named.len(), expected.len(), "{values:?}");
            assert_eq!(named.into_iter().collect::<HashSet<_>>(), expected, "{values:?}");
        }
        let of_host = KeySpec::new(vec![Part::Host, Part::Header(name(0))]);
        let absent = |value: &[u8]| [&[ABSENT][..], value].concat();
        let empty = [String::new(), String::new()];
        assert_eq!(of_host.all_named(&empty), [absent(&[ABSENT]), absent(&[PLAIN, 0])], "no request has an empty host");
        assert!(of_host.all_named(&["*.a".to_owned(), String::new()]).is_empty());
        assert!(of_host.all_named(&empty[..1]).is_empty());
    }

    /// The key of a request with this value, by the functions that read requests. `None` if no request can have it.
    fn as_in_requests(part: &Part, value: &str) -> Option<Vec<u8>> {
        let mut key = Vec::new();
        match part {
            Part::ClientIp { ipv6_prefix, .. } => {
                write_address(value.parse::<IpAddr>().ok()?.to_canonical(), *ipv6_prefix, &mut key);
            }
            Part::PathSegment(_) if value.is_empty() || value.contains('/') => return None,
            Part::PathSegment(_) => {
                let mut spelled = String::new();
                respell(value, &mut spelled);
                write_value(spelled.as_bytes(), &mut key);
            }
            Part::Path => {
                let mut spelled = String::new();
                respell(value, &mut spelled);
                let has_dots = spelled.split('/').any(|segment| matches!(segment, "." | ".."));
                if !value.starts_with('/') || has_dots {
                    return None;
                }
                let (headers, now) = (HeaderMap::new(), || Time::from_nanos(0));
                let peer = IpAddr::from([192, 0, 2, 1]);
                let view = RequestView::of_target("GET", (value, None), Headers::Map(&headers), peer);
                part.write(&view, &Tokens::new(None, &now), &mut key);
            }
            Part::Host => match value.parse().ok()? {
                HostPattern::Exact(host) => write_value(host.to_ascii_lowercase().as_bytes(), &mut key),
                HostPattern::Below(_) => return None,
            },
            Part::Method => {
                Method::from_bytes(value.as_bytes()).ok().filter(|_| value.to_uppercase() == value)?;
                write_value(value.as_bytes(), &mut key);
            }
            _ => write_value(value.as_bytes(), &mut key),
        }
        Some(key)
    }

    fn named_value() -> impl Strategy<Value = String> {
        const PIECES: &[&str] = &[
            "a", "A", "b", "%61", "%2f", "%2F", "%4", "%", "/", ".", "..", "*", ":", ":80", "[", "]", "[::1]", "::",
            "1", "0", "10.0.0.1", "::ffff:", "2001:db8", "@", "_", "-", " ", "\t", "\u{e9}", "GET", "G", "~", "!",
            "\"", "#", "\0",
        ];
        let pieces = prop::collection::vec(prop::sample::select(PIECES), 0..4).prop_map(|pieces| pieces.concat());
        prop_oneof![8 => pieces, 1 => Just("a".repeat(253)), 1 => Just("a".repeat(254)), 1 => any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn overrides_name_the_keys_of_requests(value in named_value()) {
            let address = |ipv6_prefix| Part::ClientIp { trusted_hops: 0, ipv6_prefix };
            let parts =
                [address(1), address(64), address(128), Part::PathSegment(1), Part::Path, Part::Host, Part::Method];
            for part in parts.into_iter().chain([Part::Header(name(0)), Part::Descriptor("d".into())]) {
                let mut key = Vec::new();
                let named = part.write_named(&value, &mut key).ok().map(|()| key);
                prop_assert_eq!(named, as_in_requests(&part, &value), "{:?}", &part);
            }
        }
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
