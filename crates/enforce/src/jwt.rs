//! JSON Web Tokens (RFC 7519): reads and verifies their claims.
//!
//! Without a JWKS, the payload of a token is read without verification. Anyone can create such a token, so a key made
//! of claims is reliable only if a proxy in front verifies the tokens or if the clients can be trusted. With a JWKS
//! (RFC 7517), only the claims of a valid token are used: a key of the set signed the token, and the time is within
//! `nbf` and `exp`. Tokens are not cached: each token is verified for every request, so memory does not grow with the
//! number of clients.

use std::{cell::OnceCell, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderName;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    crypto::rust_crypto,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse},
};
use serde_json::{Map, Value};
use weir_core::Time;

use crate::matching::RequestView;

/// The tolerated difference between the clocks of the issuer and of this program.
const LEEWAY: Duration = Duration::from_secs(60);

/// The maximum number of keys in a set.
const MOST_KEYS: usize = 64;

/// The maximum number of keys with which one token is verified, because anyone can send tokens. A key takes up to a
/// millisecond.
const MOST_TRIED: usize = 8;

type Claims = Map<String, Value>;

/// The keys that verify tokens. With an empty set, no token is valid.
#[derive(Default)]
pub struct Jwks {
    keys: Vec<Key>,
}

struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// The error for a text that is not a valid key set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidJwks {
    /// The text is not JSON, or not a key set.
    #[error("is not a JSON Web Key Set: {0}")]
    Json(#[from] serde_json::Error),
    /// The key at this index is malformed.
    #[error("keys[{0}] cannot be used: {1}")]
    Key(usize, jsonwebtoken::errors::Error),
    /// No key of the set can verify a signature.
    #[error("has no key to verify signatures with: RSA, P-256, P-384, Ed25519 or an octet key with its `alg`")]
    NoKey,
    /// The set has too many keys.
    #[error("has more than {MOST_KEYS} keys: remove keys that no longer sign tokens")]
    TooManyKeys,
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = self.keys.iter().map(|key| (&key.id, &key.algorithms));
        f.debug_list().entries(ids).finish()
    }
}

impl Jwks {
    /// Parses a key set. Keys for encryption and keys of an unknown type are ignored.
    ///
    /// ```
    /// use weir_enforce::{AmbiguousPaths, GateOptions, InvalidJwks, Jwks, LiveRules};
    /// use weir_tower::MonotonicClock;
    ///
    /// let keys = Jwks::parse(r#"{"keys": [{"kty": "oct", "alg": "HS256", "kid": "2025", "k": "c2VjcmV0LXNlY3JldA"}]}"#)?;
    /// let (clock, paths) = (MonotonicClock::start(), AmbiguousPaths::Refuse);
    /// let rules = LiveRules::new(GateOptions { clock, paths, log_keys: false });
    /// rules.verify_with(keys); // from now on, only tokens that this key signed have claims
    /// # Ok::<(), InvalidJwks>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidJwks`], which explains the fault.
    pub fn parse(text: &str) -> Result<Self, InvalidJwks> {
        let set: Value = serde_json::from_str(text)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(InvalidJwks::NoKey)?;
        // Each key is parsed separately, so that a key of an unknown type does not invalidate the whole set.
        let known = listed.iter().enumerate().filter_map(|(index, key)| {
            let one = serde_json::json!({ "keys": [key] });
            let set: JwkSet = serde_json::from_value(one).ok()?;
            Some((index, set.keys.into_iter().next()?))
        });
        let mut keys = Vec::new();
        for (index, jwk) in known {
            let algorithms = algorithms(&jwk);
            if algorithms.is_empty() || jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
                continue;
            }
            let key = DecodingKey::from_jwk(&jwk).map_err(|error| InvalidJwks::Key(index, error))?;
            keys.push(Key { id: jwk.common.key_id, algorithms, key });
        }
        match keys.len() {
            0 => Err(InvalidJwks::NoKey),
            1..=MOST_KEYS => Ok(Self { keys }),
            _ => Err(InvalidJwks::TooManyKeys),
        }
    }

    /// Returns true if the set has no keys, as before its first load.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the claims of a token, if one of the keys signed the token and it is valid now.
    fn verify(&self, token: &[u8], now: Time) -> Option<Claims> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        // `crit` names extensions that the recipient must understand (RFC 7515 section 4.1.11). This program has none.
        if header.crit.is_some() {
            return None;
        }
        let named = self.keys.iter().filter(|key| key.id.is_some() && key.id == header.kid);
        let unnamed = self.keys.iter().filter(|key| key.id.is_none() || header.kid.is_none());
        let mut tried = named.chain(unnamed).filter(|key| key.algorithms.contains(&header.alg)).take(MOST_TRIED);
        let dot = token.iter().rposition(|byte| *byte == b'.')?;
        let (message, signature) = (&token[..dot], URL_SAFE_NO_PAD.decode(&token[dot + 1..]).ok()?);
        // `jsonwebtoken::decode` uses the provider of the process, and panics if a dependency of the program enables another
        // provider.
        let verifier_of = rust_crypto::DEFAULT_PROVIDER.verifier_factory;
        let signed = tried.any(|key| {
            verifier_of(&header.alg, &key.key).is_ok_and(|verifier| verifier.verify(message, &signature).is_ok())
        });
        let claims = if signed { read(token) } else { None };
        claims.filter(|claims| valid_at(claims, now))
    }
}

