//! Keys from the claims of tokens, verified with a file of keys that changes while the agent runs.

use std::fs;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use crate::support::{Agent, App, daily, policy, rule, snapshot, with};

fn keys(secret: &[u8]) -> String {
    json!({"keys": [{"kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)}]}).to_string()
}

/// A token of this subject, without an end.
fn token(subject: &str, secret: &[u8]) -> String {
    let claims = json!({"sub": subject, "exp": 32_503_680_000_u64});
    format!("Bearer {}", encode(&Header::default(), &claims, &EncodingKey::from_secret(secret)).expect("signed"))
}

#[tokio::test]
async fn only_tokens_that_the_keys_have_signed_have_claims() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("keys.json");
    fs::write(&file, keys(b"first")).expect("written");
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--jwks", file.to_str().expect("text")]);
    let by_subject = json!({"key": [{"jwtClaim": {"header": "authorization", "claim": "sub"}}]});
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("each", &[daily("d", "TokenBucket", 1)]), by_subject)])])).await;
    let status = async |token: &str| agent.get("/", &[("authorization", token)]).await.status().as_u16();

    assert_eq!([status(&token("ann", b"first")).await, status(&token("ann", b"first")).await], [200, 429]);
    assert_eq!(status(&token("bob", b"first")).await, 200);
    // Whoever signs for himself, or not at all, is counted with those who have no token.
    assert_eq!(status(&token("cid", b"mine")).await, 200);
    assert_eq!(status(&token("dan", b"mine")).await, 429);
    assert_eq!(status("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ.").await, 429);

    fs::write(&file, "{}").expect("written");
    assert!(agent.logged("--jwks rejected").await.contains("no key"));
    assert_eq!(status(&token("fay", b"first")).await, 200, "the keys from before stay in use");

    fs::write(&file, keys(b"second")).expect("written");
    agent.logged("keys for tokens loaded").await;
    assert_eq!(status(&token("gus", b"second")).await, 200);
    assert_eq!(status(&token("hal", b"first")).await, 429, "a key that is gone signs no more");
    agent.apply(&snapshot(2, &[])).await;
}
