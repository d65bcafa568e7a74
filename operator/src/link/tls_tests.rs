//! Against the server of tokio-rustls, over transports that take little, nothing, or end; and against peers that misbehave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{AlertDescription, Error as TlsError, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, server};

use super::*;
use crate::authority::{Authorities, DAY, HOUR, Order, Signer, Terms};
use crate::clock;
use crate::identity::keeper;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(90);

/// Whom the client means.
pub(super) fn name() -> ServerName<'static> {
    ServerName::try_from("web.shop.test").unwrap()
}

/// The operator, and an agent that it believes.
pub(super) fn parties() -> (Arc<ClientConfig>, ServerConfig) {
    let now = clock::unix_micros() / 1_000_000;
    let terms = Terms { subject: "test", lives: 365 * DAY, overlap: 120 * DAY, ripens: HOUR };
    let authorities = Authorities::none(terms).renewed(now).unwrap().unwrap();
    let names = ["web.shop.test".to_owned()];
    let usage = ExtendedKeyUsagePurpose::ServerAuth;
    let order = Order { names: &names, usage, lives: HOUR, signer: Signer::Newest };
    let leaf = authorities.leaf(&order, now).unwrap().unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities.certificates().as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    (keeper::credentials(authorities, "identity.test", DAY, now).unwrap().0.calling.client.clone(), server)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(LONG, work).await.expect("it comes to an end") })
}

/// A transport that takes so many bytes at a time and all together.
struct Gate {
    inner: DuplexStream,
    at_a_time: usize,
    left: Arc<AtomicUsize>,
    /// What it does then: it breaks, or takes nothing for ever.
    breaks: bool,
    sends: Arc<AtomicUsize>,
}

impl Gate {
    fn open(inner: DuplexStream) -> Self {
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        Self { inner, at_a_time: usize::MAX, left, breaks: false, sends: Arc::default() }
    }
}

impl AsyncRead for Gate {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Gate {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let left = self.left.load(Ordering::Relaxed);
        let most = buf.len().min(self.at_a_time).min(left);
        match (most, self.breaks) {
            (0, true) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            (0, false) => return Poll::Pending,
            _ => {}
        }
        let sent = ready!(Pin::new(&mut self.inner).poll_write(cx, &buf[..most]))?;
        self.left.store(left - sent, Ordering::Relaxed);
        self.sends.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

type Server = server::TlsStream<Gate>;

/// Both ends of a connection, over these ends of a transport.
async fn connected_over(client: Gate, server: Gate) -> (io::Result<TlsStream<Gate>>, io::Result<Server>) {
    let (config, server_config) = parties();
    let accepted = TlsAcceptor::from(Arc::new(server_config)).accept(server);
    tokio::join!(TlsStream::connect(config, name(), client), accepted)
}

async fn connected() -> (TlsStream<Gate>, Server) {
    let (client, server) = duplex(1 << 20);
    let (client, server) = connected_over(Gate::open(client), Gate::open(server)).await;
    (client.unwrap(), server.unwrap())
}

/// Bytes of which none is where it could be missed.
pub(super) fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()[0]).collect()
}

/// What TLS says, if it does.
fn cause(error: &io::Error) -> Option<&TlsError> {
    error.get_ref().and_then(|cause| cause.downcast_ref())
}

