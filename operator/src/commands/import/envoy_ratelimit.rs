//! Imports files of envoyproxy/ratelimit.
//!
//! In envoyproxy/ratelimit, only one limit of a descriptor applies. Each level of the descriptor selects the sibling
//! with the exact value, otherwise the first sibling in the file whose prefix fits, otherwise the sibling without a
//! value. In Weir, all matching rules apply. So each rule excludes the values that its siblings take from it.

use serde_json::{Value, json};
use serde_yaml::Mapping;

use super::{
    EnvoyRatelimit, Scope,
    names::Names,
    tree::{File, Node, OnlyMap, Pattern, RateLimit},
    words,
};
use crate::documents;

/// The bounds of the schema of RateLimitPolicy.
const MOST_RULES: usize = 64;
const MOST_ENTRIES: usize = 8;
const MOST_KEY_PARTS: usize = 4;
const MOST_EXCEPTIONS: usize = 64;
const MOST_REQUESTS: u32 = 1_000_000_000;
/// These bounds are in characters.
const LONGEST_DOMAIN: usize = 128;
const LONGEST_KEY: usize = 128;
const LONGEST_VALUE: usize = 512;

/// The units of envoyproxy/ratelimit.
const UNITS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];

/// The fields of policies in the order in which they are written. Other fields come first.
const ORDER: [&str; 22] = [
    "metadata", "spec", "domain", "targetRefs", "selector", "name", "action", "mode", "replaces", "match", "key",
    "value", "prefix", "exceptValues", "exceptPrefixes", "scope", "shared", "requests", "per", "strategy", "limits",
    "rules",
];

/// A rule, with the name of its limit in the file and the names that it replaces.
struct Found<'a> {
    rule: Value,
    limit: &'a RateLimit,
    place: String,
}

/// A level of the path to a node: the entry that it matches, and its key if the values are counted separately.
#[derive(Clone)]
struct Level<'a> {
    entry: Value,
    node: &'a Node,
}

struct Importer<'a> {
    arguments: &'a EnvoyRatelimit,
    rules: Vec<Found<'a>>,
    names: Names,
    notes: Vec<String>,
    faults: Vec<String>,
}

/// Returns the policies of a file as YAML, and notes about parts without an effect.
pub(super) fn import(
    file: &File,
    arguments: &EnvoyRatelimit,
    taken: &mut Names,
) -> Result<(Vec<String>, Vec<String>), Vec<String>> {
    let mut importer =
        Importer { arguments, rules: Vec::new(), names: Names::default(), notes: Vec::new(), faults: Vec::new() };
    importer.walk(&file.descriptors, &[], "descriptors");
    importer.replace();
    if !importer.faults.is_empty() {
        return Err(importer.faults);
    }
    if importer.rules.is_empty() {
        importer.notes.push("has no limits, so there is no policy for it".to_owned());
    }
    let chunks = || importer.rules.chunks(MOST_RULES);
    let policies: Vec<_> = chunks()
        .map(|rules| policy(&file.domain, &rules.iter().map(|found| &found.rule).collect::<Vec<_>>(), arguments, taken))
        .collect();
    let faults: Vec<_> = policies.iter().zip(chunks()).flat_map(|(policy, rules)| faults(policy, rules)).collect();
    if faults.is_empty() { Ok((policies, importer.notes)) } else { Err(faults) }
}

/// Parses a file.
pub(super) fn file(text: &str) -> Result<File, Vec<String>> {
    let value = match documents::one_value(&words::quoted(text)) {
        Ok(Value::Null) => Err(Vec::new()),
        value => value,
    };
    let value = value.map_err(|faults| {
        let is_empty = documents::read(text).is_empty();
        if is_empty { vec!["is empty: a file must have a domain and its descriptors".to_owned()] } else { faults }
    })?;
    let file: Result<OnlyMap<File>, _> = serde_path_to_error::deserialize(value);
    let OnlyMap(file) = file.map_err(|error| vec![error.to_string()])?;
    if file.domain.is_empty() {
        return Err(vec!["domain: must not be empty".to_owned()]);
    }
    if is_longer(&file.domain, LONGEST_DOMAIN) {
        return Err(vec![format!("domain: has more than {LONGEST_DOMAIN} characters")]);
    }
    Ok(file)
}

fn is_longer(text: &str, most: usize) -> bool {
    text.chars().count() > most
}

