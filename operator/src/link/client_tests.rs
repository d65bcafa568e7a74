//! Everything that may sit at a pod's address, and what the status says of it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use weir_wire::{InForce, Snapshot};

use super::*;
use crate::authority::{Authorities, DAY, HOUR, Leaf, Order, Signer, Terms};
use crate::identity::{Calling, PodIdentity, keeper};
use crate::link::Timing;
use crate::world::ObjectKey;

#[path = "client_following_tests.rs"]
pub(in crate::link) mod following;

const TERMS: Terms = Terms { subject: "test", lives: 365 * DAY, overlap: 120 * DAY, ripens: HOUR };
/// Nobody here takes longer unless he means to.
const LIMIT: Duration = Duration::from_secs(10);
const STATUS: &str = r#"{"wireVersion":1,"instance":"a","agentVersion":"0.1.0","uptimeMillis":1,"policies":[]}"#;

const TAG: &str = r#"W/"a""#;

/// Once a second.
fn pace() -> Pace {
    Pace::new(Timing::default())
}

fn now() -> u64 {
    clock::unix_micros() / 1_000_000
}

pub(in crate::link) fn pod(name: &str) -> PodIdentity {
    PodIdentity { key: ObjectKey::new("shop", name), uid: format!("uid-of-{name}") }
}

fn authorities() -> Authorities {
    Authorities::none(TERMS).renewed(now()).unwrap().unwrap()
}

fn credentials(authorities: &Authorities) -> Arc<Calling> {
    credentials_made(authorities, now())
}

fn credentials_made(authorities: &Authorities, at: u64) -> Arc<Calling> {
    keeper::credentials(authorities.clone(), "identity.test", DAY, at).unwrap().0.calling
}

fn certificate(authorities: &Authorities, pod: &PodIdentity, usage: ExtendedKeyUsagePurpose, at: u64) -> Leaf {
    let names = [pod.dns_name(), pod.uri()];
    let order = Order { names: &names, usage, lives: HOUR, signer: Signer::Newest };
    authorities.leaf(&order, at).unwrap().unwrap()
}

/// As an agent does it: this certificate, for clients of these authorities.
fn tls(leaf: Leaf, clients: &Authorities, protocol: &[u8]) -> ServerConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(clients.certificates().as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap();
    server.alpn_protocols = vec![protocol.to_vec()];
    server
}

/// Does the same with every connection.
async fn listen<F: Future<Output = ()> + Send + 'static>(
    with: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(with(stream));
        }
    });
    address
}

/// An agent over HTTP/2.
async fn agent(server: ServerConfig) -> SocketAddr {
    counting_agent(server).await.0
}

/// An agent that counts who came in.
async fn counting_agent(server: ServerConfig) -> (SocketAddr, Arc<AtomicUsize>) {
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let address = listen(move |stream| {
        let (acceptor, counted) = (acceptor.clone(), counted.clone());
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            counted.fetch_add(1, Ordering::Relaxed);
            let service = hyper::service::service_fn(async |request: Request<hyper::body::Incoming>| {
                let known = request.headers().get(IF_NONE_MATCH).is_some_and(|known| known == TAG);
                let (code, body) = if known { (304, "") } else { (200, STATUS) };
                Response::builder().status(code).header(ETAG, TAG).body(Full::new(Bytes::from_static(body.as_bytes())))
            });
            let io = hyper_util::rt::TokioIo::new(stream);
            let executor = hyper_util::rt::TokioExecutor::new();
            drop(hyper::server::conn::http2::Builder::new(executor).serve_connection(io, service).await);
        }
    })
    .await;
    (address, connections)
}

/// The result of a request to the peer as the agent of `shop/web`.
async fn asked(address: SocketAddr, credentials: Arc<Calling>, limit: Duration) -> Result<Status, ContactError> {
    let (_, held) = watch::channel(Some(credentials));
    status(&mut Client::new(&format!("https://{address}"), pod("web"), Some(held)), limit).await
}

async fn status(client: &mut Client, limit: Duration) -> Result<Status, ContactError> {
    match client.status(None, &pace(), limit).await? {
        Told::Status { status, .. } => Ok(*status),
        Told::Nothing => panic!("nothing was known"),
    }
}

fn good(authorities: &Authorities) -> Leaf {
    certificate(authorities, &pod("web"), ExtendedKeyUsagePurpose::ServerAuth, now())
}