#[test]
fn everything_arrives_both_ways_at_once() {
    run(async {
        let (config, server_config) = parties();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = async {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = TlsAcceptor::from(Arc::new(server_config)).accept(stream).await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::io::copy(&mut read, &mut write).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let ask = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let stream = TlsStream::connect(config, name(), stream).await.unwrap();
            assert!(stream.certificate().is_some());
            let (mut read, mut write) = tokio::io::split(stream);
            let (said, mut heard) = (bytes(3 << 20), Vec::new());
            let say = async {
                write.write_all(&said).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let ((), count) = tokio::join!(say, read.read_to_end(&mut heard));
            assert_eq!(count.unwrap(), said.len());
            assert!(heard == said);
            let stream = read.unsplit(write);
            assert_eq!(stream.session.held(), 0);
        };
        tokio::join!(echo, ask);
    });
}

#[test]
fn a_transport_may_take_one_byte_at_a_time() {
    run(async {
        // Tickets fit in it: nobody reads them at first.
        let (client, server) = duplex(2048);
        let (mut client, mut server) = (Gate::open(client), Gate::open(server));
        (client.at_a_time, server.at_a_time) = (1, 1);
        let (client, server) = connected_over(client, server).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        let said = bytes(40_000);
        let mut heard = vec![0; said.len()];
        let say = async {
            client.write_all(&said).await.unwrap();
            client.flush().await.unwrap();
        };
        tokio::join!(say, async { server.read_exact(&mut heard).await.unwrap() });
        assert!(heard == said);
        heard.fill(0);
        let say = async {
            server.write_all(&said).await.unwrap();
            server.flush().await.unwrap();
        };
        tokio::join!(say, async { client.read_exact(&mut heard).await.unwrap() });
        assert!(heard == said);
        assert_eq!(client.session.held(), 0);
    });
}

/// And of what waits nothing gets lost.
#[test]
fn where_nothing_can_be_sent_no_more_is_taken() {
    run(async {
        let (mut client, mut server) = connected().await;
        client.transport.left.store(0, Ordering::Relaxed);
        let said = bytes(200_000);
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(taken)) = Pin::new(&mut client).poll_write(&mut context, &said) else { panic!("it fits") };
        assert_eq!(taken, MAX_WRITE_BYTES);
        for _ in 0..3 {
            assert!(Pin::new(&mut client).poll_write(&mut context, &said[taken..]).is_pending());
            assert!(Pin::new(&mut client).poll_flush(&mut context).is_pending());
        }
        assert!(client.session.held() < MAX_WRITE_BYTES + 4096, "{}", client.session.held());
        client.transport.left.store(usize::MAX, Ordering::Relaxed);
        client.write_all(&said[taken..]).await.unwrap();
        client.flush().await.unwrap();
        let mut heard = vec![0; said.len()];
        server.read_exact(&mut heard).await.unwrap();
        assert!(heard == said);
        assert_eq!(client.session.held(), 0);
    });
}

#[test]
fn a_request_is_one_send() {
    run(async {
        let (mut client, mut server) = connected().await;
        for length in [1, 300, 16 * 1024, 40_000] {
            let before = client.transport.sends.load(Ordering::Relaxed);
            client.write_all(&bytes(length)).await.unwrap();
            client.flush().await.unwrap();
            assert_eq!(client.transport.sends.load(Ordering::Relaxed) - before, 1, "{length}");
            server.read_exact(&mut vec![0; length]).await.unwrap();
        }
    });
}

#[test]
fn an_end_that_was_announced_is_one_and_any_other_an_error() {
    run(async {
        let (mut client, mut server) = connected().await;
        server.write_all(b"all").await.unwrap();
        server.shutdown().await.unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"all");
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        // That the other has nothing to say does not keep this one from it.
        client.write_all(b"more").await.unwrap();
        let mut heard = [0; 4];
        server.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"more");

        let (mut client, mut server) = connected().await;
        server.write_all(b"half").await.unwrap();
        server.flush().await.unwrap();
        drop(server);
        let mut heard = [0; 8];
        assert_eq!(client.read(&mut heard).await.unwrap(), 4);
        for _ in 0..3 {
            let error = client.read(&mut heard).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("without sending TLS close_notify"), "{error}");
        }
    });
}