/// Returns what a cluster refuses in a policy, with the places of the descriptors in the file.
///
/// The checks of the importer should find it first.
fn faults(policy: &str, rules: &[Found<'_>]) -> Vec<String> {
    let place = |path: &str| {
        let (index, rest) = path.strip_prefix("spec.rules[")?.split_once(']')?;
        let found = rules.get(index.parse::<usize>().ok()?)?;
        Some(format!("{}: its rule is not valid: {}", found.place, rest.trim_start_matches('.')))
    };
    let message = |finding: documents::Finding| {
        let path = finding.fault.path;
        let place = place(&path).unwrap_or_else(|| format!("its policy is not valid: {path}"));
        format!("{place}: {}", finding.fault.message)
    };
    let broken = documents::read(policy).policies().err().unwrap_or_default();
    broken.findings.into_iter().map(message).collect()
}

/// Returns a policy that is valid exactly if the flags are.
pub(super) fn sample(arguments: &EnvoyRatelimit) -> String {
    let mut rule = json!({"name": "all", "limits": [{"name": "rate", "requests": 1, "per": "1s"}]});
    add_scope(&mut rule, arguments);
    policy("all", &[&rule], arguments, &mut Names::default())
}

fn policy(domain: &str, rules: &[&Value], arguments: &EnvoyRatelimit, taken: &mut Names) -> String {
    let mut policy = json!({
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": {"name": taken.new_from(domain)},
        "spec": {"domain": domain, "rules": rules},
    });
    let spec = &mut policy["spec"];
    if arguments.selector.is_empty() {
        spec["targetRefs"] = json!([{"kind": arguments.target.kind, "name": arguments.target.name}]);
    } else {
        let labels: serde_json::Map<_, _> =
            arguments.selector.iter().map(|(label, value)| (label.clone(), json!(value))).collect();
        spec["selector"] = json!({"matchLabels": labels});
    }
    words::quoted_for_kubectl(&serde_yaml::to_string(&in_order(&policy)).unwrap_or_default())
}

fn add_scope(rule: &mut Value, arguments: &EnvoyRatelimit) {
    match arguments.scope {
        Scope::Pod => {}
        Scope::Fleet => rule["scope"] = json!("Fleet"),
        Scope::Shared => {
            rule["scope"] = json!("Shared");
            rule["shared"] = json!({"storeRef": {"name": arguments.store}});
        }
    }
}

/// Sorts the fields of objects as people write them.
fn in_order(value: &Value) -> serde_yaml::Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name));
            fields.into_iter().map(|(name, value)| (name.as_str().into(), in_order(value))).collect::<Mapping>().into()
        }
        Value::Array(items) => items.iter().map(in_order).collect::<Vec<_>>().into(),
        other => serde_yaml::to_value(other).unwrap_or_default(),
    }
}

