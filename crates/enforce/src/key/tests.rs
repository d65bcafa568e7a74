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
        assert_eq!(key(&spec(prefix), &none, one) == key(&spec(prefix), &none, other), same, "{one} {other} /{prefix}");
    }
}

#[test]
fn an_override_names_the_key_that_a_request_has() {
    let parts = vec![Part::Header(name(0)), Part::ClientIp { trusted_hops: 0, ipv6_prefix: 64 }];
    let long = "k".repeat(100);
    for (value, address, peer) in [("gold", "192.0.2.7", "::ffff:192.0.2.7"), (&long, "2001:db8::", "2001:db8::9")] {
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

#[test]
fn a_value_that_is_not_utf8_names_the_key_of_a_request() {
    let spec = KeySpec::new(vec![Part::Header(name(0)), Part::Cookie("c".into()), Part::Query("q".into())]);
    let mut request = http::Request::new(());
    let value = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
    request.headers_mut().append(name(0), value(b"caf\xe9"));
    request.headers_mut().append(COOKIE, value(b"c=\"\xff\""));
    *request.uri_mut() = "/?q=%FE%2B".parse().unwrap();
    let (key, shown) = of_request(&spec, &request, "::1");
    let values: [&[u8]; 3] = [b"caf\xe9", b" \"\xff\"", b"\xfe+"];
    assert_eq!(spec.named(&values).as_ref(), Some(&key));
    assert_eq!(spec.all_named(&values), std::slice::from_ref(&key));
    let texts = ["bytes:636166e9", "bytes:ff", "bytes:fe2b"].map(|text| Some(text.to_owned()));
    assert_eq!((&shown[..], &show_bytes(&key)[..]), (&texts[..], &texts[..]));
    assert_eq!(KeySpec::new(vec![Part::Path]).named(&[b"/\xe9"]), None, "a path is text");
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
        "a", "A", "b", "%61", "%2f", "%2F", "%4", "%", "/", ".", "..", "*", ":", ":80", "[", "]", "[::1]", "::", "1",
        "0", "10.0.0.1", "::ffff:", "2001:db8", "@", "_", "-", " ", "\t", "\u{e9}", "GET", "G", "~", "!", "\"", "#",
        "\0",
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
