//! JSON Web Key Sets: a set is refused with a reason that names a key of the set, or its keys verify only tokens that
//! they signed.

use std::net::{IpAddr, Ipv4Addr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::header::AUTHORIZATION;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use weir_core::Time;
use weir_fuzz::{Choices, Target, json::change, mutated};

use crate::{
    jwt::{InvalidJwks, Jwks, Tokens},
    matching::RequestView,
};

const SECRETS: [&[u8]; 2] = [b"a secret of at least thirty-two bytes", b"another secret of thirty-two bytes, too"];

const WORDS: &[&str] = &[
    "keys", "kty", "kid", "alg", "use", "key_ops", "k", "n", "e", "crv", "x", "y", "oct", "RSA", "EC", "OKP", "P-256",
    "P-384", "P-521", "Ed25519", "secp256k1", "HS256", "HS512", "RS256", "ES256", "EdDSA", "none", "sig", "enc",
    "AQAB", "", "!", "AA", "a", "b",
];

#[test]
fn any_key_set_is_refused_or_verifies_what_its_keys_signed() {
    Target::new("jwks").run(300, script);
}

fn set() -> Value {
    let point = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
    let other = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
    json!({"keys": [
        {"kty": "oct", "kid": "a", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(SECRETS[0])},
        {"kty": "oct", "kid": "b", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(SECRETS[1]), "use": "sig"},
        {"kty": "EC", "crv": "P-256", "x": point, "y": other, "kid": "c"},
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "use": "sig"},
        {"kty": "RSA", "n": "u1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gunVTLw7onLRnrq0_IzW7yWR7QkrmBL7jTKEn5u",
         "e": "AQAB", "alg": "RS256"},
        {"kty": "RSA", "n": "u1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gun", "e": "AQAB", "use": "enc"},
    ]})
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let mut value = set();
    while !choices.is_over() {
        let before = value.clone();
        for _ in 0..1 + choices.below(3) {
            change(&mut value, WORDS, &mut choices);
        }
        if choices.rarely(20)
            && let Some(keys) = value.get_mut("keys").and_then(Value::as_array_mut)
            && !keys.is_empty()
        {
            keys.extend(vec![keys[0].clone(); choices.below(80)]);
        }
        check(&value)?;
        let text = mutated(value.to_string().as_bytes(), b"[[[[{}", &mut choices.random());
        // The result for text that is not JSON is not checked: the parser must only not panic.
        let _ = std::str::from_utf8(&text).map(Jwks::parse);
        if value.get("keys").is_none_or(|keys| keys.as_array().is_none_or(|keys| keys.len() > 70)) {
            value = before;
        }
    }
    Ok(())
}

fn check(value: &Value) -> Result<(), String> {
    let listed = value.get("keys").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let parsed = Jwks::parse(&value.to_string());
    for (index, secret) in SECRETS.iter().enumerate() {
        let Ok(keys) = &parsed else { break };
        for kid in [Some("a"), Some("b"), Some("other"), None] {
            let mut header = Header::new(Algorithm::HS256);
            header.kid = kid.map(str::to_owned);
            let token = encode(&header, &json!({"sub": "ann"}), &EncodingKey::from_secret(secret));
            let token = token.map_err(|error| error.to_string())?;
            let request = http::Request::builder().header(AUTHORIZATION, token).body(());
            let request = request.map_err(|error| error.to_string())?;
            let view = RequestView::new(&request, IpAddr::V4(Ipv4Addr::LOCALHOST));
            let found = Tokens::new(Some(keys), &|| Time::from_nanos(0)).claim(&view, &AUTHORIZATION, "sub");
            // A key that the token names comes before the keys without a name. At most eight keys are tried.
            let (named, unnamed): (Vec<_>, Vec<_>) =
                listed.iter().filter(|key| fits(key, kid)).partition(|key| kid.is_some() && key["kid"].is_string());
            let known = named.into_iter().chain(unnamed).take(8).any(|key| contains(key, secret));
            if found.is_some() != known {
                return Err(format!("a token of secret {index} and key {kid:?} is {found:?} with {value}"));
            }
        }
    }
    match parsed {
        Ok(_) if listed.is_empty() => Err(format!("{value} has no keys, and was accepted")),
        Err(InvalidJwks::Key(index, _)) if index >= listed.len() => Err(format!("{value} has no keys[{index}]")),
        Err(InvalidJwks::TooManyKeys) if listed.len() <= 64 => Err(format!("{} keys were too many", listed.len())),
        Err(error) if error.to_string().contains('\n') => Err(format!("{error:?} is more than one line")),
        _ => Ok(()),
    }
}

/// Whether this key of a set contains the secret.
fn contains(key: &Value, secret: &[u8]) -> bool {
    let text = key.get("k").and_then(Value::as_str);
    text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).is_some_and(|it| it == secret)
}

/// Whether this key of a set is for signatures of octet keys, and allows this `kid`.
fn fits(key: &Value, kid: Option<&str>) -> bool {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let is_named = match (kid, key.get("kid")) {
        (Some(kid), Some(Value::String(own))) => kid == own,
        _ => true,
    };
    let is_text = |name: &str| key.get(name).is_none_or(|value| value.is_null() || value.is_string());
    text("kty") == Some("oct")
        && text("k").is_some()
        && text("alg") == Some("HS256")
        && text("use") != Some("enc")
        && ["kid", "use"].into_iter().all(is_text)
        && is_named
        && is_known(key)
}

/// Whether the fields that Weir does not use have the form that RFC 7517 section 4 requires.
fn is_known(key: &Value) -> bool {
    key.get("key_ops").is_none_or(|operations| {
        operations.is_null() || operations.as_array().is_some_and(|list| list.iter().all(Value::is_string))
    })
}
