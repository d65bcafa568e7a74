//! Tests the processes that can answer at a pod's address, and the text of the status for each.

use std::net::SocketAddr;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    sync::{mpsc, watch},
};
use tokio_rustls::TlsAcceptor;
use weir_wire::{Goodbye, StatusRequest};

use super::*;
use crate::{
    authority::{Authorities, DAY, HOUR, Leaf, Lifecycle, Order, Signer},
    clock,
    dialing::Dialing,
    identity::{PodIdentity, keeper},
    link::machine,
    world::{Membership, ObjectKey},
};

const LIFECYCLE: Lifecycle = Lifecycle { subject: "test", lives: 365 * DAY, overlap: 120 * DAY, published_for: HOUR };
/// The timeout of all dials here, except in tests of the timeout.
const LIMIT: Duration = Duration::from_secs(10);

fn now() -> u64 {
    clock::unix_micros() / 1_000_000
}

pub(in crate::link) fn pod(name: &str) -> PodIdentity {
    PodIdentity { key: ObjectKey::new("shop", name), uid: format!("uid-of-{name}").into() }
}

fn authorities() -> Authorities {
    Authorities::none(LIFECYCLE).renewed(now()).unwrap().unwrap()
}

fn credentials(authorities: &Authorities) -> Arc<Dialing> {
    credentials_made(authorities, now())
}

fn credentials_made(authorities: &Authorities, at: u64) -> Arc<Dialing> {
    keeper::credentials(authorities.clone(), "identity.test", DAY, at).unwrap().0.dialing
}

fn certificate(authorities: &Authorities, pod: &PodIdentity, usage: ExtendedKeyUsagePurpose, at: u64) -> Leaf {
    let names = [pod.dns_name(), pod.uri()];
    let order = Order { names: &names, usage, lives: HOUR, signer: Signer::Newest };
    authorities.leaf(&order, at).unwrap().unwrap()
}

/// Returns TLS as an agent configures it: this certificate, for clients of these authorities.
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

/// Starts a listener that handles every connection in the same way.
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

pub(in crate::link) fn status(revision: Option<&str>) -> ToOperator {
    machine::tests::status(revision.map(|revision| (1, revision)))
}

/// The agent's side of one connection.
pub(in crate::link) struct Served(Channel<tokio_rustls::server::TlsStream<TcpStream>>);

impl Served {
    pub(in crate::link) async fn say(&mut self, message: ToOperator) {
        self.0.send(message.frame().unwrap(), LIMIT).await.unwrap();
    }

    /// Returns the next message from the operator; `None` once the operator has closed the connection.
    pub(in crate::link) async fn received(&mut self) -> Option<ToAgent> {
        Some(ToAgent::parse(self.0.next().await.ok()?).unwrap())
    }
}

/// Starts an agent that trusts the operator, and is trusted by it. The agent sends no message by itself.
pub(in crate::link) async fn agent() -> (SocketAddr, mpsc::Receiver<Served>, Held) {
    let ours = authorities();
    let (address, served) = serve(tls(good(&ours), &ours, ALPN)).await;
    (address, served, watch::channel(Some(credentials(&ours))).1)
}

/// Starts a server that passes on every connection that it accepts.
async fn serve(server: ServerConfig) -> (SocketAddr, mpsc::Receiver<Served>) {
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (tell, served) = mpsc::channel(16);
    let address = listen(move |stream| {
        let (acceptor, tell) = (acceptor.clone(), tell.clone());
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let _ = tell.send(Served(Channel::new(stream))).await;
        }
    })
    .await;
    (address, served)
}

/// Starts an agent that sends this message on every connection.
async fn greeting(server: ServerConfig, greeting: ToOperator) -> SocketAddr {
    let (address, mut served) = serve(server).await;
    tokio::spawn(async move {
        while let Some(mut served) = served.recv().await {
            served.say(greeting.clone()).await;
            tokio::spawn(async move { served.received().await });
        }
    });
    address
}

/// Dials the address as the agent of `shop/web`, and returns the result.
async fn dial(address: SocketAddr, credentials: Arc<Dialing>, limit: Duration) -> Result<Dialed, ContactError> {
    let (_, held) = watch::channel(Some(credentials));
    Dial::new(&format!("https://{address}"), pod("web"), Some(held)).connect(limit).await
}

fn good(authorities: &Authorities) -> Leaf {
    certificate(authorities, &pod("web"), ExtendedKeyUsagePurpose::ServerAuth, now())
}

#[tokio::test]
async fn the_pod_itself_is_heard() {
    let ours = authorities();
    let address = greeting(tls(good(&ours), &ours, ALPN), status(None)).await;
    let dialed = dial(address, credentials(&ours), LIMIT).await.unwrap();
    assert_eq!(dialed.greeting, status(None));
}

