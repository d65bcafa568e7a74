//! Lowers the `match` list and the `key` of a rule.

use std::{fmt::Display, str::FromStr};

use http::{HeaderName, HeaderValue, Method};
use weir_expressions::{PathRegex, path_regex};
use weir_wire::{Action, EntryMatch, FieldMatch, KeyPart, Match, takes_every_path};

use super::faults::{Faults, Path};
use crate::{
    key::{KeySpec, Part},
    matching::{Conditions, EntryCondition, FieldCondition, Matcher, Predicate, ValueCondition},
};

pub(super) fn lower_matches(matches: &[Match], action: Action, path: &Path, faults: &mut Faults) -> Option<Matcher> {
    let entries = each(matches, path, |entry, path| {
        let methods = each(&entry.methods, &path.field("methods"), |text, path| method(text, path, faults));
        let hosts = each(&entry.hosts, &path.field("hosts"), |text, path| parsed(text, path, faults));
        let paths = each(&entry.paths, &path.field("paths"), |text, path| parsed(text, path, faults));
        let regexes = each(&entry.path_regexes, &path.field("pathRegexes"), |text, path| regex(text, path, faults));
        let headers = each(&entry.headers, &path.field("headers"), |field, path| header(field, path, faults));
        let query = each(&entry.query, &path.field("query"), |field, path| parameter(field, path, faults));
        let networks = each(&entry.client_cidrs, &path.field("clientCIDRs"), |text, path| network(text, path, faults));
        if entry.trusted_hops > 0 && entry.client_cidrs.is_empty() && entry.predicate.is_none() {
            let message = "has a meaning only with clientCIDRs or predicate: remove it";
            faults.add(&path.field("trustedHops"), message);
        }
        let predicate = match &entry.predicate {
            Some(text) => predicate(text, &path.field("predicate"), faults).map(Some),
            None => Some(None),
        };
        let descriptor =
            each(&entry.descriptor, &path.field("descriptor"), |field, path| entry_of(field, path, faults));
        Some(Conditions {
            methods: methods?,
            hosts: hosts?,
            // A list that matches every path is dropped, so that the path need not be normalised.
            paths: paths.map(|paths| if takes_every_path(&entry.paths) { Vec::new() } else { paths })?,
            path_regexes: regexes?,
            headers: headers?,
            query: query?,
            networks: networks?,
            trusted_hops: entry.trusted_hops,
            predicate: predicate?,
            if_unknown: action != Action::Bypass,
            descriptor: descriptor?,
        })
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
        KeyPart::Cookie(name) => {
            // RFC 6265 section 4.1.1: a cookie's name is a token, as a header's name is.
            if HeaderName::from_str(name).is_err() {
                faults.add(&path.field("cookie"), "must be the name of a cookie, such as session");
                return None;
            }
            Some(Part::Cookie(name.as_str().into()))
        }
        KeyPart::Query(name) => non_empty(name, &path.field("query"), faults).map(Part::Query),
        KeyPart::PathSegment(0) => {
            faults.add(&path.field("pathSegment"), "must be at least 1: segments are counted from 1");
            None
        }
        KeyPart::PathSegment(number) => Some(Part::PathSegment(*number)),
        KeyPart::Descriptor(key) => non_empty(key, &path.field("descriptor"), faults).map(Part::Descriptor),
        KeyPart::Path {} => Some(Part::Path),
        KeyPart::Host {} => Some(Part::Host),
        KeyPart::Method {} => Some(Part::Method),
        KeyPart::JwtClaim { header, claim } => {
            let path = path.field("jwtClaim");
            let header = header_name(header, &path.field("header"), faults);
            let claim = non_empty(claim, &path.field("claim"), faults);
            Some(Part::JwtClaim { header: header?, claim: claim? })
        }
    });
    parts.map(KeySpec::new)
}

