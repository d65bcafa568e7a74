//! Which requests a rule is about.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// Conditions on a request that must all hold; a list that is empty or absent is no condition.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    /// The method is one of these. Upper case, as HTTP writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32)))]
    #[x_kube(validation = Rule::new("self.all(m, m.matches('^[A-Z0-9!#$%&*+.^_`|~-]+$'))")
        .message("methods must be HTTP methods in upper case, such as GET or POST"))]
    pub methods: Vec<String>,
    /// The host is one of these: lower case, without port. `*.example.com` is every host below `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(validation = Rule::new("self.all(h, h.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))")
        .message("hosts must be lower case host names without scheme, port or path; '*.' may only stand in front, for every host below, as in *.example.com"))]
    pub hosts: Vec<String>,
    /// The path matches one of these globs: `*` is anything within a segment, `**` as a whole segment is any number of
    /// segments, so that `/api/**` is `/api` and all below it. Paths are compared in their normal form, without the query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 256)))]
    #[x_kube(
        validation = Rule::new("self.all(p, p.startsWith('/'))").message("paths must begin with '/', as in /api/**"),
        validation = Rule::new("self.all(p, p.split('/').all(s, s == '**' || !s.contains('**')))")
            .message("paths may have '**' only as a whole segment, as in /api/**; '*' is anything within one segment"),
        validation = Rule::new("self.all(p, !p.matches('//|/([.]|%2[eE]){1,2}(/|$)|[?#[:space:][:cntrl:]]'))")
            .message("paths must be in normal form or they never match: no '//', no '.' or '..' as a segment, no '?', '#' or space")
    )]
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
    #[x_kube(validation = Rule::new("!self.matches('[[:cntrl:]]|^ | $')")
        .message("value must not begin or end with a space or have control characters: HTTP never delivers such a value"))]
    pub value: String,
}
