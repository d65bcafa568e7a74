//! Tests that the crypto provider of the process does not matter. A separate test program, because it sets this provider.

use std::convert::Infallible;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use jsonwebtoken::{
    Algorithm, EncodingKey,
    crypto::{CryptoProvider, JwkUtils, rust_crypto},
};
use serde_json::json;
use tower::{Layer, ServiceExt};
use weir_enforce::{AmbiguousPaths, GateOptions, Jwks, LiveRules};
use weir_tower::MonotonicClock;

/// The provider of `jsonwebtoken` in a program whose dependencies enable two of them.
static AMBIGUOUS: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| panic!("no provider"),
    verifier_factory: |_, _| panic!("no provider"),
    jwk_utils: JwkUtils::new_unimplemented(),
};

fn signed(secret: &[u8], subject: &str) -> String {
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(json!({"alg": "HS256"})), part(json!({"sub": subject})));
    let key = EncodingKey::from_secret(secret);
    let signer = (rust_crypto::DEFAULT_PROVIDER.signer_factory)(&Algorithm::HS256, &key).expect("a signer");
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signer.sign(message.as_bytes())))
}

#[tokio::test]
async fn tokens_are_verified_in_a_program_with_two_crypto_providers() {
    AMBIGUOUS.install_default().expect("the first provider");
    let (clock, paths) = (MonotonicClock::start(), AmbiguousPaths::Refuse);
    let rules = LiveRules::new(GateOptions { clock, paths, log_keys: false });
    let secret = b"a secret that the issuer shares with the program";
    let key = json!({"kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)});
    rules.verify_with(Jwks::parse(&json!({"keys": [key]}).to_string()).expect("a key set"));
    let limit = json!({"name": "l", "strategy": "SlidingWindowLog", "requests": 1, "periodMillis": 86_400_000});
    let key = json!([{"jwtClaim": {"header": "authorization", "claim": "sub"}}]);
    let rule = json!({"name": "r", "action": "Limit", "key": key, "limits": [limit]});
    let policy =
        json!({"uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce", "rules": [rule]});
    let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": [policy]});
    rules.apply(serde_json::from_value(snapshot).expect("a snapshot")).expect("no faults");

    let app = tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok"))));
    let service = rules.layer(|_| None).layer(app);
    for (token, expected) in [
        (signed(secret, "ann"), 200),
        (signed(secret, "ann"), 429),
        (signed(secret, "bob"), 200),
        // A forged token has no claims, so its request has the key of all requests without claims.
        (signed(b"another secret, which is not that of the issuer", "cid"), 200),
        (signed(b"another secret, which is not that of the issuer", "dan"), 429),
    ] {
        let request = Request::builder().header("authorization", format!("Bearer {token}")).body(());
        let answer = service.clone().oneshot(request.expect("a request")).await;
        assert_eq!(answer.unwrap_or_else(|never| match never {}).status(), expected, "{token}");
    }
}