#[tokio::test]
async fn the_pod_itself_is_heard() {
    let ours = authorities();
    let address = agent(tls(good(&ours), &ours, b"h2")).await;
    let status = asked(address, credentials(&ours), LIMIT).await.unwrap();
    assert_eq!(status.instance, "a");
}

#[tokio::test]
async fn a_peer_that_shows_no_certificate_of_the_pod_counts_for_nothing() {
    let (ours, theirs) = (authorities(), authorities());
    let of = |authorities: &Authorities, pod: &PodIdentity, at| {
        certificate(authorities, pod, ExtendedKeyUsagePurpose::ServerAuth, at)
    };
    let as_client = certificate(&ours, &pod("web"), ExtendedKeyUsagePurpose::ClientAuth, now());
    let mut successor = pod("web");
    successor.uid = "uid-of-its-predecessor".to_owned();
    let mut namesake = pod("web");
    namesake.key.namespace = "bank".to_owned();
    for (what, server, said) in [
        (
            "another authority",
            tls(of(&theirs, &pod("web"), now()), &ours, b"h2"),
            "of an authority that is not the operator's",
        ),
        ("expired", tls(of(&ours, &pod("web"), now() - 2 * HOUR), &ours, b"h2"), "its certificate has expired"),
        ("early", tls(of(&ours, &pod("web"), now() + 2 * HOUR), &ours, b"h2"), "is not valid yet"),
        ("another pod", tls(of(&ours, &pod("other"), now()), &ours, b"h2"), "weir://shop/pod/other/uid-of-other"),
        (
            "its predecessor",
            tls(of(&ours, &successor, now()), &ours, b"h2"),
            "weir://shop/pod/web/uid-of-its-predecessor",
        ),
        ("another namespace", tls(of(&ours, &namesake, now()), &ours, b"h2"), "weir://bank/pod/web/uid-of-web"),
        ("for clients", tls(as_client, &ours, b"h2"), "its certificate is no good"),
        ("another protocol", tls(good(&ours), &ours, b"ftp"), "no HTTP/2"),
        (
            "does not know us",
            tls(good(&ours), &theirs, b"h2"),
            "it says that the operator's certificate is of an authority",
        ),
    ] {
        let error = asked(agent(server).await, credentials(&ours), LIMIT).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ContactError::Untrusted(_)) && text.contains(said), "{what}: {error:?}");
        // It must fit the message of a drifted pod.
        assert!(text.len() <= 256, "{what}: {text}");
    }
}

/// Pods that somebody deletes for it get no certificate either.
#[tokio::test]
async fn where_a_clock_is_wrong_it_is_the_clock_that_is_told_and_no_pod_to_delete() {
    let ours = authorities();
    for at in [now() - 30 * DAY, now() + 30 * DAY] {
        let server = tls(good(&ours), &ours, b"h2");
        let error = asked(agent(server).await, credentials_made(&ours, at), LIMIT).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ContactError::Untrusted(_)) && text.contains("a clock is wrong"), "{error:?}");
        assert!(!text.contains("delete") && text.len() <= 256, "{text}");
    }
}