fn header(field: &FieldMatch, path: &Path, faults: &mut Faults) -> Option<FieldCondition<HeaderName>> {
    let name = header_name(&field.name, &path.field("name"), faults);
    let value = value(field, path, faults);
    for (part, text) in [("value", &field.value), ("prefix", &field.prefix)] {
        if text.as_ref().is_some_and(|text| HeaderValue::from_str(text).is_err()) {
            faults.add(&path.field(part), "can never match: a header value has no control characters");
            return None;
        }
    }
    Some(FieldCondition { name: name?, value: value? })
}

fn parameter(field: &FieldMatch, path: &Path, faults: &mut Faults) -> Option<FieldCondition<Box<[u8]>>> {
    let name = non_empty(&field.name, &path.field("name"), faults);
    let value = value(field, path, faults);
    Some(FieldCondition { name: name?.into_boxed_bytes(), value: value? })
}

fn entry_of(entry: &EntryMatch, path: &Path, faults: &mut Faults) -> Option<EntryCondition> {
    let EntryMatch { name, value, prefix, except_values, except_prefixes } = entry;
    let name = non_empty(name, &path.field("name"), faults);
    let value = value_of((value.as_ref(), prefix.as_ref()), path, faults);
    let prefixes = each(except_prefixes, &path.field("exceptPrefixes"), |start, path| non_empty(start, path, faults));
    let values = except_values.iter().map(|whole| ValueCondition::Exactly(whole.as_bytes().into()));
    let prefixes = prefixes?.into_iter().map(|start| ValueCondition::StartingWith(start.into_boxed_bytes()));
    Some(EntryCondition { name: name?, value: value?, except: values.chain(prefixes).collect() })
}

fn value(field: &FieldMatch, path: &Path, faults: &mut Faults) -> Option<ValueCondition> {
    value_of((field.value.as_ref(), field.prefix.as_ref()), path, faults)
}

fn value_of(given: (Option<&String>, Option<&String>), path: &Path, faults: &mut Faults) -> Option<ValueCondition> {
    match given {
        (None, None) => Some(ValueCondition::Any),
        (Some(whole), None) => Some(ValueCondition::Exactly(whole.as_bytes().into())),
        (None, Some(start)) => Some(ValueCondition::StartingWith(start.as_bytes().into())),
        (Some(_), Some(_)) => {
            faults.add(&path.field("prefix"), "only one of `value` and `prefix` is allowed: remove one of them");
            None
        }
    }
}

fn regex(text: &str, path: &Path, faults: &mut Faults) -> Option<PathRegex> {
    expression(path, faults, || path_regex(text), PathRegex::bytes)
}

fn predicate(text: &str, path: &Path, faults: &mut Faults) -> Option<Predicate> {
    expression(path, faults, || text.parse(), Predicate::bytes)
}

/// Compiles an expression, unless the expressions before it take too much memory.
fn expression<T, E: Display>(
    path: &Path,
    faults: &mut Faults,
    compile: impl FnOnce() -> Result<T, E>,
    bytes: impl FnOnce(&T) -> u64,
) -> Option<T> {
    if faults.has_too_large_expressions() {
        return None;
    }
    let expression = compile().map_err(|invalid| faults.add(path, invalid.to_string())).ok()?;
    faults.add_expression(path, bytes(&expression)).then_some(expression)
}

fn network(text: &str, path: &Path, faults: &mut Faults) -> Option<weir_expressions::Network> {
    weir_expressions::network(text).map_err(|invalid| faults.add(path, invalid.to_string())).ok()
}

fn non_empty(text: &str, path: &Path, faults: &mut Faults) -> Option<Box<str>> {
    if text.is_empty() {
        faults.add(path, "must not be empty");
        return None;
    }
    Some(text.into())
}

/// Lowers all elements of a list, even after one element has failed, so that every fault is reported.
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

pub(super) fn header_name(text: &str, path: &Path, faults: &mut Faults) -> Option<HeaderName> {
    text.parse().map_err(|_| faults.add(path, "must be the name of a header, such as x-api-key")).ok()
}
