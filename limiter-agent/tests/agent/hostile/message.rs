//! A request as the client intends it, its form in HTTP/1.1 and HTTP/2, and the request that the app must receive.
//!
//! This module shares no code with the agent. It derives the expected request from the RFCs.

use super::{frames, latin};
use crate::differential::http::Message as Read;

/// A request. Each character of a text is one byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) method: String,
    pub(crate) path: String,
    /// `:authority`. HTTP/1.1 sends it as the target's host if there are `hosts`, and otherwise as the `Host` field.
    pub(crate) authority: Option<String>,
    /// `Host` fields.
    pub(crate) hosts: Vec<String>,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Option<String>,
    /// The body has no length: chunks in HTTP/1.1.
    pub(crate) chunked: bool,
    /// HTTP/2 sends each pair of a cookie in a separate field (RFC 9113 section 8.2.3).
    pub(crate) crumbs: bool,
    /// The trailers, only for bodies without a length.
    pub(crate) trailers: Vec<(String, String)>,
}

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The request that the app receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) line: String,
    /// The fields, sorted by name, without fields that only frame the body. Fields with the same name keep their order.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) trailers: Vec<(String, String)>,
}

/// Hop-by-hop fields (RFC 9110 section 7.6.1).
const HOP_BY_HOP: &[&str] = &[
    "connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "proxy-authenticate",
    "proxy-authorization",
];

/// Headers that reach the app even if the client names them in `Connection`.
const KEPT: &[&str] =
    &["host", "content-length", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];

const FRAMING: &[&str] = &["content-length", "transfer-encoding", "trailer"];

impl Message {
    /// A valid request.
    pub(crate) fn plain() -> Self {
        let fields = [("x-key", "ann"), ("cookie", "a=1; b=2"), ("x-forwarded-for", "198.51.100.1, 192.0.2.1")];
        Self {
            method: "GET".into(),
            path: "/api/x?q=v".into(),
            authority: Some("shop.example.com".into()),
            hosts: Vec::new(),
            fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            body: None,
            chunked: false,
            crumbs: false,
            trailers: Vec::new(),
        }
    }

