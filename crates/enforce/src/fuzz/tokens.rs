//! JSON Web Tokens. With keys, a changed token has either no claims or the signed claims. Without keys, the claims
//! equal the claims that another parser finds in the payload.

use std::net::{IpAddr, Ipv4Addr};

use base64::{
    Engine,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::URL_SAFE_NO_PAD},
};
use http::{HeaderValue, header::AUTHORIZATION};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use weir_core::Time;
use weir_fuzz::{Choices, Target, json::change, mutated};

use crate::{
    jwt::{Jwks, Tokens},
    matching::RequestView,
};

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";
const SECOND: u64 = 1_700_000_000;

const WORDS: &[&str] =
    &["sub", "exp", "nbf", "a", "b", "a.b", "ann", "1e999", "-1", "", "none", "HS256", "alg", "\u{e4}", "\"", "\\"];

#[test]
fn any_token_has_the_claims_that_were_signed_or_none() {
    Target::new("tokens").run(200, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let set = json!({"keys": [{"kty": "oct", "kid": "k", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(SECRET)}]});
    let keys = Jwks::parse(&set.to_string()).map_err(|error| error.to_string())?;
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("k".to_owned());
    let mut payload =
        json!({"sub": "ann", "tier": 3, "admin": true, "a": {"b": "c"}, "exp": SECOND + 60, "nbf": SECOND});
    while !choices.is_over() {
        let before = payload.clone();
        for _ in 0..choices.below(3) {
            change(&mut payload, WORDS, &mut choices);
        }
        if !payload.is_object() {
            payload = before;
        }
        let token = encode(&header, &payload, &EncodingKey::from_secret(SECRET)).map_err(|error| error.to_string())?;
        let name = *choices.one(&["sub", "tier", "admin", "a.b", "a", "exp", "absent", "", ".", "a.b.c"]);
        // The claims of a signed token are used only while its dates are valid.
        let expected = defined(&payload, name);
        let found = claim(Some(&keys), token.as_bytes(), name);
        let valid = dates_hold(&payload);
        let refused = found.is_none() && is_malformed(&payload);
        if found != expected.clone().filter(|_| valid) && !refused {
            return Err(format!("{name:?} of {payload}, signed, is {found:?}, and should be {expected:?} if {valid}"));
        }
        let changed = mutated(token.as_bytes(), b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ.", &mut choices.random());
        let found = claim(Some(&keys), &changed, name);
        if found.is_some() && found != expected {
            let changed = String::from_utf8_lossy(&changed).into_owned();
            return Err(format!("{name:?} of {changed:?} is {found:?}, but {payload} was signed"));
        }
        unverified(&changed, name)?;
        unverified(token.as_bytes(), name)?;
    }
    Ok(())
}

/// Checks a claim without keys: the middle one of three parts is the payload.
fn unverified(token: &[u8], name: &str) -> Result<(), String> {
    let found = claim(None, token, name);
    let Ok(text) = std::str::from_utf8(token) else { return Ok(()) };
    let parts: Vec<&str> = text.trim_matches([' ', '\t']).split('.').collect();
    // This base64 decoder accepts any padding.
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let other = GeneralPurpose::new(&URL_SAFE, lenient);
    let payload = parts.get(1).filter(|_| parts.len() >= 3).and_then(|part| other.decode(part).ok());
    let payload = payload.and_then(|payload| serde_json::from_slice::<Value>(&payload).ok());
    let expected = payload.and_then(|payload| defined(&payload, name));
    if found.is_some() && found != expected {
        return Err(format!("{name:?} of {text:?} is {found:?}, and should be {expected:?}"));
    }
    Ok(())
}

fn claim(keys: Option<&Jwks>, token: &[u8], name: &str) -> Option<String> {
    let mut request = http::Request::new(());
    request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_bytes(token).ok()?);
    let view = RequestView::new(&request, IpAddr::V4(Ipv4Addr::LOCALHOST));
    Tokens::new(keys, &|| Time::from_nanos(SECOND * 1_000_000_000)).claim(&view, &AUTHORIZATION, name)
}

/// Finds the claim with this name, or the claim at this path through nested objects.
fn defined(payload: &Value, name: &str) -> Option<String> {
    let mut value = payload;
    let mut name = name;
    loop {
        if let Some(found) = value.as_object()?.get(name) {
            return match found {
                Value::String(text) => Some(text.clone()),
                Value::Number(_) | Value::Bool(_) => Some(found.to_string()),
                _ => None,
            };
        }
        let (outer, inner) = name.split_once('.')?;
        (value, name) = (value.get(outer)?, inner);
    }
}

/// Whether a registered claim has a value that RFC 7519 section 4.1 does not allow. The library refuses a token in
/// which such a claim is an array or an object.
fn is_malformed(payload: &Value) -> bool {
    let is_nested = |name: &str| payload.get(name).is_some_and(|value| value.is_array() || value.is_object());
    ["sub", "iss", "aud", "exp", "nbf"].into_iter().any(is_nested)
}

/// Whether the dates are valid, with a minute of tolerance. A date that is not a number is invalid.
fn dates_hold(payload: &Value) -> bool {
    let date = |name: &str| match payload.get(name) {
        None => Ok(None),
        Some(date) => date.as_f64().map(Some).ok_or(()),
    };
    #[expect(clippy::cast_precision_loss, reason = "the seconds of this century are exact")]
    let now = SECOND as f64;
    match (date("exp"), date("nbf")) {
        (Ok(end), Ok(start)) => end.is_none_or(|end| end > now - 60.0) && start.is_none_or(|start| start <= now + 60.0),
        _ => false,
    }
}
