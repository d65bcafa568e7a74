//! Which requests a rule is about. What only a parser can judge is judged here, by the parsers that the agents use, so
//! that a bad expression shows in the policy's status and not as a snapshot that every agent refuses.

use regex::bytes::{Regex, RegexBuilder};
use weir_api as api;
use weir_wire as wire;

use super::{faults::Faults, predicate};

/// What a compiled expression may take in an agent, in bytes.
const LARGEST_REGEX: usize = 256 * 1024;

/// How deep an expression may be nested for an agent.
const DEEPEST_REGEX: u32 = 32;

pub(super) fn entry(entry: &api::Match, path: &str, faults: &mut Faults) -> wire::Match {
    for (i, text) in entry.path_regexes.iter().enumerate() {
        if let Err(error) = path_regex(text) {
            faults.add(format!("{path}.pathRegexes[{i}]"), format!("{text:?} is not usable: {}", in_one_line(&error)));
        }
    }
    if let Some(text) = &entry.predicate
        && let Err(message) = predicate::check(text)
    {
        faults.add(format!("{path}.predicate"), message);
    }
    wire::Match {
        methods: entry.methods.clone(),
        hosts: entry.hosts.clone(),
        paths: entry.paths.clone(),
        path_regexes: entry.path_regexes.clone(),
        headers: entry.headers.iter().map(|h| field(&h.name, h.value.as_ref(), h.prefix.as_ref())).collect(),
        query: entry.query.iter().map(|q| field(&q.name, q.value.as_ref(), q.prefix.as_ref())).collect(),
        predicate: entry.predicate.clone(),
    }
}

/// As agents do it: paths in their normal form are ASCII.
fn path_regex(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .size_limit(LARGEST_REGEX)
        .dfa_size_limit(LARGEST_REGEX)
        .nest_limit(DEEPEST_REGEX)
        .build()
}

fn field(name: &str, value: Option<&String>, prefix: Option<&String>) -> wire::FieldMatch {
    wire::FieldMatch { name: name.to_owned(), value: value.cloned(), prefix: prefix.cloned() }
}

/// The last line says what is wrong; those before draw where.
fn in_one_line(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(limit) => {
            format!("it takes more than {limit} bytes once compiled: use smaller repetitions, or a path with * and **")
        }
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.strip_prefix("error: ").unwrap_or(last).to_owned()
        }
    }
}
