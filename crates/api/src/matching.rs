//! The conditions for the requests to which a rule applies.

use kube::{
    KubeSchema,
    core::{Rule, validate},
};
use schemars::Schema;
use serde::{Deserialize, Serialize};

use crate::names;

/// Conditions on a request, which must all be true. A list that is absent is no condition, and so is an empty list, except
/// `descriptor`, which must not be empty.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.trustedHops) || self.trustedHops == 0 || has(self.clientCIDRs) || has(self.predicate)")
    .message("trustedHops is valid only with clientCIDRs or predicate, which read the client's address: remove trustedHops, or add one of them")
    .field_path(".trustedHops"))]
pub struct Match {
    /// The method is one of these methods, in upper case. The case of the request's method does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = methods)]
    pub methods: Vec<String>,
    /// The host is one of these hosts, in lower case and without port. `*.example.com` means every subdomain of
    /// `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = hosts)]
    pub hosts: Vec<String>,
    /// The path matches one of these globs. `*` matches any text within a segment, and `**` as a whole segment matches
    /// any number of segments: `/api/**` matches `/api` and all paths below it. Paths are compared in normal form,
    /// without the query. `/login` also matches `/login/`, and `/login/` matches only this path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = paths)]
    pub paths: Vec<String>,
    /// One of these regular expressions matches a part of the path in normal form; `^` and `$` match its start and its
    /// end. A final slash is a part of the path: `^/login/?$` matches the path with and without it. The syntax is that of
    /// Rust's regex crate, which is similar to RE2: without look-around and back-references. An expression with so many
    /// states that their table takes more than 128 KiB is refused, such as `a[ab]{20}c`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 256)))]
    pub path_regexes: Vec<String>,
    /// The request has all of these headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub headers: Vec<HeaderMatch>,
    /// The query has all of these parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub query: Vec<QueryMatch>,
    /// The client's address is in one of these networks, such as `10.0.0.0/8`, `2001:db8::/32`, or a single address.
    /// The apiserver checks only the form of an entry. If an entry is no network, such as `10.0.0.0/33`, the operator
    /// reports it in the condition `Accepted`.
    #[serde(default, rename = "clientCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), transform = cidrs)]
    pub client_cidrs: Vec<String>,
    /// Number of trusted proxies in front of the pod that append to `X-Forwarded-For`, for `clientCIDRs` and for
    /// `request.clientIP` in `predicate`. If it is 0 or absent, the client's address is the address of the connection's
    /// peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 0, max = 10))]
    pub trusted_hops: Option<i32>,
    /// This CEL expression is true, for example `request.headers['x-tier'] == 'gold'`. The expression can read
    /// `request`, which has the fields `method`, `host`, `path`, `query` (a map), `headers` (a map by lower-case name)
    /// and `clientIP`. `path` includes a final slash. An expression that fails is false. If an expression would take too
    /// long for a request, it is not evaluated: it then counts as false in a rule with action Bypass, and as true in other
    /// rules. Quantifiers must not be nested. The argument of `matches` and the network of
    /// `inIpRange(request.clientIP, '10.0.0.0/8')` must be literal texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 1024))]
    pub predicate: Option<String>,
    /// The descriptor has these entries, in this order, and no others. Valid only in a policy with `domain`, in which the
    /// other conditions are not valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub descriptor: Vec<EntryMatch>,
}

/// A header that must be present, with exactly this value, with a value that starts with this prefix, or with any
/// value.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = value_or_prefix("headers"))]
pub struct HeaderMatch {
    /// Name of the header, which is not case-sensitive.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("name"))]
    pub name: String,
    /// The whole value, compared byte by byte. Not allowed with `prefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 512))]
    #[x_kube(validation = visible("value"))]
    pub value: Option<String>,
    /// The start of the value. Not allowed with `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 512))]
    #[x_kube(validation = visible("prefix"))]
    pub prefix: Option<String>,
}

/// A query parameter that must be present, with exactly this value, with a value that starts with this prefix, or with
/// any value. Names and values are decoded as in a form: `+` and `%20` are a blank, and `%2B` is a plus.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = value_or_prefix("query"))]
pub struct QueryMatch {
    /// Name of the parameter, after decoding.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// The whole value, after decoding. Not allowed with `prefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 512))]
    pub value: Option<String>,
    /// The start of the value, after decoding. Not allowed with `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 512))]
    pub prefix: Option<String>,
}

