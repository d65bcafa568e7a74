//! Rules for names, each used by several fields.

use kube::core::Rule;

/// Names of rules and limits: labels of DNS (RFC 1123).
pub(crate) fn label() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must be lower case letters, digits and '-', beginning and ending with a letter or digit")
}

/// Names of HTTP headers: tokens (RFC 9110). `field` is the name of the field in the policy.
pub(crate) fn header(field: &str) -> Rule {
    let message = format!("{field} must be the name of an HTTP header: letters, digits and '-', without ':' or spaces");
    Rule::new("self.matches('^[A-Za-z0-9!#$%&*+.^_`|~-]+$')").message(message.as_str())
}
