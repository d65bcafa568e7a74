//! The parts of a key: what requests are counted separately by.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::names;

/// One part of a key: requests with different values are counted separately. In YAML an object with one field, such as
/// `header: x-api-key` or `clientIP: {}`.
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
    /// First value of this query parameter.
    Query(String),
    /// This segment of the path, counted from 1.
    PathSegment(i32),
    /// The host that the client asked for.
    Host {},
    /// The method.
    Method {},
    /// A claim of a JSON Web Token.
    JwtClaim(JwtClaim),
}

/// A structural schema has no variants, so this is an object with optional fields, for which a CEL rule requires
/// exactly one.
#[derive(KubeSchema, Serialize)]
#[serde(rename = "KeyPart", rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.header), has(self.clientIP), has(self.cookie), has(self.query), has(self.pathSegment), has(self.host), has(self.method), has(self.jwtClaim)].exists_one(given, given)")
    .message("key parts must have exactly one of header, clientIP, cookie, query, pathSegment, host, method and jwtClaim: write two parts to tell requests apart by both"))]
struct KeyPartSchema {
    /// Value of the first header of this name. Requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    header: Option<String>,
    /// Address of the client.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientIp")]
    client_ip: Option<ClientIp>,
    /// Value of the first cookie of this name. Requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::cookie())]
    cookie: Option<String>,
    /// First value of this query parameter, percent-decoded. Requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    query: Option<String>,
    /// This segment of the path's normal form: 2 is `b` in `/a/b/c`. Requests with a shorter path share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("pathSegment must not be 0: segments are counted from 1, which is a in /a/b"))]
    path_segment: Option<i32>,
    /// The host that the client asked for, in lower case and without port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    host: Option<Nothing>,
    /// The method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    method: Option<Nothing>,
    /// A claim of a JSON Web Token. Requests without it share one count. The claim is verified only if the agent has a
    /// JWKS file; otherwise clients can claim what they want.
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
        schema.insert(
            "description".into(),
            "One part of a key: requests with different values are counted separately.".into(),
        );
        schema
    }
}

/// An object without fields: `{}`. Only its presence matters.
#[derive(KubeSchema, Serialize)]
pub(crate) struct Nothing {}

/// How the client's address is found, and how many of its bits count.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIp {
    /// How many proxies in front of the pod append to `X-Forwarded-For` and are trusted. 0: the peer's address is the
    /// client's.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub trusted_hops: i32,
    /// IPv6 clients whose addresses share this many leading bits share one count.
    #[serde(default = "default_ipv6_prefix", rename = "ipv6Prefix")]
    #[schemars(range(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("ipv6Prefix must not be 0, which would make all IPv6 clients one: remove it for 64, or use 1 to 128"))]
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

/// A claim of a JSON Web Token. Anyone can write a token: the claim is verified only if the agent has the issuers' keys
/// (a JWKS file); otherwise clients can claim what they want.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwtClaim {
    /// Header with the token, with or without `Bearer ` before it.
    #[serde(default = "default_jwt_header")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    pub header: String,
    /// Name of the claim; `a.b` is the field `b` of `a`. A text, number or truth value.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("!self.matches('(^|[.])([.]|$)')")
        .message("claim must be the name of a claim, with dots only between names, such as sub or org.tier"))]
    pub claim: String,
}

fn default_jwt_header() -> String {
    "authorization".to_owned()
}
