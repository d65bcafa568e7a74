//! A request as rules see it, unchanged. It borrows the parts from the caller.
//!
//! Costly values (the normal form of the path, the host, the values for predicates) are computed at most once for all
//! rules of a request, and only if a rule needs them.

use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
    net::IpAddr,
    rc::Rc,
};

use super::{
    client_ip::client_ip,
    facts::{Facts, Parts},
    headers::Headers,
    host,
    path::{self, AmbiguousPaths},
    query,
};

/// The parts of a request that matchers and keys read.
pub struct RequestView<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    /// The authority of an absolute target, or HTTP/2's `:authority`.
    authority: Option<&'a str>,
    headers: Headers<'a>,
    peer: IpAddr,
    paths: AmbiguousPaths,
    normal_path: OnceCell<Cow<'a, str>>,
    host: OnceCell<&'a str>,
    /// By the number of trusted proxies. Few requests need them, and nearly all for one number.
    facts: RefCell<Vec<(u8, Rc<Facts>)>>,
}

impl<'a> RequestView<'a> {
    /// `peer` is the address of the connection's peer.
    pub fn new<B>(request: &'a http::Request<B>, peer: IpAddr) -> Self {
        Self::of_parts(request.method().as_str(), request.uri(), Headers::Map(request.headers()), peer)
    }

    /// A request with a target that is only a path: the host comes from the fields.
    pub fn of_target(
        method: &'a str,
        (path, query): (&'a str, Option<&'a str>),
        headers: Headers<'a>,
        peer: IpAddr,
    ) -> Self {
        Self {
            method,
            path,
            query,
            authority: None,
            headers,
            peer,
            paths: AmbiguousPaths::Keep,
            normal_path: OnceCell::new(),
            host: OnceCell::new(),
            facts: RefCell::default(),
        }
    }

    /// A request with these parts. `target` has the form of a request line's, with or without scheme and authority.
    pub fn of_parts(method: &'a str, target: &'a http::Uri, headers: Headers<'a>, peer: IpAddr) -> Self {
        Self {
            authority: target.authority().map(http::uri::Authority::as_str),
            ..Self::of_target(method, (target.path(), target.query()), headers, peer)
        }
    }

    /// Reads the path in this way. The default is to keep what is encoded.
    pub fn reading(self, paths: AmbiguousPaths) -> Self {
        Self { paths, ..self }
    }

    pub(crate) fn method(&self) -> &'a str {
        self.method
    }

    pub(crate) fn headers(&self) -> Headers<'a> {
        self.headers
    }

    /// The client's address behind so many trusted proxies.
    pub(crate) fn client_ip(&self, trusted_hops: u8) -> IpAddr {
        client_ip(self.headers, self.peer, trusted_hops)
    }

    /// The path in the normal form of [`path::normalise`].
    pub(crate) fn path(&self) -> &str {
        self.normal_path.get_or_init(|| path::normalise(self.path, self.paths))
    }

    /// The host that the client named, without its port and in its original case. Empty if there is none.
    pub(crate) fn host(&self) -> &'a str {
        self.host.get_or_init(|| match self.authority {
            Some(authority) => host::without_port(authority),
            None => {
                let header = self.headers.get(&http::header::HOST).and_then(|value| str::from_utf8(value).ok());
                host::without_port(header.unwrap_or_default())
            }
        })
    }

    /// The values of a query parameter, in order.
    pub(crate) fn query<'b>(&self, name: &'b [u8]) -> impl Iterator<Item = Cow<'a, [u8]>> + use<'a, 'b> {
        query::values(self.query.unwrap_or_default(), name)
    }

    /// The whole query. Empty without one.
    pub(super) fn whole_query(&self) -> &'a str {
        self.query.unwrap_or_default()
    }

    /// The values for predicates. `trusted_hops` says which address is the client's.
    pub(super) fn facts(&self, trusted_hops: u8) -> Rc<Facts> {
        let mut all = self.facts.borrow_mut();
        if let Some((_, facts)) = all.iter().find(|(hops, _)| *hops == trusted_hops) {
            return Rc::clone(facts);
        }
        let facts = Rc::new(Facts::of(&Parts {
            method: self.method,
            host: self.host(),
            path: self.path(),
            query: self.whole_query(),
            headers: self.headers,
            client_ip: self.client_ip(trusted_hops),
        }));
        all.push((trusted_hops, Rc::clone(&facts)));
        facts
    }
}
