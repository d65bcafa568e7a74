//! Random configurations of envoyproxy/ratelimit, and its files.
//!
//! Keys and values come from a small set, so that requests often match, and so that the translation for Weir can list
//! all values of an entry. No key and no value contains `_` or `*`: the peer joins both to one text, and `a` with the
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
    Unlimited,
    Rate { requests: u32, unit: Unit, shadow: bool },
}

impl Config {
    /// A configuration whose windows are as short as `units` allows.
    pub(super) fn random(domain: String, units: &[Unit], random: &mut StdRng) -> Self {
        Self { domain, nodes: Node::siblings(1, units, random) }
    }

    /// The file of envoyproxy/ratelimit.
    pub(super) fn yaml(&self) -> String {
        let mut text = format!("domain: {}\n", self.domain);
        write_nodes(&mut text, &self.nodes, 0);
        text
    }
}

impl Node {
    fn siblings(depth: usize, units: &[Unit], random: &mut StdRng) -> Vec<Self> {
        let mut nodes: Vec<Self> = Vec::new();
        for _ in 0..random.random_range(1..=MOST_SIBLINGS) {
            let key = KEYS.choose(random).expect("keys");
            let value = Pattern::random(random);
            // The peer refuses two siblings with one name.
            if nodes.iter().any(|node| node.key == *key && node.value.text() == value.text()) {
                continue;
            }
            let nested = depth < DEPTH && random.random_bool(0.5);
            let below = if nested { Self::siblings(depth + 1, units, random) } else { Vec::new() };
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
    fn random(units: &[Unit], random: &mut StdRng) -> Self {
        if random.random_bool(0.1) {
            return Self::Unlimited;
        }
        let unit = *units.choose(random).expect("units");
        Self::Rate { requests: random.random_range(1..=8), unit, shadow: random.random_bool(0.15) }
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
            Some(Limit::Unlimited) => {
                let _ = writeln!(text, "{pad}  rate_limit: {{unlimited: true}}");
            }
            Some(Limit::Rate { requests, unit, shadow }) => {
                let unit = unit.name();
                let _ = writeln!(text, "{pad}  rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}");
                if *shadow {
                    let _ = writeln!(text, "{pad}  shadow_mode: true");
                }
            }
            None => {}
        }
        write_nodes(text, &node.nodes, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_every_field() {
        let rate = |shadow| Some(Limit::Rate { requests: 3, unit: Unit::Hour, shadow });
        let leaf = |value, limit| Node { key: "path", value, limit, nodes: Vec::new() };
        let nodes = vec![
            leaf(Pattern::Exact("x"), rate(true)),
            leaf(Pattern::Prefix { start: "fo", share: true }, Some(Limit::Unlimited)),
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
    rate_limit: {unit: hour, requests_per_unit: 3}
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
