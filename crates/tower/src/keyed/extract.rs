//! Extractors, which find the key of a request.

use std::{error::Error, fmt, net::IpAddr};

use http::{HeaderName, Request};

/// Finds the key by which a request is counted: an API key, a user, an address.
///
/// A closure is an extractor if its arguments have explicit types. This crate provides [`HeaderKey`] and [`IpKey`]. A
/// pair of extractors forms a key of both parts.
///
/// ```
/// use weir_tower::{KeyExtractor, NoKey};
///
/// struct Job {
///     owner: Option<String>,
/// }
///
/// let by_owner = |job: &Job, key: &mut Vec<u8>| {
///     key.extend_from_slice(job.owner.as_ref().ok_or(NoKey)?.as_bytes());
///     Ok(())
/// };
///
/// let mut key = Vec::new();
/// assert_eq!(by_owner.extract(&Job { owner: Some(String::from("ann")) }, &mut key), Ok(()));
/// assert_eq!(key, b"ann");
/// assert_eq!(by_owner.extract(&Job { owner: None }, &mut key), Err(NoKey));
/// ```
pub trait KeyExtractor<Request> {
    /// Appends the key to `key`. An empty key counts as no key.
    ///
    /// ```
    /// use weir_tower::{KeyExtractor, NoKey};
    ///
    /// /// Counts by the first word of a command.
    /// struct ByVerb;
    ///
    /// impl KeyExtractor<String> for ByVerb {
    ///     fn extract(&self, command: &String, key: &mut Vec<u8>) -> Result<(), NoKey> {
    ///         key.extend_from_slice(command.split_whitespace().next().ok_or(NoKey)?.as_bytes());
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let mut key = Vec::new();
    /// assert_eq!(ByVerb.extract(&String::from("GET users"), &mut key), Ok(()));
    /// assert_eq!(key, b"GET");
    /// assert_eq!(ByVerb.extract(&String::new(), &mut key), Err(NoKey));
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoKey`] if the request has no key. Bytes written to `key` before the error are ignored.
    fn extract(&self, request: &Request, key: &mut Vec<u8>) -> Result<(), NoKey>;
}

/// The error for a request without a key.
///
/// ```
/// assert_eq!(weir_tower::NoKey.to_string(), "the request has no key");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoKey;

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request has no key")
    }
}

impl Error for NoKey {}

impl<F, Request> KeyExtractor<Request> for F
where
    F: Fn(&Request, &mut Vec<u8>) -> Result<(), NoKey>,
{
    fn extract(&self, request: &Request, key: &mut Vec<u8>) -> Result<(), NoKey> {
        self(request, key)
    }
}

/// A key of two parts; if one part is missing, the request has no key. The key begins with the length of the first
/// part, so that different pairs never form the same key.
///
/// ```
/// use http::{HeaderName, Request};
/// use weir_tower::{HeaderKey, KeyExtractor};
///
/// let pair = (HeaderKey::new(HeaderName::from_static("x-tenant")), HeaderKey::new(HeaderName::from_static("x-user")));
/// let key = |tenant: &str, user: &str| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
///     let request = Request::builder().header("x-tenant", tenant).header("x-user", user).body(())?;
///     let mut key = Vec::new();
///     pair.extract(&request, &mut key)?;
///     Ok(key)
/// };
/// assert_ne!(key("ab", "c")?, key("a", "bc")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<A: KeyExtractor<Request>, B: KeyExtractor<Request>, Request> KeyExtractor<Request> for (A, B) {
    fn extract(&self, request: &Request, key: &mut Vec<u8>) -> Result<(), NoKey> {
        let start = key.len();
        key.extend_from_slice(&[0; size_of::<u64>()]);
        let first = key.len();
        self.0.extract(request, key)?;
        let length = key.len() - first;
        if length == 0 {
            return Err(NoKey);
        }
        key[start..first].copy_from_slice(&(length as u64).to_be_bytes());
        let second = key.len();
        self.1.extract(request, key)?;
        if key.len() == second { Err(NoKey) } else { Ok(()) }
    }
}

/// The value of a header, or the first value if there are several.
///
/// A client can send a different value with each request: use a header that a proxy in front of the service verifies or
/// sets.
///
/// ```
/// use http::{HeaderName, Request};
/// use weir_tower::{HeaderKey, KeyExtractor};
///
/// let request = Request::builder().header("x-api-key", "gold").body(())?;
/// let mut key = Vec::new();
/// HeaderKey::new(HeaderName::from_static("x-api-key")).extract(&request, &mut key)?;
/// assert_eq!(key, b"gold");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeaderKey(HeaderName);

impl HeaderKey {
    /// Counts requests by the header of this name.
    ///
    /// ```
    /// use http::HeaderName;
    /// use weir_tower::HeaderKey;
    ///
    /// let by_api_key = HeaderKey::new(HeaderName::from_static("x-api-key"));
    /// # let _ = by_api_key;
    /// ```
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl<B> KeyExtractor<Request<B>> for HeaderKey {
    fn extract(&self, request: &Request<B>, key: &mut Vec<u8>) -> Result<(), NoKey> {
        key.extend_from_slice(request.headers().get(&self.0).ok_or(NoKey)?.as_bytes());
        Ok(())
    }
}

/// The client's address, returned by a function. The key is an IPv4 address, or the /64 network of an IPv6 address,
/// because an IPv6 client can use any address of its network.
///
/// The function reads the address from the request: in axum from `ConnectInfo`, in tonic from `TcpConnectInfo`, behind
/// a proxy from the header that the proxy is trusted to set.
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
///
/// use http::Request;
/// use weir_tower::{IpKey, KeyExtractor};
///
/// // With axum: `request.extensions().get::<ConnectInfo<SocketAddr>>()`.
/// let by_ip = IpKey::new(|request: &Request<()>| request.extensions().get::<SocketAddr>().map(SocketAddr::ip));
///
/// let key = |ip: &str| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
///     let mut request = Request::new(());
///     request.extensions_mut().insert(SocketAddr::new(ip.parse()?, 443));
///     let mut key = Vec::new();
///     by_ip.extract(&request, &mut key)?;
///     Ok(key)
/// };
/// assert_eq!(key("192.0.2.7")?, [192, 0, 2, 7]);
/// assert_eq!(key("::ffff:192.0.2.7")?, [192, 0, 2, 7]);
/// assert_eq!(key("2001:db8::1")?, key("2001:db8::2")?); // one /64
/// assert_ne!(key("2001:db8::1")?, key("2001:db8:0:1::1")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct IpKey<F>(F);

impl<F> IpKey<F> {
    /// Counts requests by the address that `address` returns, a `Fn(&Request) -> Option<IpAddr>`.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use weir_tower::{IpKey, KeyExtractor};
    ///
    /// let by_peer = IpKey::new(|peer: &SocketAddr| Some(peer.ip()));
    /// let mut key = Vec::new();
    /// by_peer.extract(&"192.0.2.7:443".parse()?, &mut key)?;
    /// assert_eq!(key, [192, 0, 2, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(address: F) -> Self {
        Self(address)
    }
}

/// The part of an IPv6 address that a client cannot choose: the /64 network, in bytes.
const NETWORK: usize = 8;

impl<F: Fn(&Request) -> Option<IpAddr>, Request> KeyExtractor<Request> for IpKey<F> {
    fn extract(&self, request: &Request, key: &mut Vec<u8>) -> Result<(), NoKey> {
        match (self.0)(request).ok_or(NoKey)?.to_canonical() {
            IpAddr::V4(address) => key.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => key.extend_from_slice(&address.octets()[..NETWORK]),
        }
        Ok(())
    }
}