#[tokio::test]
async fn a_peer_that_shows_no_certificate_of_the_pod_counts_for_nothing() {
    let (ours, theirs) = (authorities(), authorities());
    let of = |authorities: &Authorities, pod: &PodIdentity, at| {
        certificate(authorities, pod, ExtendedKeyUsagePurpose::ServerAuth, at)
    };
    let mut unnamed = tls(good(&ours), &ours, ALPN);
    unnamed.alpn_protocols.clear();
    let as_client = certificate(&ours, &pod("web"), ExtendedKeyUsagePurpose::ClientAuth, now());
    let mut successor = pod("web");
    successor.uid = "uid-of-its-predecessor".into();
    let mut namesake = pod("web");
    namesake.key.namespace = "bank".into();
    let (foreign, distrusts) = (of(&theirs, &pod("web"), now()), tls(good(&ours), &theirs, ALPN));
    let shows = |leaf| tls(leaf, &ours, ALPN);
    for (what, server, said) in [
        ("another authority", shows(foreign), "of an authority that is not the operator's"),
        ("expired", shows(of(&ours, &pod("web"), now() - 2 * HOUR)), "its certificate has expired"),
        ("early", shows(of(&ours, &pod("web"), now() + 2 * HOUR)), "is not valid yet"),
        ("another pod", shows(of(&ours, &pod("other"), now())), "weir://shop/pod/other/uid-of-other"),
        ("its predecessor", shows(of(&ours, &successor, now())), "weir://shop/pod/web/uid-of-its-predecessor"),
        ("another namespace", shows(of(&ours, &namesake, now())), "weir://bank/pod/web/uid-of-web"),
        ("for clients", shows(as_client), "its certificate is not valid"),
        ("another protocol", tls(good(&ours), &ours, b"h2"), "not the operator's protocol (weir/1)"),
        ("no protocol", unnamed, "not the operator's protocol (weir/1)"),
        ("no trust", distrusts, "it reports that the operator's certificate is of an authority"),
    ] {
        let error = dial(greeting(server, status(None)).await, credentials(&ours), LIMIT).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ContactError::Untrusted(_)) && text.contains(said), "{what}: {error:?}");
        // The text must fit into the message of a drifted pod.
        assert!(text.len() <= 256, "{what}: {text}");
    }
}