#[tokio::test]
async fn a_peer_that_speaks_no_tls_counts_for_nothing() {
    let ours = authorities();
    let plain = listen(|mut stream| async move {
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    });
    let garbage = listen(|mut stream| async move {
        let _ = stream.write_all(&[0xff; 512]).await;
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let hangs_up = listen(|mut stream| async move {
        let _ = stream.read(&mut [0; 1]).await;
        let _ = stream.shutdown().await;
    });
    let (plain, garbage, hangs_up) = (plain.await, garbage.await, hangs_up.await);
    for (address, said) in [
        (plain, "it speaks no TLS: kubectl rollout restart"),
        (garbage, "it speaks no TLS"),
        (hangs_up, "it hangs up when it is asked for its certificate"),
    ] {
        let error = asked(address, credentials(&ours), LIMIT).await.unwrap_err();
        assert!(matches!(error, ContactError::Untrusted(_)) && error.to_string().contains(said), "{error:?}");
        assert!(error.to_string().len() <= 256, "{error}");
    }
}

#[tokio::test]
async fn a_peer_that_takes_for_ever_is_given_up_in_time() {
    let ours = authorities();
    let never = listen(|stream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let slow = listen(|mut stream| async move {
        // One byte of a record at a time, and never the last.
        for byte in [22, 3, 3, 0x40, 0].into_iter().chain(std::iter::repeat(0)) {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for address in [never, slow] {
        let error = asked(address, credentials(&ours), Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(error, ContactError::Timeout(_)), "{error:?}");
    }
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = asked(gone, credentials(&ours), LIMIT).await.unwrap_err();
    assert!(matches!(&error, ContactError::Connection(text) if text.contains("refused")), "{error:?}");
}

#[tokio::test]
async fn without_a_certificate_of_its_own_the_operator_believes_nobody() {
    let ours = authorities();
    let address = agent(tls(good(&ours), &ours, b"h2")).await;
    let (_, held) = watch::channel(None);
    for held in [None, Some(held)] {
        let error = status(&mut Client::new(&format!("https://{address}"), pod("web"), held), LIMIT).await.unwrap_err();
        assert!(
            matches!(&error, ContactError::Untrusted(text) if text.contains("no certificate to call it with")),
            "{error:?}"
        );
    }
}

/// One connection for many calls, until the first of the two certificates ends.
#[tokio::test]
async fn a_connection_is_kept_and_ends_with_its_certificates() {
    let ours = authorities();
    for lives in [600, 7 * DAY] {
        let names = [pod("web").dns_name()];
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let order = Order { names: &names, usage, lives, signer: Signer::Newest };
        let server = tls(ours.leaf(&order, now()).unwrap().unwrap(), &ours, b"h2");
        let (address, connections) = counting_agent(server).await;
        let (_, held) = watch::channel(Some(credentials(&ours)));
        let mut client = Client::new(&format!("https://{address}"), pod("web"), Some(held));
        for _ in 0..3 {
            status(&mut client, LIMIT).await.unwrap();
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        let kept = client.connection.as_mut().expect("it is kept");
        // The operator's own lasts for a day.
        let ends = now() + lives.min(DAY);
        assert!(kept.is_usable(ends - 60) && !kept.is_usable(ends + 60), "{lives}");
    }
}

/// A pod that gets the address of another one, whose connection was still open.
#[tokio::test]
async fn an_agent_that_goes_away_is_noticed() {
    let plain = listen(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream
            .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{STATUS}", STATUS.len()).as_bytes())
            .await;
    })
    .await;
    let mut client = Client::new(&format!("http://{plain}"), pod("web"), None);
    status(&mut client, LIMIT).await.unwrap();
    timeout(LIMIT, client.closed()).await.expect("the connection was closed");
    status(&mut client, LIMIT).await.expect("another connection is made");
}

/// Of an agent that says nothing new it is heard that it is there, and no more.
#[tokio::test]
async fn what_is_known_is_not_told_again() {
    let ours = authorities();
    let address = agent(tls(good(&ours), &ours, b"h2")).await;
    let (_, held) = watch::channel(Some(credentials(&ours)));
    let mut client = Client::new(&format!("https://{address}"), pod("web"), Some(held));
    let Told::Status { tag: Some(tag), .. } = client.status(None, &pace(), LIMIT).await.unwrap() else {
        panic!("it has a tag")
    };
    assert!(matches!(client.status(Some(&tag), &pace(), LIMIT).await, Ok(Told::Nothing)));
    let other = Tag(b"W/\"b\"".as_slice().into());
    assert!(matches!(client.status(Some(&other), &pace(), LIMIT).await, Ok(Told::Status { .. })));
}

#[tokio::test]
async fn a_peer_that_asks_for_all_is_not_told_that_it_knows() {
    let lazy = listen(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 304 Not Modified\r\n\r\n").await;
    })
    .await;
    let mut client = Client::new(&format!("http://{lazy}"), pod("web"), None);
    let error = client.status(None, &pace(), LIMIT).await.unwrap_err();
    assert!(matches!(error, ContactError::Garbage(_)), "{error}");
}

/// glibc's malloc keeps ready what is no larger than this, and looks for everything larger.
#[tokio::test]
async fn a_call_over_an_open_connection_takes_what_the_allocator_has_ready() {
    const READY: usize = 1032;
    let mut client = Client::new("http://127.0.0.1:1", pod("web"), None);
    let call = Call { method: Method::GET, path: "/v1/status", body: Bytes::new(), known: None, pace: None };
    let needed = size_of_val(&client.exchange(&call));
    assert!(needed <= READY, "{needed} bytes");
}
