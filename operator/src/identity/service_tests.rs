use std::{future::pending, net::IpAddr};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tower::{ServiceExt as _, service_fn};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use super::*;
use crate::{
    authority::Authorities,
    identity::{Credentials, keeper},
};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn flags() -> IdentityFlags {
    use clap::Parser;
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: IdentityFlags,
    }
    Command::parse_from(["test", "--identity-url", "https://identity.test"]).flags
}

/// Returns a client of an apiserver that gives this answer to every review.
fn apiserver(status: u16, answer: Value) -> Client {
    let answer = move |request: Request<KubeBody>| {
        let answer = answer.clone();
        async move {
            assert_eq!(request.uri().path(), "/apis/authentication.k8s.io/v1/tokenreviews");
            let sent: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
            assert_eq!(sent["spec"], json!({"token": "token", "audiences": ["weir.dev"]}));
            let body = KubeBody::from(answer.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?)
        }
    };
    Client::new(service_fn(answer), "weir-system")
}

fn review(status: &Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {}, "status": status})
}

fn good() -> Value {
    review(&json!({
        "authenticated": true,
        "audiences": ["weir.dev"],
        "user": {"username": "system:serviceaccount:shop:web", "extra": {
            "authentication.kubernetes.io/pod-name": ["web-1"],
            "authentication.kubernetes.io/pod-uid": ["3f0c"],
        }},
    }))
}

fn credentials() -> Credentials {
    let now = clock::unix_micros() / 1_000_000;
    let authorities = Authorities::none(flags().lifecycle()).renewed(now).unwrap().unwrap();
    keeper::credentials(authorities, "identity.test", 24 * 3600, now).unwrap().0
}

fn service(client: Client, credentials: Option<Credentials>) -> Router {
    let (_, held) = watch::channel(credentials.map(Arc::new));
    router(Arc::new(Service::new(client, &flags(), held, Metrics::default())))
}

/// Returns a certificate request for another pod's name.
fn csr(key: &KeyPair) -> String {
    let params = CertificateParams::new(["other.bank.pod.weir.dev".to_owned()]).unwrap();
    params.serialize_request(key).unwrap().pem().unwrap()
}

async fn ask(router: Router, body: impl Into<Body>) -> (StatusCode, Value) {
    let request = Request::post(IDENTITY_PATH).extension(Arc::new(Connection::of(PEER))).body(body.into()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{body:?}")))
}

fn question(csr: &str) -> String {
    json!({"csr": csr, "token": "token"}).to_string()
}

#[tokio::test]
async fn a_certificate_names_the_tokens_pod_and_ignores_the_requested_name() {
    let key = KeyPair::generate().unwrap();
    let (status, reply) = ask(service(apiserver(201, good()), Some(credentials())), question(&csr(&key))).await;
    assert_eq!(status, 200, "{reply}");
    let reply: IdentityReply = serde_json::from_value(reply).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(reply.certificate.as_bytes()).unwrap();
    let (_, certificate) = X509Certificate::from_der(&pem.contents).unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!(
        names.value.general_names,
        [GeneralName::DNSName("3f0c.shop.pod.weir.dev"), GeneralName::URI("weir://shop/pod/web-1/3f0c")]
    );
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth && !usage.any);
    assert!(!certificate.is_ca());
    assert_eq!(&*certificate.public_key().subject_public_key.data, key.der_bytes());
    let life = certificate.validity().not_after.timestamp() - i64::try_from(clock::unix_micros() / 1_000_000).unwrap();
    assert!((24 * 3600 - 60..=24 * 3600).contains(&life), "{life}");
    assert!(reply.authorities.starts_with("-----BEGIN CERTIFICATE-----"));
}

/// Any pod can send any number of requests.
#[tokio::test]
async fn only_admitted_requests_are_logged() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap())).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let router = service(apiserver(201, good()), Some(credentials()));
    let mut admitted = 0;
    let refused = loop {
        let (status, reply) = ask(router.clone(), "hello").await;
        if status != StatusCode::BAD_REQUEST {
            break (status, reply["error"].clone());
        }
        admitted += 1;
    };
    assert_eq!(refused, (StatusCode::TOO_MANY_REQUESTS, json!("busy")));
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(log.matches("no certificate issued").count(), admitted, "{log}");
}