/// The algorithms that a key may sign with: the algorithm that the key names, or all algorithms of its type. An octet
/// key must name its algorithm.
fn algorithms(jwk: &Jwk) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512};
    let of_kind: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[ES256],
            EllipticCurve::P384 => &[ES384],
            EllipticCurve::P521 | EllipticCurve::Ed25519 => &[],
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDSA],
        AlgorithmParameters::OctetKey(_) if jwk.common.key_algorithm.is_some() => &[HS256, HS384, HS512],
        AlgorithmParameters::OctetKeyPair(_) | AlgorithmParameters::OctetKey(_) => &[],
    };
    match jwk.common.key_algorithm {
        None => of_kind.to_vec(),
        Some(named) => {
            let named = named.to_string().parse::<Algorithm>().ok();
            named.into_iter().filter(|named| of_kind.contains(named)).collect()
        }
    }
}

/// Whether `now` is within `nbf` and `exp`. A date that is not a number makes a token invalid.
fn valid_at(claims: &Claims, now: Time) -> bool {
    let seconds = |time: Time| Duration::from_nanos(time.as_nanos()).as_secs_f64();
    let date = |name| claims.get(name).map(|date| date.as_f64().unwrap_or(f64::NAN));
    let not_over = date("exp").is_none_or(|end| end > seconds(now.saturating_sub(LEEWAY)));
    let begun = date("nbf").is_none_or(|start| start <= seconds(now.saturating_add(LEEWAY)));
    not_over && begun
}

/// Reads the payload of a token without verification.
fn read(token: &[u8]) -> Option<Claims> {
    let mut parts = token.split(|byte| *byte == b'.');
    let (header, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    URL_SAFE_NO_PAD.decode(header).ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// Returns the token in the value of a header, without the scheme `Bearer`.
fn without_scheme(value: &[u8]) -> &[u8] {
    const SCHEME: &[u8] = b"bearer ";
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token.trim_ascii(),
        _ => value.trim_ascii(),
    }
}

/// The tokens of one request. The first token is parsed once for all rules that use it.
pub(super) struct Tokens<'a> {
    jwks: Option<&'a Jwks>,
    now: &'a dyn Fn() -> Time,
    /// Boxed, because few requests have a token.
    first: OnceCell<Box<(HeaderName, Option<Claims>)>>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(jwks: Option<&'a Jwks>, now: &'a dyn Fn() -> Time) -> Self {
        Self { jwks, now, first: OnceCell::new() }
    }

    /// Returns a claim as text, if the claim is a string, a number or a boolean.
    pub(super) fn claim(&self, request: &RequestView<'_>, header: &HeaderName, name: &str) -> Option<String> {
        let first = self.first.get_or_init(|| Box::new((header.clone(), self.claims(request, header))));
        let (read, claims) = &**first;
        if read == header { find(claims.as_ref()?, name) } else { find(&self.claims(request, header)?, name) }
    }

    fn claims(&self, request: &RequestView<'_>, header: &HeaderName) -> Option<Claims> {
        let token = without_scheme(request.headers().get(header)?);
        match self.jwks {
            Some(jwks) => jwks.verify(token, (self.now)()),
            None => read(token),
        }
    }
}

/// Finds a claim. A name such as `a.b` first means a claim with that whole name, because the names of namespaced claims
/// are URLs with dots. If there is no such claim, the name means the claim `b` inside of the object `a`.
fn find(claims: &Claims, name: &str) -> Option<String> {
    match claims.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(Value::Bool(truth)) => Some(truth.to_string()),
        Some(_) => None,
        None => {
            let (outer, inner) = name.split_once('.')?;
            find(claims.get(outer)?.as_object()?, inner)
        }
    }
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
