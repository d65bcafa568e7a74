//! What a rule is about: its `match` list and its `key`.

use std::str::FromStr;

use http::{HeaderName, HeaderValue, Method};
use weir_wire::{KeyPart, Match};

use super::faults::{Faults, Path};
use crate::{
    matching::{Conditions, Matcher},
    rules::key::{KeySpec, Part},
};

pub(super) fn lower_matches(matches: &[Match], path: &Path, faults: &mut Faults) -> Option<Matcher> {
    let entries = each(matches, path, |entry, path| {
        let methods = each(&entry.methods, &path.field("methods"), |text, path| method(text, path, faults));
        let hosts = each(&entry.hosts, &path.field("hosts"), |text, path| parsed(text, path, faults));
        let paths = each(&entry.paths, &path.field("paths"), |text, path| parsed(text, path, faults));
        let headers = each(&entry.headers, &path.field("headers"), |header, path| {
            let name = header_name(&header.name, &path.field("name"), faults);
            let Some(value) = &header.value else {
                faults.add(path, "must have a value: this agent cannot match a header by less");
                return None;
            };
            let value = HeaderValue::from_str(value).ok();
            if value.is_none() {
                faults.add(&path.field("value"), "can never match: a header value has no control characters");
            }
            Some((name?, value?))
        });
        Some(Conditions { methods: methods?, hosts: hosts?, paths: paths?, headers: headers? })
    });
    entries.map(Matcher::new)
}

pub(super) fn lower_key(key: &[KeyPart], path: &Path, faults: &mut Faults) -> Option<KeySpec> {
    let parts = each(key, path, |part, path| match part {
        KeyPart::Header(name) => header_name(name, &path.field("header"), faults).map(Part::Header),
        KeyPart::ClientIp { trusted_hops, ipv6_prefix } => {
            if !(1..=128).contains(ipv6_prefix) {
                faults.add(&path.field("clientIP").field("ipv6Prefix"), "must be 1 to 128");
                return None;
            }
            Some(Part::ClientIp { trusted_hops: *trusted_hops, ipv6_prefix: *ipv6_prefix })
        }
        _ => {
            faults.add(path, "this agent cannot tell requests apart by it");
            None
        }
    });
    parts.map(KeySpec::new)
}

/// Lowers all of a list, also after one has failed.
fn each<T, U>(list: &[T], path: &Path, mut lower: impl FnMut(&T, &Path) -> Option<U>) -> Option<Vec<U>> {
    let lowered: Vec<Option<U>> =
        list.iter().enumerate().map(|(index, item)| lower(item, &path.index(index))).collect();
    lowered.into_iter().collect()
}

fn parsed<T: FromStr<Err: std::error::Error>>(text: &str, path: &Path, faults: &mut Faults) -> Option<T> {
    text.parse().map_err(|invalid: T::Err| faults.add(path, invalid.to_string())).ok()
}

fn method(text: &str, path: &Path, faults: &mut Faults) -> Option<Method> {
    let known = text.bytes().all(|byte| !byte.is_ascii_lowercase()).then(|| Method::from_str(text).ok()).flatten();
    if known.is_none() {
        faults.add(path, "must be a method in upper case, such as GET");
    }
    known
}

fn header_name(text: &str, path: &Path, faults: &mut Faults) -> Option<HeaderName> {
    text.parse().map_err(|_| faults.add(path, "must be the name of a header, such as x-api-key")).ok()
}