impl<'a> Importer<'a> {
    /// Adds the rules of siblings and of all nodes below them.
    fn walk(&mut self, siblings: &'a [Node], above: &[Level<'a>], path: &str) {
        for (index, node) in siblings.iter().enumerate() {
            let place = format!("{path}[{index}]");
            if siblings[..index].iter().any(|other| (&other.key, &other.value) == (&node.key, &node.value)) {
                self.fault(&place, "has the key and the value of an earlier sibling: remove one of them");
                continue;
            }
            if node.key.is_empty() || node.key.contains('*') {
                self.fault(&place, "key: must not be empty, and must not contain *");
                continue;
            }
            let value = node.value.strip_suffix('*').unwrap_or(&node.value);
            if value.contains('*') {
                // Some versions of envoyproxy/ratelimit match any text there, and others only a star.
                self.fault(
                    &place,
                    "value: has a * before its end: a rule matches one value or the values with a prefix",
                );
                continue;
            }
            if is_longer(&node.key, LONGEST_KEY) {
                self.fault(&place, &format!("key: has more than {LONGEST_KEY} characters"));
            }
            if is_longer(value, LONGEST_VALUE) {
                self.fault(&place, &format!("value: has more than {LONGEST_VALUE} characters"));
            }
            if node.share_threshold && !matches!(node.pattern(), Pattern::Prefix(_)) {
                self.fault(&place, "share_threshold: is valid only with a value that ends with *");
            }
            if node.metadata.is_some() {
                self.notes.push(format!("{place}.metadata: answers contain no metadata, so it has no effect"));
            }
            for (field, is_set) in
                [("detailed_metric", node.detailed_metric), ("value_to_metric", node.value_to_metric)]
            {
                if is_set {
                    self.notes.push(format!("{place}.{field}: no metric has values as labels, so it has no effect"));
                }
            }
            self.note_other_keys(siblings, index, &place);
            let Some(entry) = self.entry(siblings, index, &place) else { continue };
            let levels = [above, &[Level { entry, node }]].concat();
            if let Some(limit) = &node.rate_limit {
                self.rule(&levels, limit, place.clone());
            }
            self.walk(&node.descriptors, &levels, &format!("{place}.descriptors"));
        }
    }

    /// Notes the keys of siblings whose values a node also takes in envoyproxy/ratelimit. It compares texts of the form
    /// `key_value`, so that the key `user` with the value `*` takes each value of the key `user_id`, too.
    fn note_other_keys(&mut self, siblings: &[Node], index: usize, place: &str) {
        let node = &siblings[index];
        let (text, is_prefix) = match node.pattern() {
            Pattern::Any => return,
            Pattern::Exact(value) => (format!("{}_{value}", node.key), false),
            Pattern::Prefix(start) => (format!("{}_{start}", node.key), true),
        };
        let takes = |other: &Node| {
            let of_key = format!("{}_", other.key);
            match other.pattern() {
                // An exact value is tried first, and the file may not contain the same text twice.
                Pattern::Exact(_) => false,
                _ if other.key == node.key => false,
                Pattern::Any | Pattern::Prefix(_) => {
                    text.starts_with(&of_key) || is_prefix && of_key.starts_with(&text)
                }
            }
        };
        let mut keys: Vec<_> = siblings.iter().filter(|other| takes(other)).map(|other| &*other.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let star = if is_prefix { "*" } else { "" };
        let notes = keys.iter().map(|key| {
            format!(
                "{place}: envoyproxy/ratelimit compares the text {text}{star} also with values of the key {key}, which it limits \
                 here then; Weir limits them only by the descriptors with the key {key}"
            )
        });
        self.notes.extend(notes);
    }

    /// The entry that a node matches. None if it matches nothing.
    fn entry(&mut self, siblings: &[Node], index: usize, place: &str) -> Option<Value> {
        let node = &siblings[index];
        let others = || siblings.iter().enumerate().filter(|(at, other)| *at != index && other.key == node.key);
        let exact = others().filter_map(|(_, other)| match other.pattern() {
            Pattern::Exact(value) => Some(value),
            _ => None,
        });
        // Siblings with a prefix are tried before a sibling without a value, and in the order of the file.
        let own_place = if node.pattern() == Pattern::Any { siblings.len() } else { index };
        let earlier = others().filter(|(at, _)| *at < own_place).filter_map(|(_, other)| match other.pattern() {
            Pattern::Prefix(start) => Some(start),
            _ => None,
        });
        let (start, mut entry) = match node.pattern() {
            Pattern::Exact(value) => return Some(json!({"key": node.key, "value": value})),
            Pattern::Prefix("") | Pattern::Any => ("", json!({"key": node.key})),
            Pattern::Prefix(start) => (start, json!({"key": node.key, "prefix": start})),
        };
        let earlier: Vec<_> = earlier.collect();
        if earlier.iter().any(|other| start.starts_with(other)) {
            self.notes.push(format!("{place}: an earlier sibling takes all its values, so it has no effect"));
            return None;
        }
        let values: Vec<_> = exact.filter(|value| value.starts_with(start)).collect();
        let covered = |prefix: &str| earlier.iter().any(|other| *other != prefix && prefix.starts_with(other));
        let prefixes = earlier.iter().filter(|other| other.starts_with(start) && !covered(other));
        let prefixes: Vec<_> = prefixes.collect();
        if values.len() > MOST_EXCEPTIONS || prefixes.len() > MOST_EXCEPTIONS {
            let message = format!("has more than {MOST_EXCEPTIONS} siblings with a value: use overrides of one rule");
            self.fault(place, &message);
            return None;
        }
        if !values.is_empty() {
            entry["exceptValues"] = json!(values);
        }
        if !prefixes.is_empty() {
            entry["exceptPrefixes"] = json!(prefixes);
        }
        Some(entry)
    }

    /// Adds the rule of a limit.
    fn rule(&mut self, levels: &[Level<'a>], limit: &'a RateLimit, place: String) {
        let Some(Level { node, .. }) = levels.last() else { return };
        let key: Vec<_> = levels.iter().filter(|level| level.node.separates()).map(|level| &level.node.key).collect();
        self.check(levels, &key, limit, &place);
        let name = if limit.name.is_empty() {
            let part = |level: &Level<'_>| format!("{} {}", level.node.key, level.node.value);
            self.names.new_from(&levels.iter().map(part).collect::<Vec<_>>().join(" "))
        } else {
            self.names.new_from(&limit.name)
        };
        let entries: Vec<_> = levels.iter().map(|level| level.entry.clone()).collect();
        let mut rule = json!({"name": name, "match": [{"descriptor": entries}]});
        if node.shadow_mode {
            rule["mode"] = json!("Shadow");
        }
        if limit.unlimited {
            rule["action"] = json!("Bypass");
        } else if let Some(per) = self.per(limit, &place) {
            if limit.requests_per_unit == 0 {
                rule["action"] = json!("Deny");
            } else {
                if !key.is_empty() {
                    rule["key"] = key.iter().map(|key| json!({"descriptor": key})).collect();
                }
                add_scope(&mut rule, self.arguments);
                let requests = limit.requests_per_unit;
                let strategy = "FixedWindow";
                rule["limits"] = json!([{"name": "rate", "requests": requests, "per": per, "strategy": strategy}]);
            }
        }
        self.rules.push(Found { rule, limit, place });
    }

    /// Finds what a rule cannot do.
    fn check(&mut self, levels: &[Level<'_>], key: &[&String], limit: &RateLimit, place: &str) {
        let is_ambiguous = |(index, level): (usize, &Level<'_>)| {
            level.node.separates() && levels[..index].iter().any(|before| before.node.key == level.node.key)
        };
        if levels.len() > MOST_ENTRIES {
            self.fault(place, &format!("has more than {MOST_ENTRIES} levels"));
        }
        if key.len() > MOST_KEY_PARTS {
            self.fault(place, &format!("counts by more than {MOST_KEY_PARTS} entries"));
        }
        if let Some((_, level)) = levels.iter().enumerate().find(|level| is_ambiguous(*level)) {
            let key = &level.node.key;
            let message = format!("key: {key} is on two levels, and a rule counts only the values of the first");
            self.fault(place, &message);
        }
        if levels.last().is_some_and(|level| level.node.quota_mode) {
            self.fault(place, "quota_mode: has no equivalent: remove it");
        }
        if limit.unlimited && UNITS.contains(&limit.unit.to_ascii_lowercase().as_str()) {
            self.fault(
                place,
                "rate_limit: has unlimited and a unit, which envoyproxy/ratelimit refuses: remove one of them",
            );
        }
        if !limit.unlimited && limit.requests_per_unit > MOST_REQUESTS {
            let requests = limit.requests_per_unit;
            let message =
                format!("is {requests}, and the most is {MOST_REQUESTS}: choose a smaller number, or unlimited");
            self.fault(place, &format!("rate_limit.requests_per_unit: {message}"));
        }
    }

    fn per(&mut self, limit: &RateLimit, place: &str) -> Option<&'static str> {
        let per = match limit.unit.to_ascii_lowercase().as_str() {
            "second" => "1s",
            "minute" => "1m",
            "hour" => "1h",
            "day" => "24h",
            "week" | "month" | "year" => {
                self.fault(place, "rate_limit.unit: the longest period is a day: choose day, and a smaller number");
                return None;
            }
            other => {
                let message = format!("rate_limit.unit: {other:?} is not a unit: use second, minute, hour or day");
                self.fault(place, &message);
                return None;
            }
        };
        Some(per)
    }

    /// Converts the names of replaced limits to names of rules.
    fn replace(&mut self) {
        let name_of = |found: &Found<'_>| found.rule["name"].as_str().unwrap_or_default().to_owned();
        let mut replaced = Vec::new();
        for (index, found) in self.rules.iter().enumerate() {
            let mut names = Vec::new();
            for wanted in &found.limit.replaces {
                let is_wanted = |other: &&(usize, &Found<'_>)| other.1.limit.name == wanted.name && other.0 != index;
                let others: Vec<_> = self.rules.iter().enumerate().collect();
                let others: Vec<_> = others.iter().filter(is_wanted).collect();
                if wanted.name.is_empty() || wanted.name == found.limit.name {
                    let message = "rate_limit.replaces: must have the names of other limits";
                    self.faults.push(format!("{}: {message}", found.place));
                } else if others.is_empty() {
                    self.notes.push(format!("{}: no limit has the name {:?}", found.place, wanted.name));
                } else if others.iter().any(|(other, _)| other / MOST_RULES != index / MOST_RULES) {
                    let message = format!(
                        "rate_limit.replaces: {:?} is in another policy, because a policy has at most {MOST_RULES} rules",
                        wanted.name
                    );
                    self.faults.push(format!("{}: {message}", found.place));
                }
                names.extend(others.iter().map(|(_, other)| name_of(other)));
            }
            replaced.push(names);
        }
        for (found, names) in self.rules.iter_mut().zip(replaced).filter(|(_, names)| !names.is_empty()) {
            found.rule["replaces"] = json!(names);
        }
    }

    fn fault(&mut self, place: &str, message: &str) {
        self.faults.push(format!("{place}: {message}"));
    }
}
