//! Random configurations of envoyproxy/ratelimit, and its files.
//!
//! Keys and values come from a small set, so that requests often match. Values are counted separately only on the first
//! level with their key, because a rule of Weir counts only these. No key and no value contains `_` or `*`: the peer joins both to one text, and `a` with the
//! value `b_c` would be the same as `a_b` with the value `c`.

use std::fmt::Write as _;

use rand::{Rng, rngs::StdRng, seq::IndexedRandom as _};

use super::super::messages::Unit;

/// The keys of entries.
pub(super) const KEYS: [&str; 3] = ["path", "client", "kind"];
/// The values of entries in requests. An entry can have an empty value.
pub(super) const VALUES: [&str; 6] = ["", "x", "y", "fo", "foo", "fox"];
/// The longest descriptor, and the deepest nesting.
pub(super) const DEPTH: usize = 3;
const MOST_SIBLINGS: usize = 4;
/// The names of limits. Several limits can have one name.
const NAMES: [&str; 3] = ["one", "two", "three"];

/// One domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) domain: String,
    pub(super) nodes: Vec<Node>,
}

/// A descriptor of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) key: &'static str,
    pub(super) value: Pattern,
    pub(super) limit: Option<Limit>,
    pub(super) nodes: Vec<Self>,
}

/// The values that a node matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// No value in the file: every value that no sibling matches.
    Any,
    Exact(&'static str),
    /// `foo*` in the file. With `share`, all these values have one count.
    Prefix {
        start: &'static str,
        share: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited { replaces: Vec<&'static str> },
    Rate { requests: u32, unit: Unit, shadow: bool, name: Option<&'static str>, replaces: Vec<&'static str> },
}

impl Config {
    /// A configuration whose windows are as short as `units` allows.
    pub(super) fn random(domain: String, units: &[Unit], random: &mut StdRng) -> Self {
        Self { domain, nodes: Node::siblings(&[], units, random) }
    }

    /// The file of envoyproxy/ratelimit.
    pub(super) fn yaml(&self) -> String {
        let mut text = format!("domain: {}\n", self.domain);
        write_nodes(&mut text, &self.nodes, 0);
        text
    }
}

impl Node {
    /// Siblings below nodes with the keys `above`.
    fn siblings(above: &[&'static str], units: &[Unit], random: &mut StdRng) -> Vec<Self> {
        let mut nodes: Vec<Self> = Vec::new();
        for _ in 0..random.random_range(1..=MOST_SIBLINGS) {
            let key = *KEYS.choose(random).expect("keys");
            let value = Pattern::random(random);
            if above.contains(&key) && value.separates() {
                continue;
            }
            // The peer refuses two siblings with one name.
            if nodes.iter().any(|node| node.key == key && node.value.text() == value.text()) {
                continue;
            }
            let nested = above.len() + 1 < DEPTH && random.random_bool(0.5);
            let below = if nested { Self::siblings(&[above, &[key]].concat(), units, random) } else { Vec::new() };
            // A node without a limit matches nothing, but it hides its siblings.
            let limited = random.random_bool(0.8);
            let limit = limited.then(|| Limit::random(units, random));
            nodes.push(Self { key, value, limit, nodes: below });
        }
        nodes
    }
}

impl Pattern {
    fn random(random: &mut StdRng) -> Self {
        match random.random_range(0..10) {
            0..4 => Self::Any,
            4..7 => Self::Exact(VALUES[1..].choose(random).expect("values")),
            _ => {
                let start = ["", "f", "fo", "foo", "x"].choose(random).expect("prefixes");
                Self::Prefix { start, share: random.random_bool(0.3) }
            }
        }
    }

    /// The value in the file; none if there is none.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::Exact(value) => Some((*value).to_owned()),
            Self::Prefix { start, .. } => Some(format!("{start}*")),
        }
    }

    /// Whether this pattern alone matches a value.
    pub(super) fn matches(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => value == *exact,
            Self::Prefix { start, .. } => value.starts_with(start),
        }
    }

    /// Whether requests with different values are counted separately.
    pub(super) fn separates(&self) -> bool {
        matches!(self, Self::Any | Self::Prefix { share: false, .. })
    }
}