    /// Adds a field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Replaces the values of this name.
    pub(crate) fn instead(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(known, _)| known != name);
        self.with(name, value)
    }

    pub(crate) fn posting(self, body: &str) -> Self {
        Self { method: "POST".into(), body: Some(body.into()), ..self }
    }

    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.fields.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str())
    }

    /// Smaller requests, each with one part removed.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let plain = Self::plain();
        let without = |at: usize| {
            let mut fields = self.fields.clone();
            fields.remove(at);
            Self { fields, ..self.clone() }
        };
        let mut all: Vec<Self> = (0..self.fields.len()).map(without).collect();
        all.push(Self { method: plain.method, ..self.clone() });
        all.push(Self { path: "/".into(), ..self.clone() });
        all.push(Self { authority: plain.authority, hosts: Vec::new(), ..self.clone() });
        all.push(Self { body: None, chunked: false, trailers: Vec::new(), ..self.clone() });
        all.push(Self { trailers: Vec::new(), ..self.clone() });
        all.push(Self { crumbs: false, ..self.clone() });
        for (at, (_, value)) in self.fields.iter().enumerate() {
            let shorter = |value: String| {
                let mut fields = self.fields.clone();
                fields[at].1 = value;
                Self { fields, ..self.clone() }
            };
            all.extend((0..value.chars().count()).map(|skip| {
                shorter(value.chars().enumerate().filter(|(place, _)| *place != skip).map(|(_, c)| c).collect())
            }));
        }
        all.retain(|smaller| smaller != self);
        all
    }

    /// Whether all invalid parts are after the head.
    pub(crate) fn goes_wrong_late(&self) -> bool {
        !self.trailers.is_empty()
    }

    pub(crate) fn bytes(&self, protocol: Protocol) -> Vec<u8> {
        match protocol {
            Protocol::Http1 => self.http1(),
            Protocol::Http2 => self.http2(),
        }
    }

    fn says_length(&self) -> bool {
        self.values("content-length").next().is_some()
    }

    fn http1(&self) -> Vec<u8> {
        let target = match &self.authority {
            Some(authority) if !self.hosts.is_empty() => format!("http://{authority}{}", self.path),
            _ => self.path.clone(),
        };
        let mut head = format!("{} {target} HTTP/1.1\r\n", self.method);
        let own = self.authority.iter().filter(|_| self.hosts.is_empty());
        for host in own.chain(&self.hosts) {
            head += &format!("host: {host}\r\n");
        }
        for (name, value) in &self.fields {
            head += &format!("{name}: {value}\r\n");
        }
        match &self.body {
            Some(body) if self.chunked => {
                let chunk = if body.is_empty() { String::new() } else { format!("{:x}\r\n{body}\r\n", body.len()) };
                head += &format!("transfer-encoding: chunked\r\n\r\n{chunk}0\r\n");
                for (name, value) in &self.trailers {
                    head += &format!("{name}: {value}\r\n");
                }
                head += "\r\n";
            }
            Some(body) if self.says_length() => head += &format!("\r\n{body}"),
            Some(body) => head += &format!("content-length: {}\r\n\r\n{body}", body.len()),
            None => head += "\r\n",
        }
        latin(&head)
    }

    fn http2(&self) -> Vec<u8> {
        let mut fields = vec![(":method", self.method.as_str()), (":scheme", "http"), (":path", &self.path)];
        fields.extend(self.authority.iter().map(|authority| (":authority", authority.as_str())));
        fields.extend(self.hosts.iter().map(|host| ("host", host.as_str())));
        for (name, value) in &self.fields {
            // True if no part begins or ends with a blank.
            let whole = value.split("; ").all(|crumb| crumb.trim_matches([' ', '\t']) == crumb);
            if self.crumbs && name == "cookie" && whole {
                fields.extend(value.split("; ").map(|crumb| (name.as_str(), crumb)));
            } else {
                fields.push((name, value));
            }
        }
        let length = self.body.as_ref().map(|body| body.len().to_string()).unwrap_or_default();
        if self.body.is_some() && !self.chunked && !self.says_length() {
            fields.push(("content-length", &length));
        }
        let mut bytes = frames::greeting();
        bytes.extend(frames::headers(1, &frames::block(fields), self.body.is_none()));
        if let Some(body) = &self.body {
            bytes.extend(frames::data(1, &latin(body), self.trailers.is_empty()));
        }
        if !self.trailers.is_empty() {
            let trailers = self.trailers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            bytes.extend(frames::headers(1, &frames::block(trailers), true));
        }
        bytes
    }

    /// The request that the app receives if this request passes.
    pub(crate) fn at_the_app(&self) -> Seen {
        let trim = |value: &str| value.trim_matches([' ', '\t']).to_owned();
        // The target's host overrides the `Host` field (RFC 9112 section 3.2.2).
        let host = self.authority.as_ref().or(self.hosts.first()).map(|host| trim(host)).unwrap_or_default();
        let connection: Vec<String> = self
            .values("connection")
            .flat_map(|value| value.split(',').map(|name| trim(name).to_ascii_lowercase()).collect::<Vec<_>>())
            .collect();
        let goes = |name: &str| {
            !HOP_BY_HOP.contains(&name) && (KEPT.contains(&name) || !connection.iter().any(|named| named == name))
        };
        let lower = |(name, value): &(String, String)| (name.to_ascii_lowercase(), trim(value));
        let mut fields: Vec<(String, String)> =
            self.fields.iter().map(lower).filter(|(name, _)| goes(name) && !FRAMING.contains(&name.as_str())).collect();
        let tokens = self.values("te").flat_map(|value| value.split(','));
        if tokens.into_iter().any(|token| trim(token).eq_ignore_ascii_case("trailers")) {
            // A sender names this field in `Connection` (RFC 9110 section 10.1.4).
            fields.extend([("te".into(), "trailers".into()), ("connection".into(), "te".into())]);
        }
        for (name, value) in &mut fields {
            if name == "max-forwards" && matches!(self.method.as_str(), "OPTIONS" | "TRACE") {
                *value = value.parse::<u64>().map_or_else(|_| value.clone(), |hops| (hops - 1).to_string());
            }
        }
        let peer = "127.0.0.1".to_owned();
        if fields.iter().any(|(name, _)| name == "forwarded") {
            fields.push(("forwarded".into(), format!("for={peer};host=\"{host}\";proto=http")));
        }
        fields.push(("x-forwarded-for".into(), peer));
        for (name, value) in [("x-forwarded-proto", "http"), ("x-forwarded-host", &host)] {
            if !fields.iter().any(|(known, _)| known == name) {
                fields.push((name.into(), value.to_owned()));
            }
        }
        for (name, between) in [("forwarded", ", "), ("x-forwarded-for", ", "), ("cookie", "; ")] {
            let (of_name, mut others): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(known, _)| known == name);
            if !of_name.is_empty() {
                let values: Vec<String> = of_name.into_iter().map(|(_, value)| value).collect();
                others.push((name.into(), trim(&values.join(between))));
            }
            fields = others;
        }
        fields.push(("host".into(), host));
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        // A fragment is not for servers (RFC 9110 section 4.2.5); neither rules nor the app get it.
        let path = self.path.split_once('#').map_or(self.path.as_str(), |(path, _)| path);
        let line = format!("{} {path} HTTP/1.1", self.method);
        // hyper forwards only announced trailers.
        let announced: Vec<String> = self
            .values("trailer")
            .flat_map(|value| value.split(','))
            .map(|name| trim(name).to_ascii_lowercase())
            .collect();
        let only_in_heads =
            |name: &str| HOP_BY_HOP.contains(&name) || KEPT.contains(&name) || matches!(name, "trailer" | "expect");
        let mut trailers: Vec<(String, String)> = self.trailers.iter().map(lower).collect();
        trailers.retain(|(name, _)| announced.contains(name) && !only_in_heads(name));
        Seen { line, fields, body: self.body.clone().unwrap_or_default(), trailers }
    }
}

impl Seen {
    pub(crate) fn of(read: &Read) -> Self {
        let mut fields = read.head.fields.clone();
        fields.retain(|(name, _)| !FRAMING.contains(&name.as_str()));
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        let body = crate::differential::http::text(&read.body);
        Self { line: read.head.line.clone(), fields, body, trailers: read.trailers.clone() }
    }
}