/// Deleting such a pod would not help, because the new pod gets no valid certificate either.
#[tokio::test]
async fn where_a_clock_is_wrong_it_is_the_clock_that_is_told_and_no_pod_to_delete() {
    let ours = authorities();
    for at in [now() - 30 * DAY, now() + 30 * DAY] {
        let server = tls(good(&ours), &ours, ALPN);
        let error = dial(greeting(server, status(None)).await, credentials_made(&ours, at), LIMIT).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ContactError::Untrusted(_)), "{error:?}");
        assert!(text.contains("the clock of its node is wrong"), "{text}");
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
        (plain, "it does not speak TLS: kubectl rollout restart"),
        (garbage, "it does not speak TLS"),
        (hangs_up, "it closes the connection during the TLS handshake"),
    ] {
        let error = dial(address, credentials(&ours), LIMIT).await.unwrap_err();
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
        // The peer sends a record byte by byte, which never ends.
        for byte in [22, 3, 3, 0x40, 0].into_iter().chain(std::iter::repeat(0)) {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for address in [never, slow] {
        let error = dial(address, credentials(&ours), Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(error, ContactError::Timeout(_)), "{error:?}");
    }
    // No program listens at this port, and no other program gets it.
    let gone = TcpSocket::new_v4().unwrap();
    gone.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let error = dial(gone.local_addr().unwrap(), credentials(&ours), LIMIT).await.unwrap_err();
    assert!(matches!(&error, ContactError::Connection(text) if text.contains("refused")), "{error:?}");
}

#[tokio::test]
async fn without_a_certificate_of_its_own_the_operator_believes_nobody() {
    let ours = authorities();
    let address = greeting(tls(good(&ours), &ours, ALPN), status(None)).await;
    let (_, held) = watch::channel(None);
    for held in [None, Some(held)] {
        let error = Dial::new(&format!("https://{address}"), pod("web"), held).connect(LIMIT).await.unwrap_err();
        assert!(
            matches!(&error, ContactError::Untrusted(text) if text.contains("no certificate with which to connect")),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_connection_ends_with_the_first_of_its_certificates() {
    let ours = authorities();
    for lives in [600, 7 * DAY] {
        let names = [pod("web").dns_name()];
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let order = Order { names: &names, usage, lives, signer: Signer::Newest };
        let server = tls(ours.leaf(&order, now()).unwrap().unwrap(), &ours, ALPN);
        let dialed = dial(greeting(server, status(None)).await, credentials(&ours), LIMIT).await.unwrap();
        // The operator's own certificate is valid for a day.
        assert!(dialed.not_after.abs_diff(now() + lives.min(DAY)) < 60, "{lives}: {}", dialed.not_after);
    }
}

#[tokio::test]
async fn a_channel_carries_messages_both_ways_and_what_ends_it_is_told() {
    let (address, mut served, held) = agent().await;
    let dialing = tokio::spawn(Dial::new(&format!("https://{address}"), pod("web"), Some(held)).connect(LIMIT));
    let mut served = served.recv().await.unwrap();
    served.say(status(None)).await;
    let mut connection = dialing.await.unwrap().unwrap().connection;
    let membership = &Membership::Everything;
    let content = crate::plan::content_for_pod(&Default::default(), &Default::default(), "shop", membership);
    let request = ToAgent::StatusRequest(StatusRequest { every_millis: 2000 });
    connection.send(request.clone(), LIMIT).await.unwrap();
    connection.push(&content, 7, LIMIT).await.unwrap();
    assert_eq!(served.received().await, Some(request));
    assert_eq!(served.received().await, Some(ToAgent::Snapshot(content.body(7).into_bytes())));
    served.say(ToOperator::Unknown(99)).await;
    assert_eq!(connection.next().await.unwrap(), ToOperator::Unknown(99));
    served.0.send(Outgoing::new(weir_channel::tag::STATUS, b"{}").unwrap(), LIMIT).await.unwrap();
    let error = connection.next().await.unwrap_err();
    assert!(matches!(&error, ContactError::Garbage(text) if text.contains("missing field")), "{error:?}");
    drop(served);
    let error = connection.next().await.unwrap_err();
    assert!(matches!(error, ContactError::Closed { is_silent: false }), "{error:?}");
}

#[tokio::test]
async fn a_goodbye_is_a_greeting_and_nonsense_is_none() {
    let ours = authorities();
    let goodbye = ToOperator::Goodbye(Goodbye { reason: "not for you".to_owned(), retry_after_millis: 1 });
    let server = || tls(good(&ours), &ours, ALPN);
    let dialed = dial(greeting(server(), goodbye.clone()).await, credentials(&ours), LIMIT).await.unwrap();
    assert_eq!(dialed.greeting, goodbye);

    let (address, mut served) = serve(server()).await;
    tokio::spawn(async move {
        let mut served = served.recv().await.unwrap();
        served.0.send(Outgoing::new(weir_channel::tag::STATUS, b"hello").unwrap(), LIMIT).await.unwrap();
        served.received().await
    });
    let error = dial(address, credentials(&ours), LIMIT).await.unwrap_err();
    assert!(matches!(&error, ContactError::Garbage(_)), "{error:?}");
}

/// glibc's malloc caches freed blocks up to this size, and searches for larger ones.
#[test]
fn what_thousands_of_links_keep_is_small() {
    const READY: usize = 1032;
    assert!(size_of::<Connection>() <= 16, "{} bytes", size_of::<Connection>());
    let task = size_of::<crate::link::task::Task>();
    assert!(task <= READY, "{task} bytes");
}

async fn dial_plain(address: SocketAddr) -> Result<Dialed, ContactError> {
    Dial::new(&format!("http://{address}"), pod("web"), None).connect(LIMIT).await
}

/// An agent without certificates serves HTTP on the same port, so it waits for the first byte.
#[tokio::test]
async fn without_tls_the_operator_speaks_first_and_the_channel_is_the_same() {
    let address = listen(|stream| async move {
        let mut first = [1];
        stream.peek(&mut first).await.unwrap();
        assert_eq!(first, [weir_channel::FIRST_BYTE]);
        let mut channel = Channel::new(stream);
        assert_eq!(ToAgent::parse(channel.next().await.unwrap()).unwrap(), ToAgent::Hello);
        channel.send(status(None).frame().unwrap(), LIMIT).await.unwrap();
        let asked = ToAgent::parse(channel.next().await.unwrap()).unwrap();
        assert_eq!(asked, ToAgent::Answers(Vec::new()));
        channel.send(ToOperator::Unchanged.frame().unwrap(), LIMIT).await.unwrap();
    })
    .await;
    let Dialed { mut connection, greeting, not_after } = dial_plain(address).await.unwrap();
    assert_eq!((greeting, not_after), (status(None), u64::MAX));
    connection.send(ToAgent::Answers(Vec::new()), LIMIT).await.unwrap();
    assert_eq!(connection.next().await.unwrap(), ToOperator::Unchanged);
    let ended = connection.next().await.unwrap_err();
    assert!(matches!(ended, ContactError::Closed { is_silent: false }), "{ended:?}");
}

/// An agent of an earlier version reads only HTTP without TLS.
#[tokio::test]
async fn what_is_no_agent_in_plain_text_is_named() {
    let answers = |text: &'static [u8]| {
        listen(move |mut stream| async move {
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(text).await;
        })
    };
    let ours = authorities();
    let of_tls = greeting(tls(good(&ours), &ours, ALPN), status(None)).await;
    let of_http = answers(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    let empty = answers(&[0, 0, 0, 3, weir_channel::tag::STATUS, b'{', b'}']).await;
    for (address, expected) in [
        (of_tls, "if it uses TLS, remove weir.dev/control: plaintext from the pod template, or"),
        (of_http, "if it has an earlier version, kubectl rollout restart"),
        (empty, "not an agent's answer: no answer: a status"),
        (answers(&[]).await, "no answer: the connection was closed"),
    ] {
        let error = dial_plain(address).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.len() <= 256, "{error}");
    }
}