impl Limit {
    /// The names of the limits that this limit replaces.
    pub(super) fn replaces(&self) -> &[&'static str] {
        match self {
            Self::Unlimited { replaces } | Self::Rate { replaces, .. } => replaces,
        }
    }

    fn random(units: &[Unit], random: &mut StdRng) -> Self {
        let name = random.random_bool(0.3).then(|| *NAMES.choose(random).expect("names"));
        let mut replaces = Vec::new();
        if random.random_bool(0.15) {
            replaces.extend(NAMES.iter().filter(|other| Some(**other) != name && random.random_bool(0.5)));
        }
        if random.random_bool(0.1) {
            return Self::Unlimited { replaces };
        }
        let unit = *units.choose(random).expect("units");
        Self::Rate { requests: random.random_range(1..=8), unit, shadow: random.random_bool(0.15), name, replaces }
    }
}

/// The units of all limits, without repetitions.
pub(super) fn units(nodes: &[Node]) -> Vec<Unit> {
    let mut units: Vec<_> = nodes
        .iter()
        .flat_map(|node| {
            let own = match node.limit {
                Some(Limit::Rate { unit, .. }) => Some(unit),
                _ => None,
            };
            own.into_iter().chain(units(&node.nodes))
        })
        .collect();
    units.sort_unstable();
    units.dedup();
    units
}

fn write_nodes(text: &mut String, nodes: &[Node], depth: usize) {
    if nodes.is_empty() {
        return;
    }
    let pad = "  ".repeat(depth);
    let _ = writeln!(text, "{pad}descriptors:");
    for node in nodes {
        let _ = writeln!(text, "{pad}- key: {}", node.key);
        if let Some(value) = node.value.text() {
            let _ = writeln!(text, "{pad}  value: \"{value}\"");
        }
        if let Pattern::Prefix { share: true, .. } = node.value {
            let _ = writeln!(text, "{pad}  share_threshold: true");
        }
        match &node.limit {
            Some(Limit::Unlimited { replaces }) => {
                let replaces = replaced(replaces);
                let _ = writeln!(text, "{pad}  rate_limit: {{unlimited: true{replaces}}}");
            }
            Some(Limit::Rate { requests, unit, shadow, name, replaces }) => {
                let (unit, replaces) = (unit.name(), replaced(replaces));
                let name = name.map(|name| format!(", name: {name}")).unwrap_or_default();
                let limit = format!("unit: {unit}, requests_per_unit: {requests}{name}{replaces}");
                let _ = writeln!(text, "{pad}  rate_limit: {{{limit}}}");
                if *shadow {
                    let _ = writeln!(text, "{pad}  shadow_mode: true");
                }
            }
            None => {}
        }
        write_nodes(text, &node.nodes, depth + 1);
    }
}

/// The field `replaces` of a limit.
fn replaced(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("{{name: {name}}}")).collect();
    if names.is_empty() { String::new() } else { format!(", replaces: [{}]", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_every_field() {
        let rate = |shadow| {
            let (name, replaces) = (Some("one"), vec!["two", "three"]);
            Some(Limit::Rate { requests: 3, unit: Unit::Hour, shadow, name, replaces })
        };
        let leaf = |value, limit| Node { key: "path", value, limit, nodes: Vec::new() };
        let nodes = vec![
            leaf(Pattern::Exact("x"), rate(true)),
            leaf(Pattern::Prefix { start: "fo", share: true }, Some(Limit::Unlimited { replaces: vec![] })),
        ];
        let config = Config {
            domain: "d".to_owned(),
            nodes: vec![Node { key: "client", value: Pattern::Any, limit: None, nodes }],
        };
        let expected = "\
domain: d
descriptors:
- key: client
  descriptors:
  - key: path
    value: \"x\"
    rate_limit: {unit: hour, requests_per_unit: 3, name: one, replaces: [{name: two}, {name: three}]}
    shadow_mode: true
  - key: path
    value: \"fo*\"
    share_threshold: true
    rate_limit: {unlimited: true}
";
        assert_eq!(config.yaml(), expected);
        assert_eq!(units(&config.nodes), [Unit::Hour]);
    }
}
