//! The view of a request that rules read. The view borrows the parts of the request, and never changes them.
//!
//! Costly values (the normal forms of the method and the path, the host, the values for predicates) are computed at
//! most once for all rules of a request, and only if a rule needs them.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell, RefCell},
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use weir_expressions::BUDGET;

use super::{
    client_ip::client_ip,
    facts::{Facts, Parts},
    headers::Headers,
    host,
    path::{self, AmbiguousPaths},
    query,
};

/// The number of expressions that were skipped because they would have taken too long.
static OVER_BUDGET: AtomicU64 = AtomicU64::new(0);

/// Returns the number of predicates and regular expressions that were skipped because they would have taken too long.
pub fn over_budget() -> u64 {
    OVER_BUDGET.load(Relaxed)
}

/// The parts of a request that matchers and keys read. A descriptor, which a proxy sends to a rate limit service, is a
/// request without method, path and headers.
pub struct RequestView<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    /// The authority of an absolute target, or the `:authority` of HTTP/2.
    authority: Option<&'a str>,
    headers: Headers<'a>,
    peer: IpAddr,
    paths: AmbiguousPaths,
    /// The entries of a descriptor. Empty for an HTTP request.
    descriptor: &'a [(&'a str, &'a str)],
    /// Whether conditions ignore the order of the entries.
    is_unordered: bool,
    /// The units that a descriptor charges. 1 for an HTTP request.
    hits: u64,
    normal_method: OnceCell<Cow<'a, str>>,
    normal_path: OnceCell<Cow<'a, str>>,
    host: OnceCell<&'a str>,
    /// The values for predicates, by the number of trusted proxies. Few requests need them, and most of those for only
    /// one number.
    facts: RefCell<Vec<(u8, Rc<Facts>)>>,
    /// The part of the [`BUDGET`] for regular expressions that is left.
    budget: Cell<u64>,
}

impl<'a> RequestView<'a> {
    /// Creates a view of a request. `peer` is the address of the connection's peer.
    pub fn new<B>(request: &'a http::Request<B>, peer: IpAddr) -> Self {
        Self::of_parts(request.method().as_str(), request.uri(), Headers::Map(request.headers()), peer)
    }

    /// Creates a view of a request whose target has no authority: the host comes from the `Host` header.
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
            descriptor: &[],
            is_unordered: false,
            hits: 1,
            normal_method: OnceCell::new(),
            normal_path: OnceCell::new(),
            host: OnceCell::new(),
            facts: RefCell::default(),
            budget: Cell::new(BUDGET),
        }
    }

    /// Creates a view of a request with these parts. `target` has the form of the target in a request line, with or
    /// without scheme and authority.
    pub fn of_parts(method: &'a str, target: &'a http::Uri, headers: Headers<'a>, peer: IpAddr) -> Self {
        Self {
            authority: target.authority().map(http::uri::Authority::as_str),
            ..Self::of_target(method, (target.path(), target.query()), headers, peer)
        }
    }

    /// Creates a view of a descriptor with these entries, which charges `hits` units.
    pub(crate) fn of_descriptor(entries: &'a [(&'a str, &'a str)], is_unordered: bool, hits: u64) -> Self {
        let no_address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            descriptor: entries,
            is_unordered,
            hits,
            ..Self::of_target("", ("/", None), Headers::Lines(&[]), no_address)
        }
    }

    /// Sets how to read an ambiguous path. The default is [`AmbiguousPaths::Keep`].
    pub fn reading(self, paths: AmbiguousPaths) -> Self {
        Self { paths, ..self }
    }

    /// Returns the method in upper case. Some apps execute `delete` as DELETE, and policies name methods in upper case.
    pub(crate) fn method(&self) -> &str {
        self.normal_method.get_or_init(|| {
            if self.method.bytes().any(|byte| byte.is_ascii_lowercase()) {
                self.method.to_ascii_uppercase().into()
            } else {
                self.method.into()
            }
        })
    }

    pub(crate) fn descriptor(&self) -> &'a [(&'a str, &'a str)] {
        self.descriptor
    }

    pub(crate) fn is_unordered(&self) -> bool {
        self.is_unordered
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits
    }

    pub(crate) fn headers(&self) -> Headers<'a> {
        self.headers
    }

    /// Returns the client's address behind this number of trusted proxies.
    pub(crate) fn client_ip(&self, trusted_hops: u8) -> IpAddr {
        client_ip(self.headers, self.peer, trusted_hops)
    }

    /// Returns the path in the normal form of [`path::normalise`].
    pub(crate) fn path(&self) -> &str {
        self.normal_path.get_or_init(|| path::normalise(self.path, self.paths))
    }

    /// Returns the host that the client named, without its port and in its original case. Empty if there is no host.
    pub(crate) fn host(&self) -> &'a str {
        self.host.get_or_init(|| match self.authority {
            Some(authority) => host::without_port(authority),
            None => {
                let header = self.headers.get(&http::header::HOST).and_then(|value| str::from_utf8(value).ok());
                host::without_port(header.unwrap_or_default())
            }
        })
    }

    /// Returns the values of a query parameter, in order.
    pub(crate) fn query<'b>(&self, name: &'b [u8]) -> impl Iterator<Item = Cow<'a, [u8]>> + use<'a, 'b> {
        query::values(self.query.unwrap_or_default(), name)
    }

    /// Returns the whole query. Empty if the target has no query.
    pub(super) fn whole_query(&self) -> &'a str {
        self.query.unwrap_or_default()
    }

    /// Evaluates a predicate, unless this could cost more than the budget of one predicate. `run` gets the budget that all
    /// regular expressions share. Returns `None` if the predicate has no value within the budgets.
    pub(super) fn evaluate(&self, cost: u64, run: impl FnOnce(&Cell<u64>) -> Option<bool>) -> Option<bool> {
        let value = if cost > BUDGET { None } else { run(&self.budget) };
        if value.is_none() {
            OVER_BUDGET.fetch_add(1, Relaxed);
        }
        value
    }

    /// Takes the cost of a search from the budget of all regular expressions. Returns false if not enough is left, so the
    /// search must not run.
    pub(super) fn spend(&self, cost: u64) -> bool {
        let left = self.budget.get().checked_sub(cost);
        match left {
            Some(left) => self.budget.set(left),
            None => {
                OVER_BUDGET.fetch_add(1, Relaxed);
            }
        }
        left.is_some()
    }

    /// Returns the values for predicates. `trusted_hops` determines the client's address.
    pub(super) fn facts(&self, trusted_hops: u8) -> Rc<Facts> {
        let mut all = self.facts.borrow_mut();
        if let Some((_, facts)) = all.iter().find(|(hops, _)| *hops == trusted_hops) {
            return Rc::clone(facts);
        }
        let facts = Rc::new(Facts::of(&Parts {
            method: self.method(),
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
