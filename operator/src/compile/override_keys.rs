//! Checks the keys of overrides where CEL's cost budget does not suffice: no key has two overrides, a value for
//! `clientIP` is an address, and values for `host` and `method` have the form in which agents compare them. Otherwise
//! an agent would reject the whole snapshot, including other policies' rules.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
};

use weir_api as api;

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
    match part {
        api::KeyPart::Header(_)
        | api::KeyPart::Cookie(_)
        | api::KeyPart::Query(_)
        | api::KeyPart::PathSegment(_)
        | api::KeyPart::JwtClaim(_)
        | api::KeyPart::Descriptor(_) => Ok(value.to_owned()),
        api::KeyPart::Host {} if value.contains(|c: char| c.is_ascii_uppercase() || matches!(c, '/' | '*')) => {
            Err(format!("{value:?} never matches: hosts are compared in lower case, whole and without port"))
        }
        api::KeyPart::Method {} if value.contains(|c: char| c.is_ascii_lowercase()) => {
            Err(format!("{value:?} never matches: methods are in upper case, such as GET"))
        }
        api::KeyPart::Host {} | api::KeyPart::Method {} => Ok(value.to_owned()),
        api::KeyPart::ClientIp(client) => match value.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Err(_) => Err(format!("{value:?} is not an IP address: this part of the key is clientIP")),
            Ok(IpAddr::V4(address)) => Ok(address.to_string()),
            Ok(IpAddr::V6(address)) => {
                let host_bits = 128_u32.saturating_sub(u32::try_from(client.ipv6_prefix).unwrap_or(128));
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                Ok(Ipv6Addr::from_bits(address.to_bits() & mask).to_string())
            }
        },
    }
}