#[tokio::test]
async fn refused_requests_get_the_reason() {
    let key = KeyPair::generate().unwrap();
    let csr = csr(&key);
    // A request with another key and this signature.
    let mut forged = pem_body(&csr);
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let forged = to_pem(&forged);
    let unreviewed = review(&json!({"authenticated": false, "error": "token has expired"}));
    let of_nobody = review(&json!({"authenticated": true, "audiences": ["weir.dev"],
        "user": {"username": "system:serviceaccount:shop:web"}}));
    let down =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "etcd is away", "code": 500});
    for (what, body, client, expected) in [
        ("no JSON", "hello".to_owned(), apiserver(201, good()), (400, "malformed", "not a request for an identity")),
        ("no CSR", question("hello"), apiserver(201, good()), (400, "malformed", "csr: ")),
        ("forged", question(&forged), apiserver(201, good()), (400, "malformed", "csr: ")),
        (
            "no token",
            json!({"csr": csr, "token": ""}).to_string(),
            apiserver(201, good()),
            (400, "malformed", "token: "),
        ),
        ("too long", "x".repeat(MAX_REQUEST + 1), apiserver(201, good()), (400, "malformed", "length limit")),
        ("refused", question(&csr), apiserver(201, unreviewed), (401, "unauthenticated", "token has expired")),
        ("no pod", question(&csr), apiserver(201, of_nobody), (403, "noPod", "names no pod")),
        ("apiserver", question(&csr), apiserver(500, down), (503, "unavailable", "etcd is away")),
    ] {
        let (status, reply) = ask(service(client, Some(credentials())), body).await;
        let (code, kind, message) = expected;
        assert_eq!((status.as_u16(), reply["error"].as_str().unwrap()), (code, kind), "{what}: {reply}");
        assert!(reply["message"].as_str().unwrap().contains(message), "{what}: {reply}");
    }
    let (status, reply) = ask(service(apiserver(201, good()), None), question(&csr)).await;
    assert_eq!(status, 503, "without an authority: {reply}");
}

#[tokio::test]
async fn frequent_requests_get_a_retry_after() {
    let router = service(apiserver(201, good()), Some(credentials()));
    let mut busy = 0;
    // The loop sends more requests than one address may send in two seconds.
    for _ in 0..12 {
        let (status, _) = ask(router.clone(), "hello").await;
        busy += u32::from(status == 429);
    }
    assert!(busy >= 2, "{busy}");
}

/// Otherwise, clients that leave before the answer could use up the total.
#[tokio::test]
async fn a_request_whose_client_leaves_during_the_review_has_failed() {
    let key = KeyPair::generate().unwrap();
    let reviewed = Arc::new(Notify::new());
    let silent = {
        let reviewed = reviewed.clone();
        service_fn(move |_: Request<KubeBody>| {
            reviewed.notify_one();
            pending::<Result<Response<KubeBody>, tower::BoxError>>()
        })
    };
    for (what, client, leaves) in [
        ("the client leaves", Client::new(silent, "weir-system"), true),
        ("a certificate is issued", apiserver(201, good()), false),
        ("the apiserver is away", apiserver(500, json!({})), false),
    ] {
        let (_, held) = watch::channel(Some(Arc::new(credentials())));
        let service = Arc::new(Service::new(client, &flags(), held, Metrics::default()));
        let has_left = tokio::select! {
            _ = ask(router(service.clone()), question(&csr(&key))) => false,
            () = reviewed.notified() => true,
        };
        assert_eq!(has_left, leaves, "{what}");
        assert_eq!(service.pace().has_failed(clock::since_boot(), PEER), leaves, "{what}");
    }
}

fn pem_body(pem: &str) -> Vec<u8> {
    x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1.contents
}

fn to_pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
}

/// The authorities of the test credentials sign the certificates that the operator accepts.
#[test]
fn credentials_for_tests_trust_their_certificates() {
    let credentials = credentials();
    let again = Authorities::read(flags().lifecycle(), &credentials.bundle, &credentials.authorities.keys()).0;
    assert_eq!(again.certificates(), credentials.bundle);
}
