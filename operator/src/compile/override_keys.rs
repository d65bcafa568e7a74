//! Checks the keys of overrides, because CEL's cost budget does not suffice for these checks. Each value must be
//! possible in a request, and no key may have two overrides, not even in two spellings. Without these checks, an agent
//! would reject the whole snapshot, including the rules of other policies.

use std::collections::HashMap;

use weir_api as api;
use weir_expressions::NamedPart;

/// Calls `fault` for every invalid key, with its path below the rule and the fix.
pub(crate) fn check(rule: &api::Rule, mut fault: impl FnMut(String, String)) {
    let mut seen: HashMap<Vec<String>, String> = HashMap::new();
    for (i, entry) in rule.overrides.iter().enumerate() {
        for (j, values) in entry.keys.iter().enumerate() {
            let path = format!("overrides[{i}].keys[{j}]");
            let mut key = Vec::with_capacity(values.len());
            for (k, (part, value)) in rule.key.iter().zip(values).enumerate() {
                match normal(part, value) {
                    Ok(value) => key.push(value),
                    Err(message) => fault(format!("{path}[{k}]"), message),
                }
            }
            // A key with a fault of its own is not compared.
            if key.len() == rule.key.len()
                && let Some(first) = seen.insert(key, path.clone())
            {
                fault(path, format!("this key already has an override at {first}: remove one of them"));
            }
        }
    }
}

/// Returns the form of a value in which agents compare it, or the reason why the value is invalid.
fn normal(part: &api::KeyPart, value: &str) -> Result<String, String> {
    let part = match part {
        api::KeyPart::Header(_) | api::KeyPart::Query(_) | api::KeyPart::JwtClaim(_) | api::KeyPart::Descriptor(_) => {
            NamedPart::Text
        }
        api::KeyPart::Cookie(_) => NamedPart::Cookie,
        api::KeyPart::PathSegment(_) => NamedPart::Segment,
        api::KeyPart::Path {} => NamedPart::Path,
        api::KeyPart::Host {} => NamedPart::Host,
        api::KeyPart::Method {} => NamedPart::Method,
        api::KeyPart::ClientIp(client) => {
            NamedPart::Address { ipv6_prefix: u8::try_from(client.ipv6_prefix).unwrap_or(128) }
        }
    };
    part.normal(value).map_err(|invalid| format!("{value:?} {invalid}"))
}
