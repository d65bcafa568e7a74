//! Tests rules whose keys are claims of tokens. The keys that verify the tokens are from a file or a URL, and change
//! while the agent runs.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{EncodingKey, Header, encode};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpListener};
use tokio_rustls::TlsAcceptor;

use crate::support::{Agent, App, daily, policy, read_head, rule, snapshot, with};

fn keys(secret: &[u8]) -> String {
    json!({"keys": [{"kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)}]}).to_string()
}

/// A token of this subject that does not expire.
fn token(subject: &str, secret: &[u8]) -> String {
    let claims = json!({"sub": subject, "exp": 32_503_680_000_u64});
    format!("Bearer {}", encode(&Header::default(), &claims, &EncodingKey::from_secret(secret)).expect("signed"))
}

/// Writes a file in one step, because the agent can read it at any time.
fn replace(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).expect("written");
    fs::rename(next, file).expect("renamed");
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
    // A client whose token has no valid signature is counted together with clients without a token.
    assert_eq!(status(&token("cid", b"mine")).await, 200);
    assert_eq!(status(&token("dan", b"mine")).await, 429);
    assert_eq!(status("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ.").await, 429);

    agent.until_metric("weir_jwks_last_load_successful{source=\"file\"}", 1.0).await;
    let failed = "weir_jwks_loads_total{source=\"file\",result=\"failed\"}";
    assert_eq!(agent.metric(failed).await, Some(0.0));
    replace(&file, "{}");
    assert!(agent.logged("--jwks is invalid").await.contains("no key"));
    assert_eq!(agent.metric(failed).await, Some(1.0));
    assert_eq!(agent.metric("weir_jwks_last_load_successful{source=\"file\"}").await, Some(0.0));
    assert_eq!(status(&token("fay", b"first")).await, 200, "the previous keys stay in use");

    replace(&file, &keys(b"second"));
    agent.logged("keys for tokens loaded").await;
    assert_eq!(status(&token("gus", b"second")).await, 200);
    assert_eq!(status(&token("hal", b"first")).await, 429, "a removed key is not accepted");
    agent.apply(&snapshot(2, &[])).await;
}

/// Starts a TLS server for key sets, and returns its URL and its certificate. The server responds with the status and
/// body in `answer`.
async fn issuer(answer: Arc<Mutex<(u16, String)>>) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("the certificate matches the key");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a client");
            // A client that does not trust the certificate disconnects.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let request = read_head(&mut stream).await.expect("a request");
            assert!(request.starts_with("GET /keys?of=shop HTTP/1.1\r\n"), "{request}");
            let (status, body) = answer.lock().expect("not poisoned").clone();
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.expect("sent");
            let _ = stream.shutdown().await;
        }
    });
    (format!("https://localhost:{port}/keys?of=shop"), made.cert.pem())
}

#[tokio::test]
async fn keys_of_a_url_are_fetched_again_and_the_last_good_ones_stay_in_use() {
    let answer = Arc::new(Mutex::new((503, String::new())));
    let say = |status, body: &str| *answer.lock().expect("not poisoned") = (status, body.to_owned());
    let (url, ca) = issuer(Arc::clone(&answer)).await;
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--jwks-url", &url, "--jwks-ca", &ca, "--jwks-refresh", "20ms"]);
    let by_subject = json!({"key": [{"jwtClaim": {"header": "authorization", "claim": "sub"}}]});
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("each", &[daily("d", "TokenBucket", 1)]), by_subject)])])).await;
    let status = async |token: &str| agent.get("/", &[("authorization", token)]).await.status().as_u16();

    let last = async || agent.metric("weir_jwks_last_load_successful{source=\"url\"}").await;
    let count = async |result: &str| {
        agent
            .metric(&format!("weir_jwks_loads_total{{source=\"url\",result=\"{result}\"}}"))
            .await
            .expect("the metric exists")
    };

    // Before there are keys, no token is trusted: all clients share one count.
    assert!(agent.logged("cannot load keys from --jwks-url").await.contains("the response status is 503"));
    assert_eq!([status(&token("ann", b"first")).await, status(&token("bob", b"first")).await], [200, 429]);
    assert_eq!(last().await, Some(0.0));
    assert!(count("failed").await >= 1.0 && count("loaded").await == 0.0);

    say(200, &keys(b"first"));
    agent.logged("keys for tokens loaded").await;
    assert_eq!(last().await, Some(1.0));
    // Loading equal keys also counts.
    while count("loaded").await < 2.0 {}
    assert_eq!([status(&token("ann", b"first")).await, status(&token("ann", b"first")).await], [200, 429]);
    assert_eq!(status(&token("bob", b"first")).await, 200);

    say(200, "{}");
    agent.logged("no key").await;
    say(302, "");
    assert!(agent.logged("302").await.contains("configure the URL that it redirects to"));
    assert_eq!(status(&token("fay", b"first")).await, 200, "the previous keys stay in use");
    assert_eq!(last().await, Some(0.0));

    say(200, &keys(b"second"));
    agent.logged("keys for tokens loaded").await;
    assert_eq!(status(&token("gus", b"second")).await, 200);
    assert_eq!(status(&token("hal", b"first")).await, 429, "a removed key is not accepted");
}

#[tokio::test]
async fn keys_of_an_untrusted_server_are_not_used() {
    let (url, _) = issuer(Arc::new(Mutex::new((200, keys(b"first"))))).await;
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate").cert.pem();
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--jwks-url", &url, "--jwks-ca", &other, "--jwks-refresh", "20ms"]);
    assert!(agent.logged("cannot load keys from --jwks-url").await.contains("certificate"));
}