/// An entry of a descriptor with this key, and with exactly this value, with a value that starts with this prefix, or
/// with any value.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = value_or_prefix("descriptor"))]
pub struct EntryMatch {
    /// Key of the entry, such as `remote_address` or `generic_key`.
    #[schemars(length(min = 1, max = 128))]
    pub key: String,
    /// The whole value. Not allowed with `prefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 512))]
    pub value: Option<String>,
    /// The start of the value. Not allowed with `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 512))]
    pub prefix: Option<String>,
    /// Values that do not match. So a rule with a more specific value can replace this rule for that value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)))]
    pub except_values: Vec<String>,
    /// Values that begin with one of these texts do not match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub except_prefixes: Vec<String>,
}

fn value_or_prefix(list: &str) -> Rule {
    let message = format!(
        "{list} must not have both value and prefix in one entry: use value for the whole, prefix for the start, or neither for any value"
    );
    Rule::new("!has(self.value) || !has(self.prefix)").message(message.as_str())
}

fn visible(field: &str) -> Rule {
    let (rule, edge) = match field {
        "prefix" => ("!self.matches('[^ -~]|^ ')", "not at the start"),
        _ => ("!self.matches('[^ -~]|^ | $')", "only between them"),
    };
    let message =
        format!("{field} must be of visible ASCII characters, with spaces {edge}: HTTP delivers no other value");
    Rule::new(rule).message(message.as_str())
}

// A policy has up to 64 * 16 * 16 methods, hosts, paths or networks. The apiserver estimates the cost of a CEL rule
// from the length of the text, the length of the expression and that number. Several short expressions cost less than
// one long expression.

fn methods(schema: &mut Schema) {
    let rule = Rule::new("self.matches('^[A-Z0-9!#$%&*+.^_`|~-]+$')")
        .message("methods must be HTTP methods in upper case, such as GET or POST");
    describe_items(schema, 32, [rule]);
}

fn hosts(schema: &mut Schema) {
    let characters = Rule::new(r"self.matches(r'^(\*\.)?[a-z0-9.-]+$')").message(
        "hosts must be lower case host names without scheme, port or path; '*.' is allowed only at the start, as in *.example.com, which matches every host below example.com",
    );
    let labels = Rule::new("!self.matches('(^|[.])([.-]|$)')")
        .message("hosts must have letters or digits at the beginning, at the end and between dots");
    describe_items(schema, 253, [characters, labels]);
}

fn paths(schema: &mut Schema) {
    let absolute = Rule::new("self.startsWith('/')").message("paths must begin with '/', as in /api/**");
    let globs = Rule::new(r"!self.matches(r'[^/]\*\*|\*\*[^/]')")
        .message("paths may have '**' only as a whole segment, as in /api/**; '*' matches any text within one segment");
    let [double, dots] = ["!self.contains('//')", r"!self.matches(r'/\.\.?(/|$)|%2[eE]')"].map(|rule| {
        Rule::new(rule).message(
            "paths must not have '.', '..', '//' or %2E: requests are compared after these are resolved, so such a path never matches",
        )
    });
    let query = Rule::new(r"!self.matches(r'[?#\x00-\x20\x7f]')").message(
        "paths are compared without the query and never have spaces: write a path without '?', '#', spaces and control characters",
    );
    describe_items(schema, 256, [absolute, globs, double, dots, query]);
}

fn cidrs(schema: &mut Schema) {
    let form = Rule::new("self.matches('^[0-9a-f:.]+(/[0-9]{1,3})?$')").message(
        "clientCIDRs must be networks or addresses in lower case, such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7",
    );
    describe_items(schema, 43, [form]);
}

fn describe_items<const N: usize>(list: &mut Schema, longest: u32, rules: [Rule; N]) {
    let items = list.get_mut("items").expect("the schema of a list has items");
    let items: &mut Schema = items.try_into().expect("the schema of a text is an object");
    items.insert("minLength".into(), 1.into());
    items.insert("maxLength".into(), longest.into());
    for rule in rules {
        validate(items, rule).expect("a rule can be serialised");
    }
}
