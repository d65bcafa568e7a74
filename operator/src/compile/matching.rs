//! Compiles a rule's matches. This module parses the expressions, with the parsers that agents use. So a bad expression
//! shows in the policy's status, and does not make every agent reject the snapshot.

use weir_api as api;
use weir_expressions as expressions;
use weir_wire as wire;

use super::faults::{Expression, Faults};

pub(super) fn entry(entry: &api::Match, path: &str, faults: &mut Faults) -> wire::Match {
    for (i, text) in entry.path_regexes.iter().enumerate() {
        faults.expression(format!("{path}.pathRegexes[{i}]"), 1, || {
            let regex = expressions::path_regex(text).map_err(|invalid| format!("{text:?} {invalid}"));
            regex.map(|regex| Expression { bytes: regex.bytes(), work: regex.work() })
        });
    }
    if let Some(text) = &entry.predicate {
        // Parsing the text takes time, too.
        let count = 1 + text.matches("matches").count();
        faults.expression(format!("{path}.predicate"), count, || {
            expressions::predicate(text)
                .map(|predicate| Expression { bytes: predicate.bytes(), work: predicate.work() })
        });
    }
    for (i, text) in entry.client_cidrs.iter().enumerate() {
        if let Err(invalid) = expressions::network(text) {
            faults.add(format!("{path}.clientCIDRs[{i}]"), format!("{text:?} {invalid}"));
        }
    }
    converted(entry, path, faults)
}

fn converted(entry: &api::Match, path: &str, faults: &mut Faults) -> wire::Match {
    wire::Match {
        methods: entry.methods.clone(),
        hosts: entry.hosts.clone(),
        paths: entry.paths.clone(),
        path_regexes: entry.path_regexes.clone(),
        headers: entry.headers.iter().map(|h| field(&h.name, h.value.as_ref(), h.prefix.as_ref())).collect(),
        query: entry.query.iter().map(|q| field(&q.name, q.value.as_ref(), q.prefix.as_ref())).collect(),
        client_cidrs: entry.client_cidrs.clone(),
        trusted_hops: faults.number(format!("{path}.trustedHops"), entry.trusted_hops.unwrap_or(0).into(), 0),
        predicate: entry.predicate.clone(),
        descriptor: entry.descriptor.iter().map(descriptor_entry).collect(),
    }
}

/// Returns true if every request matches, by the agent's own definition.
pub(crate) fn takes_all(rule: &api::Rule) -> bool {
    let sent = |matches| converted(matches, "", &mut Faults::default());
    rule.matches.is_empty() || rule.matches.iter().any(|matches| sent(matches).takes_all())
}

fn descriptor_entry(entry: &api::EntryMatch) -> wire::EntryMatch {
    let api::EntryMatch { key, value, prefix, except_values, except_prefixes } = entry;
    wire::EntryMatch {
        name: key.clone(),
        value: value.clone(),
        prefix: prefix.clone(),
        except_values: except_values.clone(),
        except_prefixes: except_prefixes.clone(),
    }
}

fn field(name: &str, value: Option<&String>, prefix: Option<&String>) -> wire::FieldMatch {
    wire::FieldMatch { name: name.to_owned(), value: value.cloned(), prefix: prefix.cloned() }
}
