//! Compares two functions of the proxy with other definitions. The `http` crate checks how the proxy reads the host of
//! a request. RFC 7239 and RFC 9110 define how the proxy writes the fields with the client's address.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Version, header, uri::Authority};
use http_body_util::Empty;
use weir_enforce::{AmbiguousPaths, X_FORWARDED_FOR};
use weir_fuzz::{Choices, Target};

use super::{
    headers::{Peer, to_upstream},
    hyper::vetting::{name_host, vet},
};

const HOSTS: &[&str] = &[
    "a", "b.c", "Shop", ".", "..", ":", ":80", "80", "[", "]", "[::1]", "::1", "@", "%61", "-", "_", " ", "/", "\\",
    ",", "x",
];

#[test]
fn any_authority_has_one_reading_or_is_refused() {
    Target::new("authorities").run(1_000, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            authority(&mut choices)?;
        }
        Ok(())
    });
}

fn authority(choices: &mut Choices<'_>) -> Result<(), String> {
    let version = *choices.one(&[Version::HTTP_2, Version::HTTP_11, Version::HTTP_10]);
    let (named, field) = (choices.text(HOSTS, 6), choices.text(HOSTS, 6));
    let mut request = Request::builder().version(version).uri("/x?y");
    let target = Authority::try_from(named.as_str()).ok().filter(|_| choices.rarely(2));
    if let Some(authority) = &target {
        request = request.uri(format!("http://{authority}/x?y"));
    }
    let fields = choices.below(3);
    for _ in 0..fields {
        request = request.header(header::HOST, &field);
    }
    let Ok(mut request) = request.body(Empty::<Bytes>::new()) else { return Ok(()) };
    let shown = format!("{version:?} {:?} with {fields} of {field:?}", request.uri());
    let vetted = vet(&request, AmbiguousPaths::Refuse);
    if vetted.and_then(|()| name_host(&mut request, &HeaderValue::from_static("own"))).is_err() {
        return Ok(());
    }
    if version == Version::HTTP_11 && fields != 1
        || fields > 1
        || (version == Version::HTTP_2 && fields == 0 && target.is_none())
    {
        return Err(format!("{shown} was accepted without exactly one host"));
    }
    let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
    let [host] = hosts[..] else { return Err(format!("{shown} is forwarded with {hosts:?}")) };
    let host = host.to_str().map_err(|error| error.to_string())?;
    let expected = target.as_ref().map_or(if fields == 0 { "own" } else { &field }, Authority::as_str);
    if host != expected || *request.uri() != "/x?y" {
        return Err(format!("{shown} is forwarded as {host:?}{}", request.uri()));
    }
    if host.is_empty() {
        return Ok(());
    }
    // Another parser finds the same host, and a port that is empty or a number.
    let read = Authority::try_from(host).map_err(|error| format!("{host:?} was accepted: {error}"))?;
    let behind = host.strip_prefix(read.host()).unwrap_or("@");
    let is_port =
        behind.is_empty() || behind.strip_prefix(':').is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit()));
    if host.contains(['@', '%', ' ', '/', '\\', ',']) || !is_port || read.host().contains("..") {
        return Err(format!("{host:?} was accepted"));
    }
    Ok(())
}

const FIELDS: &[&str] = &[
    "x-forwarded-for", "forwarded", "x-forwarded-proto", "x-forwarded-host", "connection", "cookie", "te", "x-a",
    "host", "content-length", "transfer-encoding", "upgrade", "keep-alive", "proxy-authorization",
];
const VALUES: &[&str] = &[
    "192.0.2.1", "for=192.0.2.1", ", ", ",", ";", "\"", "x-a", "X-Forwarded-For", "forwarded", "host", "cookie", "a=1",
    "trailers", "close", "https", "[2001:db8::1]", "unknown", " ", "\u{e4}", "=", "\t",
];

#[test]
fn any_forwarded_field_is_continued_by_the_peer() {
    Target::new("forwarded").run(1_000, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            forwarded(&mut choices)?;
        }
        Ok(())
    });
}

fn forwarded(choices: &mut Choices<'_>) -> Result<(), String> {
    let ip: IpAddr = (*choices.one(&["192.0.2.9", "2001:db8::9"])).parse().map_err(|_| "no address".to_owned())?;
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_static("shop:80"));
    for _ in 0..choices.below(9) {
        let field: &&str = choices.one(FIELDS);
        let name = header::HeaderName::from_static(field);
        let value = choices.text(VALUES, 5);
        if name != header::HOST {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).map_err(|error| error.to_string())?);
        }
    }
    let before = headers.clone();
    to_upstream(&mut headers, &Peer::new(ip), false);
    let wrong = |what: &str| Err(format!("{what}: {before:?} became {headers:?}"));
    let joined = |headers: &HeaderMap, name: &str, by: &str| {
        let values: Vec<_> =
            headers.get_all(name).iter().map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect();
        (!values.is_empty()).then(|| values.join(by))
    };
    let expected = joined(&before, "x-forwarded-for", ", ").map_or(ip.to_string(), |before| format!("{before}, {ip}"));
    if joined(&headers, X_FORWARDED_FOR.as_str(), "\n") != Some(expected) {
        return wrong("X-Forwarded-For does not end with the peer");
    }
    let node = if ip.is_ipv6() { format!("\"[{ip}]\"") } else { ip.to_string() };
    let expected =
        joined(&before, "forwarded", ", ").map(|before| format!("{before}, for={node};host=\"shop:80\";proto=http"));
    if joined(&headers, "forwarded", "\n") != expected {
        return wrong("Forwarded does not end with the peer");
    }
    for (name, default) in [("x-forwarded-proto", "http"), ("x-forwarded-host", "shop:80")] {
        if joined(&headers, name, "\n") != joined(&before, name, "\n").or(Some(default.to_owned())) {
            return wrong(name);
        }
    }
    let named = joined(&before, "connection", ",").unwrap_or_default();
    let is_named = |name: &str| named.split(',').any(|it| it.trim_matches([' ', '\t']).eq_ignore_ascii_case(name));
    for (name, by) in [("cookie", "; "), ("x-a", "\n")] {
        let expected = joined(&before, name, by).filter(|_| !is_named(name));
        if joined(&headers, name, "\n") != expected {
            return wrong(name);
        }
    }
    if ["connection", "keep-alive", "upgrade", "proxy-authorization", "transfer-encoding"]
        .iter()
        .any(|it| headers.contains_key(*it))
    {
        return wrong("a hop-by-hop field is forwarded");
    }
    Ok(())
}
