//! What a request takes from the limits of its rule.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::{key::Nothing, names};

/// What a request takes from every limit of its rule. In YAML an object with one field, such as `requests: 5` or
/// `responseBytes: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cost {
    /// As much as this many requests.
    Requests(i64),
    /// The number in a header of the request.
    Header(CostHeader),
    /// The number in a header of the response.
    ResponseHeader(CostHeader),
    /// The bytes of the response's body.
    ResponseBytes {},
}

/// As for key parts: an object, for which a CEL rule requires exactly one field.
#[derive(KubeSchema, Serialize)]
#[serde(rename = "Cost", rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.requests), has(self.header), has(self.responseHeader), has(self.responseBytes)].exists_one(given, given)")
    .message("cost must have exactly one of requests, header, responseHeader and responseBytes: make two rules to charge by both"))]
struct CostSchema {
    /// As much as this many requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("requests must not be 0: to let these requests through without a charge use a rule with action Bypass"))]
    requests: Option<i64>,
    /// The number in this header of the request, at least 1 and at most `most`. 1 if the request has no such header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CostHeader")]
    header: Option<CostHeader>,
    /// 1 at first. When the app has answered, the rest of the number in this header of its response is charged; the
    /// header is not passed on. Every limit of the rule must be a TokenBucketWithDebt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CostHeader")]
    response_header: Option<CostHeader>,
    /// 1 at first, then the bytes of the response's body as they pass, so that the limits count bytes. Every limit of
    /// the rule must be a TokenBucketWithDebt.
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
        schema.insert("description".into(), "What a request takes from every limit of its rule.".into());
        schema
    }
}

/// A header with a number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostHeader {
    /// Name of the header; case does not matter.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("name"))]
    pub name: String,
    /// The most that one request takes, even if the header has a larger number.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("most must not be 0, which never means unlimited: use the most that one request may take from a limit"))]
    pub most: i64,
}
