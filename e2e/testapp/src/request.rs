//! The arguments that describe the requests of a load. They are parsed once, into targets and a template of requests.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use tokio::{net::TcpStream, time::Instant};

use crate::{clock, target::Target};

/// The longest wait until DNS and the address of a Service are ready.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

/// The targets and the requests.
#[derive(clap::Args)]
pub struct RequestArgs {
    /// URL to send to (http://host[:port]/path); repeat the flag to send to several URLs round robin
    #[arg(long = "url", required = true)]
    urls: Vec<Uri>,
    /// Resolve each URL's host once, and send to all its addresses round robin
    #[arg(long)]
    resolve_all: bool,
    /// With --resolve-all: wait up to 30 s until the host has this many addresses, and each accepts connections
    #[arg(long, value_name = "N", requires = "resolve_all", default_value_t = 1)]
    addresses: usize,
    /// Method of every request
    #[arg(long, default_value = "GET")]
    method: Method,
    /// Body of every request
    #[arg(long, default_value = "")]
    body: String,
    /// Header of every request, as name:value; the flag can be repeated
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Header whose value cycles through COUNT different values: k0, k1, …
    #[arg(long, value_name = "NAME:COUNT", value_parser = parse_vary)]
    vary_header: Option<(HeaderName, u64)>,
    /// Use HTTP/2 with prior knowledge, with this many shared connections per URL (or address)
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "no_keepalive")]
    http2: usize,
    /// Open a new connection for every request, which spreads requests over the pods of a Service
    #[arg(long)]
    no_keepalive: bool,
    /// Milliseconds after which a request without an answer counts as an error
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    timeout: u64,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The targets and the template of requests.
pub(crate) struct Plan {
    targets: Vec<Arc<Target>>,
    method: Method,
    body: Bytes,
    headers: HeaderMap,
    vary: Option<(HeaderName, u64)>,
}

impl RequestArgs {
    /// Checks the arguments and resolves the hosts, so that errors are reported before the first request.
    pub(crate) async fn plan(self, connections: usize) -> anyhow::Result<Plan> {
        let timeout = Duration::from_millis(self.timeout);
        let mut targets = Vec::new();
        for uri in &self.urls {
            ensure!(uri.scheme_str() == Some("http"), "{uri}: only http:// URLs are supported");
            let Some(host) = uri.host() else { bail!("{uri}: no host") };
            let endpoint = format!("{host}:{}", uri.port_u16().unwrap_or(80));
            let endpoints = if self.resolve_all { resolve(&endpoint, self.addresses).await? } else { vec![endpoint] };
            for endpoint in endpoints {
                let target = Target::new(endpoint, uri, connections, self.http2, !self.no_keepalive, timeout)?;
                targets.push(Arc::new(target));
            }
        }
        let (body, headers) = (self.body.into(), self.headers.into_iter().collect());
        Ok(Plan { targets, method: self.method, body, headers, vary: self.vary_header })
    }
}

/// Waits until a host has at least `least` addresses, and each of them accepts connections. Returns all addresses. DNS
/// contains the pods of a Service with a short delay, and a Service refuses connections until the node has its rules.
async fn resolve(endpoint: &str, least: usize) -> anyhow::Result<Vec<String>> {
    let deadline = clock::now() + RESOLVE_TIMEOUT;
    let addresses = lookup(endpoint, least, deadline).await?;
    for address in &addresses {
        while let Err(error) = TcpStream::connect(address).await {
            ensure!(clock::now() < deadline, "{endpoint}: {address} after {RESOLVE_TIMEOUT:?}: {error}");
            tokio::time::sleep(RESOLVE_PAUSE).await;
        }
    }
    Ok(addresses)
}

