//! The parts of a key, by which requests are counted separately.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::names;

/// One part of a key: requests with different values are counted separately. In YAML, a part is an object with one
/// field, such as `header: x-api-key` or `clientIP: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// The value of the first header of this name.
    Header(String),
    /// The address of the client.
    #[serde(rename = "clientIP")]
    ClientIp(ClientIp),
    /// The value of the first cookie of this name.
    Cookie(String),
    /// The first value of this query parameter.
    Query(String),
    /// The segment of the path with this number, counted from 1.
    PathSegment(i32),
    /// The path of the request.
    Path {},
    /// The host of the request.
    Host {},
    /// The method of the request.
    Method {},
    /// A claim of a JSON Web Token.
    JwtClaim(JwtClaim),
    /// The value of the first entry with this key in a descriptor.
    Descriptor(String),
}

/// The schema of `KeyPart`. A structural schema has no variants, so this is an object with optional fields, of which
/// a CEL rule requires exactly one.
#[derive(KubeSchema, Serialize)]
#[serde(rename = "KeyPart", rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.header), has(self.clientIP), has(self.cookie), has(self.query), has(self.pathSegment), has(self.path), has(self.host), has(self.method), has(self.jwtClaim), has(self.descriptor)].exists_one(given, given)")
    .message("key parts must have exactly one of header, clientIP, cookie, query, pathSegment, path, host, method, jwtClaim and descriptor: write two parts to distinguish requests by both"))]
struct KeyPartSchema {
    /// Name of a header. The value of the first header of this name is part of the key. Requests without this header
    /// share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    header: Option<String>,
    /// The address of the client is part of the key.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientIp")]
    client_ip: Option<ClientIp>,
    /// Name of a cookie. The value of the first cookie of this name is part of the key. Requests without this cookie
    /// share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::cookie())]
    cookie: Option<String>,
    /// Name of a query parameter. Its first value, decoded as in a form (`+` is a blank), is part of the key. Requests
    /// without this parameter share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    query: Option<String>,
    /// Number of a segment of the path in normal form, counted from 1: 2 means `b` in `/a/b/c`. This segment is part of
    /// the key. Requests with a shorter path share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("pathSegment must not be 0: segments are counted from 1: in /a/b, segment 1 is a"))]
    path_segment: Option<i32>,
    /// The path of the request in normal form, without a final slash, is part of the key. A client has another count for
    /// each path, also for paths that do not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    path: Option<Nothing>,
    /// The host of the request, in lower case and without port, is part of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    host: Option<Nothing>,
    /// The method of the request is part of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    method: Option<Nothing>,
    /// A claim of a JSON Web Token is part of the key. Requests without this claim share one count. Claims are verified
    /// only if the agent has a JWKS (a file or a URL); without one, a client can send any claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "JwtClaim")]
    jwt_claim: Option<JwtClaim>,
    /// Key of an entry of descriptors. The value of the first entry with this key is part of the key. Descriptors
    /// without this entry share one count. Valid only in a policy with `domain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    descriptor: Option<String>,
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

/// The client's address as a part of a key.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIp {
    /// Number of trusted proxies in front of the pod that append to `X-Forwarded-For`. With 0, the client's address is
    /// the address of the connection's peer.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub trusted_hops: i32,
    /// Number of leading bits of an IPv6 address that are part of the key. Clients with the same leading bits share one
    /// count.
    #[serde(default = "default_ipv6_prefix", rename = "ipv6Prefix")]
    #[schemars(range(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("ipv6Prefix must not be 0, with which all IPv6 clients would share one count: remove it for 64, or use 1 to 128"))]
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

/// A claim of a JSON Web Token. Claims are verified only if the agent has the issuers' keys (a JWKS); without them, a
/// client can send any claim.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwtClaim {
    /// Name of the header that contains the token, with or without `Bearer ` before the token.
    #[serde(default = "default_jwt_header")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    pub header: String,
    /// Name of the claim; `a.b` means the field `b` of the claim `a`. The claim must be a string, a number or a
    /// boolean.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("!self.matches('(^|[.])([.]|$)')")
        .message("claim must be the name of a claim, with dots only between names, such as sub or org.tier"))]
    pub claim: String,
}

fn default_jwt_header() -> String {
    "authorization".to_owned()
}
