//! The cost of a request, which is charged to the limits of its rule.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::{key::Nothing, names};

/// The cost of a request, which is charged to every limit of its rule. In YAML, a cost is an object with one field,
/// such as `requests: 5` or `responseBytes: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cost {
    /// The cost of this number of requests.
    Requests(i64),
    /// The number in a header of the request.
    Header(CostHeader),
    /// The number in a header of the response.
    ResponseHeader(CostHeader),
    /// The bytes of the request's body.
    RequestBytes {},
    /// The bytes of the response's body.
    ResponseBytes {},
}

/// The schema of `Cost`: an object, of which a CEL rule requires exactly one field.
#[derive(KubeSchema, Serialize)]
#[serde(rename = "Cost", rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.requests), has(self.header), has(self.responseHeader), has(self.requestBytes), has(self.responseBytes)].exists_one(given, given)")
    .message("cost must have exactly one of requests, header, responseHeader, requestBytes and responseBytes: make two rules to charge by both"))]
struct CostSchema {
    /// The request is charged as this number of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("requests must not be 0: to let these requests through without a charge use a rule with action Bypass"))]
    requests: Option<i64>,
    /// The cost is the number in this header of the request, at least 1 and at most `most`. The cost is 1 if the
    /// request does not have the header, or if the number is 0: a client must not get free requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CostHeader")]
    header: Option<CostHeader>,
    /// The cost is the number in this header of the app's response, at most `most`. With 0, the request costs nothing.
    /// Without the header, or if the app does not answer, the cost is 1. Clients do not receive the header, except if the
    /// rule is in mode Disabled or a Bypass rule matches the request. 1 is charged when the request arrives. When the app
    /// has answered, the rest is charged, or the 1 is given back. Every limit of the rule must be a TokenBucketWithDebt,
    /// except if `most` is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CostHeader")]
    response_header: Option<CostHeader>,
    /// The cost is the number of bytes in the request body, so the limits count bytes. 1 is charged when the request
    /// arrives, and the rest while the body passes to the app, no faster than the limits allow. Every limit of the rule
    /// must be a TokenBucketWithDebt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    request_bytes: Option<Nothing>,
    /// The cost is the number of bytes in the response body, so the limits count bytes. 1 is charged when the request
    /// arrives, and the rest while the body passes. Every limit of the rule must be a TokenBucketWithDebt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Nothing")]
    response_bytes: Option<Nothing>,
}

impl JsonSchema for Cost {
    fn schema_name() -> Cow<'static, str> {
        "Cost".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = CostSchema::json_schema(generator);
        schema.insert("description".into(), "The cost of a request, charged to every limit of its rule.".into());
        schema
    }
}

/// A header that contains a number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostHeader {
    /// Name of the header, which is not case-sensitive.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("name"))]
    pub name: String,
    /// Maximum cost of one request, even if the header contains a larger number.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("most must not be 0, which never means unlimited: use the most that one request may take from a limit"))]
    pub most: i64,
}
