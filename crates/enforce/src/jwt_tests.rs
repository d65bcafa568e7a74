use std::net::{IpAddr, Ipv4Addr};

use http::header::AUTHORIZATION;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const NOW: Time = Time::from_nanos(1_700_000_000_000_000_000);

fn claim(jwks: Option<&Jwks>, token: &str, name: &str) -> Option<String> {
    let request = http::Request::builder().header("authorization", token).body(()).expect("a request");
    let view = RequestView::new(&request, IpAddr::V4(Ipv4Addr::LOCALHOST));
    Tokens::new(jwks, &|| NOW).claim(&view, &AUTHORIZATION, name)
}

fn unsigned(payload: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.", part(&json!({"alg": "none"})), part(payload))
}

fn signed(header: &Header, secret: &[u8], payload: &Value) -> String {
    encode(header, payload, &EncodingKey::from_secret(secret)).expect("signed")
}

fn octet(id: &str, secret: &[u8]) -> Value {
    json!({"kty": "oct", "kid": id, "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)})
}

#[test]
fn claims_are_texts_numbers_and_truth_values() {
    let payload = json!({
        "sub": "ann", "tier": 3, "admin": true, "groups": ["a"], "org": {"name": "shop", "unit": {"id": 7}},
        "https://weir.dev/tenant": "t1", "empty": "",
    });
    let token = unsigned(&payload);
    for (name, expected) in [
        ("sub", Some("ann")),
        ("tier", Some("3")),
        ("admin", Some("true")),
        ("groups", None),
        ("org", None),
        ("org.name", Some("shop")),
        ("org.unit.id", Some("7")),
        ("org.unit.none", None),
        ("https://weir.dev/tenant", Some("t1")),
        ("empty", Some("")),
        ("absent", None),
    ] {
        for value in [token.clone(), format!("Bearer {token}"), format!("bearer  {token}")] {
            assert_eq!(claim(None, &value, name).as_deref(), expected, "{name}");
        }
    }
    for nonsense in ["", "Bearer", "a.b", "a.!!!.c", "..", &format!("Basic {token}")] {
        assert_eq!(claim(None, nonsense, "sub"), None, "{nonsense}");
    }
}

#[test]
fn with_keys_only_what_they_signed_counts() {
    let jwks = Jwks::parse(&json!({"keys": [octet("a", b"one"), octet("b", b"two")]}).to_string()).expect("keys");
    let payload = json!({"sub": "ann"});
    let header = |id: Option<&str>| Header { kid: id.map(str::to_owned), ..Header::default() };
    for (token, expected) in [
        (signed(&header(Some("a")), b"one", &payload), Some("ann")),
        (signed(&header(Some("b")), b"two", &payload), Some("ann")),
        (signed(&header(None), b"two", &payload), Some("ann")),
        (signed(&header(Some("a")), b"two", &payload), None),
        (signed(&header(Some("c")), b"one", &payload), None),
        (signed(&Header { alg: Algorithm::HS512, ..header(Some("a")) }, b"one", &payload), None),
        (signed(&header(Some("a")), b"three", &payload), None),
        (signed(&Header { crit: Some(vec!["exp".to_owned()]), ..header(Some("a")) }, b"one", &payload), None),
        (unsigned(&payload), None),
    ] {
        assert_eq!(claim(Some(&jwks), &token, "sub").as_deref(), expected, "{token}");
    }
}

/// Anyone can send tokens, and each key takes CPU time.
#[test]
fn a_token_is_verified_with_few_keys() {
    let payload = json!({"sub": "ann"});
    let secret = |index: usize| format!("secret {index}").into_bytes();
    let set = |unnamed: usize| {
        let key = |index: usize| {
            let mut key = octet(&index.to_string(), &secret(index));
            if index < unnamed {
                key["kid"] = Value::Null;
            }
            key
        };
        let keys: Vec<Value> = (0..20).map(key).collect();
        Jwks::parse(&json!({ "keys": keys }).to_string()).expect("keys")
    };
    let valid = |jwks: &Jwks, kid: Option<&str>| -> Vec<usize> {
        let header = Header { kid: kid.map(str::to_owned), ..Header::default() };
        let is_valid = |index: usize| claim(Some(jwks), &signed(&header, &secret(index), &payload), "sub").is_some();
        (0..20).filter(|index| is_valid(*index)).collect()
    };
    assert_eq!(valid(&set(0), None), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(valid(&set(0), Some("19")), [19]);
    assert_eq!(valid(&set(19), Some("19")), [0, 1, 2, 3, 4, 5, 6, 19]);
}

#[test]
fn a_token_counts_between_its_dates() {
    let jwks = Jwks::parse(&json!({"keys": [octet("a", b"one")]}).to_string()).expect("keys");
    let now = 1_700_000_000;
    for (dates, valid) in [
        (json!({"exp": now + 1}), true),
        (json!({"exp": now - 59}), true),
        (json!({"exp": now - 61}), false),
        (json!({"nbf": now + 59}), true),
        (json!({"nbf": now + 61}), false),
        (json!({"exp": "never"}), false),
        (json!({"nbf": null}), false),
    ] {
        let mut payload = json!({"sub": "ann"});
        payload.as_object_mut().expect("an object").extend(dates.as_object().expect("an object").clone());
        let token = signed(&Header::default(), b"one", &payload);
        assert_eq!(claim(Some(&jwks), &token, "sub").is_some(), valid, "{dates}");
    }
}

/// The example token of RFC 7515, appendix A.3, is verified. Another implementation signed it with ES256.
#[test]
fn a_token_of_the_rfc_is_verified() {
    let key = json!({
        "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    });
    let unknown = json!({"kty": "post-quantum", "kid": "later"});
    let jwks = Jwks::parse(&json!({"keys": [unknown, key]}).to_string()).expect("keys");
    let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9p\
                 c19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg\
                 6NU1Q";
    let then = Time::from_nanos(1_300_819_380_000_000_000);
    let claims = jwks.verify(token.as_bytes(), then).expect("a signed token that has not expired");
    assert_eq!(find(&claims, "http://example.com/is_root").as_deref(), Some("true"));
    assert!(jwks.verify(token.as_bytes(), NOW).is_none(), "the token has expired");
    let forged = token.replace("eyJpc3Mi", "eyJpc3Mj");
    assert!(jwks.verify(forged.as_bytes(), then).is_none());
}

#[test]
fn what_is_no_key_set_is_refused() {
    for (text, word) in [
        ("", "not a JSON Web Key Set"),
        ("{}", "no key"),
        (r#"{"keys": []}"#, "no key"),
        (r#"{"keys": [{"kty": "oct", "k": "AAAA"}]}"#, "`alg`"),
        (r#"{"keys": [{"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"}]}"#, "no key"),
    ] {
        let invalid = Jwks::parse(text).expect_err(text).to_string();
        assert!(invalid.contains(word), "{text}: {invalid}");
    }
}
