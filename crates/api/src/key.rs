//! What requests are told apart by.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::names;

/// One part of what requests are told apart by. In YAML an object with one field, such as `header: x-api-key` or
/// `clientIP: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// Value of the first header of this name.
    Header(String),
    /// Address of the client.
    #[serde(rename = "clientIP")]
    ClientIp(ClientIp),
    /// Value of the first cookie of this name.
    Cookie(String),
    /// First value of this parameter of the query.
    Query(String),
    /// This segment of the path, counted from 1.
    PathSegment(i32),
    /// The host that the client named.
    Host {},
    /// The method.
    Method {},
    /// A claim of a JSON Web Token.
    JwtClaim(JwtClaim),
}

/// A structural schema has no variants: it is written as an object with optional fields, of which a CEL rule asks for
/// exactly one.
#[derive(KubeSchema, Serialize)]
#[serde(rename = "KeyPart", rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.header), has(self.clientIP), has(self.cookie), has(self.query), has(self.pathSegment), has(self.host), has(self.method), has(self.jwtClaim)].exists_one(given, given)")
    .message("key parts must have exactly one of header, clientIP, cookie, query, pathSegment, host, method and jwtClaim: write two parts to tell requests apart by both"))]
struct KeyPartSchema {
    /// Value of the first header of this name; requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    header: Option<String>,
    /// Address of the client.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientIp")]
    client_ip: Option<ClientIp>,
    /// Value of the first cookie of this name; requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::cookie())]
    cookie: Option<String>,
    /// First value of this parameter of the query, percent-decoded; requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    query: Option<String>,
    /// This segment of the path's normal form: 2 is `b` in `/a/b/c`. Requests whose path is shorter share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("pathSegment must not be 0: segments are counted from 1, which is a in /a/b"))]
    path_segment: Option<i32>,
    /// The host that the client named, in lower case and without port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    host: Option<Nothing>,
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    method: Option<Nothing>,
    /// A claim of a JSON Web Token; requests without it share one count. Not verified, unless the agent is given a JWKS
    /// file: without one a claim says what the client wants it to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "JwtClaim")]
    jwt_claim: Option<JwtClaim>,
}

impl JsonSchema for KeyPart {
    fn schema_name() -> Cow<'static, str> {
        "KeyPart".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = KeyPartSchema::json_schema(generator);
        schema.insert("description".into(), "One part of what requests are told apart by.".into());
        schema
    }
}

/// An object that says all by being there: `{}`.
#[derive(KubeSchema, Serialize)]
pub(crate) struct Nothing {}

/// How the address of the client is found, and how much of it counts.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIp {
    /// How many proxies in front of the pod append to `X-Forwarded-For` and are trusted. With 0 the peer's address counts.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub trusted_hops: i32,
    /// IPv6 clients are told apart by this many leading bits.
    #[serde(default = "default_ipv6_prefix", rename = "ipv6Prefix")]
    #[schemars(range(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("ipv6Prefix must not be 0, which would make all IPv6 clients one: leave it out for 64, or use 1 to 128"))]
    pub ipv6_prefix: i32,
}

fn default_ipv6_prefix() -> i32 {
    64
}

impl Default for ClientIp {
    fn default() -> Self {
        Self { trusted_hops: 0, ipv6_prefix: default_ipv6_prefix() }
    }
}

/// A claim of a JSON Web Token. Anybody can write a token: unless the agent is given the keys of those who may (a JWKS
/// file), the claim says only what the client wants it to say.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwtClaim {
    /// Header with the token, with or without `Bearer ` before it.
    #[serde(default = "default_jwt_header")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    pub header: String,
    /// Name of the claim; `a.b` is `b` inside of `a`. A text, number or truth value.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("!self.matches('(^|[.])([.]|$)')")
        .message("claim must be the name of a claim, with dots only between names, such as sub or org.tier"))]
    pub claim: String,
}

fn default_jwt_header() -> String {
    "authorization".to_owned()
}
