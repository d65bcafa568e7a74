//! What the server shows to the apiserver: a certificate of our own authority, over TLS 1.2 or 1.3.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;

use super::authority::Leaf;

/// TLS with this certificate, for HTTP/1.1 only: an apiserver sends one review at a time over a connection.
///
/// # Errors
///
/// Certificate and key do not go together.
pub(super) fn server(leaf: Leaf) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}
