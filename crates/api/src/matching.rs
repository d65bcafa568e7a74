//! Which requests a rule is about.

use kube::{
    KubeSchema,
    core::{Rule, validate},
};
use schemars::Schema;
use serde::{Deserialize, Serialize};

use crate::names;

/// Conditions on a request that must all hold; a list that is empty or absent is no condition.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    /// The method is one of these. Upper case, as HTTP writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = methods)]
    pub methods: Vec<String>,
    /// The host is one of these: lower case, without port. `*.example.com` is every host below `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = hosts)]
    pub hosts: Vec<String>,
    /// The path matches one of these globs: `*` is anything within a segment, `**` as a whole segment is any number of
    /// segments, so that `/api/**` is `/api` and all below it. Paths are compared in their normal form, without the query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = paths)]
    pub paths: Vec<String>,
    /// The request has all of these headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub headers: Vec<HeaderMatch>,
}

/// A header that must be there with exactly this value.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderMatch {
    /// Name, in any case.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("name"))]
    pub name: String,
    /// Value, compared byte by byte.
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("!self.matches('[^ -~]|^ | $')")
        .message("value must be of visible ASCII characters, with spaces only between them: HTTP delivers no other value"))]
    pub value: String,
}

// There are up to 64 * 16 * 16 of each of these in a policy, and the apiserver estimates what a rule costs from the
// length of the text, the length of the expression and that number. Hence several short expressions, not one long one.

fn methods(schema: &mut Schema) {
    let rule = Rule::new("self.matches('^[A-Z0-9!#$%&*+.^_`|~-]+$')")
        .message("methods must be HTTP methods in upper case, such as GET or POST");
    describe_items(schema, 32, [rule]);
}

fn hosts(schema: &mut Schema) {
    let characters = Rule::new(r"self.matches(r'^(\*\.)?[a-z0-9.-]+$')").message(
        "hosts must be lower case host names without scheme, port or path; '*.' may only stand in front, as in *.example.com, for every host below",
    );
    let labels = Rule::new("!self.matches('(^|[.])([.-]|$)')")
        .message("hosts must have letters or digits at the beginning, at the end and between dots");
    describe_items(schema, 253, [characters, labels]);
}

fn paths(schema: &mut Schema) {
    let absolute = Rule::new("self.startsWith('/')").message("paths must begin with '/', as in /api/**");
    let globs = Rule::new(r"!self.matches(r'[^/]\*\*|\*\*[^/]')")
        .message("paths may have '**' only as a whole segment, as in /api/**; '*' is anything within one segment");
    let [double, dots] = ["!self.contains('//')", r"!self.matches(r'/\.\.?(/|$)|%2[eE]')"].map(|rule| {
        Rule::new(rule).message(
            "paths are compared with '.', '..' and '//' resolved and %2E decoded, so one with them never matches: write it without",
        )
    });
    let query = Rule::new(r"!self.matches(r'[?#\x00-\x20\x7f]')").message(
        "paths are compared without the query and never have spaces: write a path without '?', '#', spaces and control characters",
    );
    describe_items(schema, 256, [absolute, globs, double, dots, query]);
}

fn describe_items<const N: usize>(list: &mut Schema, longest: u32, rules: [Rule; N]) {
    let items = list.get_mut("items").expect("the schema of a list has items");
    let items: &mut Schema = items.try_into().expect("the schema of a text is an object");
    items.insert("minLength".into(), 1.into());
    items.insert("maxLength".into(), longest.into());
    for rule in rules {
        validate(items, rule).expect("a rule is plain strings, which always serialise");
    }
}