async fn lookup(endpoint: &str, least: usize, deadline: Instant) -> anyhow::Result<Vec<String>> {
    loop {
        let found = tokio::net::lookup_host(endpoint).await.with_context(|| format!("resolve {endpoint}"));
        let found = found.map(|found| found.map(|address| address.to_string()).collect::<BTreeSet<_>>());
        match found {
            Ok(found) if found.len() >= least => return Ok(found.into_iter().collect()),
            found if clock::now() >= deadline => {
                bail!("{endpoint} has {} of {least} addresses after {RESOLVE_TIMEOUT:?}", found?.len())
            }
            _ => tokio::time::sleep(RESOLVE_PAUSE).await,
        }
    }
}

impl Plan {
    /// The target of request number `index`.
    pub(crate) fn target(&self, index: u64) -> &Arc<Target> {
        let position = index % self.targets.len() as u64;
        &self.targets[usize::try_from(position).expect("a position in a vector")]
    }

    pub(crate) fn request(&self, index: u64) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        if let Some((name, count)) = &self.vary {
            // All targets get one value before the value changes, so each target gets every value.
            let variant = index / self.targets.len() as u64 % count;
            let value = HeaderValue::from_str(&format!("k{variant}")).expect("digits are valid in a header");
            request.headers_mut().insert(name.clone(), value);
        }
        self.target(index).address(&mut request);
        request
    }
}

fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("expected name:value")?;
    let name = name.trim().parse().map_err(|error| format!("{name}: {error}"))?;
    let value = value.trim().parse().map_err(|error| format!("{value}: {error}"))?;
    Ok((name, value))
}

fn parse_vary(text: &str) -> Result<(HeaderName, u64), String> {
    let (name, count) = text.split_once(':').ok_or("expected name:count")?;
    let name = name.trim().parse().map_err(|error| format!("{name}: {error}"))?;
    match count.trim().parse() {
        Ok(count) if count > 0 => Ok((name, count)),
        _ => Err(format!("{count}: expected a number of at least 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(urls: &[&str], vary: Option<&str>) -> RequestArgs {
        RequestArgs {
            urls: urls.iter().map(|url| url.parse().expect("a URL")).collect(),
            resolve_all: false,
            addresses: 1,
            method: Method::POST,
            body: "a".to_owned(),
            headers: vec![parse_header("x-tier: free").expect("a header")],
            vary_header: vary.map(|text| parse_vary(text).expect("name and count")),
            http2: 0,
            no_keepalive: false,
            timeout: 1000,
            json: true,
        }
    }

    #[tokio::test]
    async fn every_target_gets_every_value_of_the_varying_header() {
        let plan = args(&["http://a/x", "http://b/y?z=1"], Some("x-key:2")).plan(1).await.expect("a good plan");
        let sent: Vec<_> = (0..4)
            .map(|index| {
                let request = plan.request(index);
                let header = |name: &str| request.headers()[name].to_str().expect("ascii").to_owned();
                (header("host"), header("x-key"), request.uri().to_string())
            })
            .collect();
        let expected = [("a", "k0", "/x"), ("b", "k0", "/y?z=1"), ("a", "k1", "/x"), ("b", "k1", "/y?z=1")];
        assert_eq!(sent, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    }

    #[tokio::test]
    async fn the_host_header_keeps_the_port_that_was_asked_for() {
        let plan = args(&["http://localhost:8080"], None).plan(1).await.expect("a good plan");
        let request = plan.request(0);
        assert_eq!(request.headers()["host"], "localhost:8080");
        assert_eq!(request.headers()["x-tier"], "free");
        assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/"));
    }

    #[tokio::test]
    async fn a_host_is_known_once_its_address_takes_connections() {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = socket.local_addr().expect("bound").to_string();
        let mut resolving = std::pin::pin!(resolve(&address, 1));
        tokio::time::timeout(3 * RESOLVE_PAUSE, &mut resolving).await.expect_err("nothing listens");
        let _listener = socket.listen(1).expect("bound");
        assert_eq!(resolving.await.expect("the host has an address"), [&*address]);
    }

    #[tokio::test]
    async fn other_schemes_are_refused_before_anything_is_sent() {
        assert!(args(&["https://a/"], None).plan(1).await.is_err());
        assert!(parse_vary("x-key:0").is_err());
        assert!(parse_header("no colon").is_err());
    }
}