#[test]
fn a_peer_that_has_said_that_he_ends_says_no_more() {
    run(async {
        let (mut client, mut server) = connected().await;
        client.write_all(b"all").await.unwrap();
        client.shutdown().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.write(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"all");

        // Also where it could not be sent yet.
        let (mut client, mut server) = connected().await;
        client.transport.left.store(0, Ordering::Relaxed);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut client).poll_shutdown(&mut context).is_pending());
        client.transport.left.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(client.write(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);

        // One who goes without a word has not.
        let (client, mut server) = connected().await;
        drop(client);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_peer_that_breaks_tls_is_told_and_not_heard_again() {
    run(async {
        let (mut client, mut server) = connected().await;
        server.write_all(b"good").await.unwrap();
        server.flush().await.unwrap();
        let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
        server.get_mut().0.write_all(&forged).await.unwrap();
        server.write_all(b"never").await.unwrap();
        server.flush().await.unwrap();
        let mut heard = [0; 64];
        assert_eq!(client.read(&mut heard).await.unwrap(), 4);
        assert_eq!(&heard[..4], b"good");
        let error = client.read(&mut heard).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(cause(&error), Some(&TlsError::DecryptError));
        // A reader that learns of it here need do nothing for it.
        let error = server.read(&mut heard).await.unwrap_err();
        assert_eq!(cause(&error), Some(&TlsError::AlertReceived(AlertDescription::BadRecordMac)));
        for _ in 0..3 {
            let error = client.read(&mut heard).await.unwrap_err();
            assert_eq!(cause(&error), Some(&TlsError::DecryptError));
            let error = client.write(b"more").await.unwrap_err();
            assert_eq!(cause(&error), Some(&TlsError::DecryptError));
        }
    });
}

/// The peer learns it before anybody here does: the connection may be dropped at once.
#[test]
fn a_peer_that_is_not_believed_learns_why() {
    run(async {
        let (config, _) = parties();
        let (_, stranger) = parties();
        let (client, server) = duplex(1 << 20);
        let accepted = TlsAcceptor::from(Arc::new(stranger)).accept(server);
        let connecting = async {
            let error = TlsStream::connect(config, name(), client).await.unwrap_err();
            assert!(matches!(cause(&error), Some(TlsError::InvalidCertificate(_))), "{error:?}");
        };
        let (accepted, ()) = tokio::join!(accepted, connecting);
        let error = accepted.unwrap_err();
        assert!(matches!(cause(&error), Some(TlsError::AlertReceived(_))), "{error:?}");
    });
}

/// Even to somebody who reads nothing it is listened.
#[test]
fn what_is_said_is_heard_although_nothing_can_be_sent() {
    run(async {
        let (config, _) = parties();
        let (client, mut peer) = duplex(1 << 20);
        let client = Gate::open(client);
        client.left.store(0, Ordering::Relaxed);
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let error = TlsStream::connect(config, name(), client).await.unwrap_err();
        assert!(matches!(cause(&error), Some(TlsError::InvalidMessage(_))), "{error:?}");
    });
}

#[test]
fn a_peer_may_go_at_any_moment() {
    run(async {
        let (mut early, mut late) = (0, 0);
        for most in (0..1500).step_by(49) {
            let (client, server) = duplex(1 << 20);
            let (client, mut server) = (Gate::open(client), Gate::open(server));
            (server.left, server.breaks) = (Arc::new(AtomicUsize::new(most)), true);
            let ask = async {
                let (config, server_config) = parties();
                let serve = async {
                    // Whether it fails here or below, the transport ends with it.
                    let Ok(mut server) = TlsAcceptor::from(Arc::new(server_config)).accept(server).await else {
                        return;
                    };
                    let _ = server.write_all(&bytes(1500)).await;
                };
                tokio::join!(TlsStream::connect(config, name(), client), serve).0
            };
            let error = match ask.await {
                Err(error) => {
                    early += 1;
                    error
                }
                Ok(mut client) => {
                    late += 1;
                    let mut heard = Vec::new();
                    let error = client.read_to_end(&mut heard).await.unwrap_err();
                    assert!(bytes(1500).starts_with(&heard), "{most}");
                    error
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{most}: {error:?}");
        }
        assert!(early > 5 && late > 5, "{early} {late}");
    });
}
