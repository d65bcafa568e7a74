//! The validation rules that several fields share: those for names and for media types.

use kube::core::Rule;

/// The rule for names of rules and limits: DNS labels (RFC 1123).
pub(crate) fn label() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must be lower case letters, digits and '-', beginning and ending with a letter or digit")
}

/// The rule for names of objects: DNS subdomains (RFC 1123).
pub(crate) fn object() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message(
        "name must be the name of an object: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit",
    )
}

/// The rule for names of HTTP headers: tokens (RFC 9110). `field` is the name of the field in the policy.
pub(crate) fn header(field: &str) -> Rule {
    token(&format!("{field} must be the name of an HTTP header: letters, digits and '-', without ':' or spaces"))
}

/// The rule for names of cookies: tokens, like the names of headers (RFC 6265).
pub(crate) fn cookie() -> Rule {
    token("cookie must be the name of a cookie: letters, digits, '-' and '_', without '=', ';' or spaces")
}

/// The rule for media types (RFC 9110).
pub(crate) fn media_type() -> Rule {
    Rule::new("self.matches('^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[!-~]+)*$')")
        .message("contentType must be a media type, such as text/html or application/json; charset=utf-8")
}

fn token(message: &str) -> Rule {
    Rule::new("self.matches('^[A-Za-z0-9!#$%&*+.^_`|~-]+$')").message(message)
}
