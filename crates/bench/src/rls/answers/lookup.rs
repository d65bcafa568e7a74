//! Finds the limit of a descriptor as envoyproxy/ratelimit does. On each level, envoyproxy/ratelimit takes the sibling
//! with the exact value, otherwise the first sibling in the file whose prefix fits, otherwise the sibling without a
//! value. It never goes back to a sibling that it has passed, and the descriptor must end where the limit is.

use super::{
    super::messages::Entry,
    config::{Config, Limit, Node, Pattern},
};

/// A limit, and the nodes that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) nodes: Vec<&'a Node>,
    pub(super) limit: &'a Limit,
}

/// Finds the limit of a descriptor.
pub(super) fn find<'a>(config: &'a Config, entries: &[Entry]) -> Option<Found<'a>> {
    let mut siblings = &config.nodes;
    let mut nodes = Vec::new();
    for entry in entries {
        let node = choose(siblings, entry)?;
        nodes.push(node);
        siblings = &node.nodes;
    }
    let limit = nodes.last()?.limit.as_ref()?;
    Some(Found { nodes, limit })
}

fn choose<'a>(siblings: &'a [Node], entry: &Entry) -> Option<&'a Node> {
    let mut named = siblings.iter().filter(|node| node.key == entry.key);
    let exact = named.clone().find(|node| matches!(node.value, Pattern::Exact(value) if value == entry.value));
    let prefix =
        || named.clone().find(|node| matches!(node.value, Pattern::Prefix { .. }) && node.value.matches(&entry.value));
    exact.or_else(prefix).or_else(|| named.find(|node| node.value == Pattern::Any))
}

#[cfg(test)]
mod tests {
    use super::{super::super::messages::Unit, *};

    fn node(value: Pattern, requests: u32, nodes: Vec<Node>) -> Node {
        let limit = (requests > 0).then_some(Limit::Rate {
            requests,
            unit: Unit::Hour,
            shadow: false,
            name: None,
            replaces: vec![],
        });
        Node { key: "path", value, limit, nodes }
    }

    /// The number of requests of the limit that is found; 0 if there is none.
    fn found(nodes: &[Node], values: &[&str]) -> u32 {
        let config = Config { domain: "d".to_owned(), nodes: nodes.to_vec() };
        let entry = |value: &&str| Entry { key: "path".to_owned(), value: (*value).to_owned() };
        let entries: Vec<_> = values.iter().map(entry).collect();
        match find(&config, &entries).map(|found| found.limit) {
            Some(Limit::Rate { requests, .. }) => *requests,
            _ => 0,
        }
    }

    #[test]
    fn the_most_specific_sibling_wins() {
        let prefix = |start| Pattern::Prefix { start, share: false };
        let nodes = [
            node(Pattern::Any, 1, vec![]),
            node(prefix("f"), 2, vec![]),
            node(prefix("foo"), 3, vec![]),
            node(Pattern::Exact("foo"), 4, vec![]),
        ];
        let values = [("x", 1), ("fox", 2), ("foobar", 2), ("foo", 4), ("", 1)];
        for (value, requests) in values {
            assert_eq!(found(&nodes, &[value]), requests, "{value}");
        }
    }

    #[test]
    fn a_passed_sibling_stays_passed() {
        let exact = |value, below| node(Pattern::Exact(value), 0, below);
        let nodes = [
            exact("x", vec![exact("y", vec![]), node(Pattern::Exact("fo"), 1, vec![])]),
            node(Pattern::Any, 2, vec![node(Pattern::Any, 3, vec![])]),
        ];
        assert_eq!(found(&nodes, &["x", "fo"]), 1);
        assert_eq!(found(&nodes, &["x", "foo"]), 0, "the sibling without a value would have a limit");
        assert_eq!(found(&nodes, &["x"]), 0);
        assert_eq!(found(&nodes, &["y", "foo"]), 3);
        assert_eq!(found(&nodes, &["y", "foo", "x"]), 0, "longer than the configuration");
        assert_eq!(found(&nodes, &[]), 0);
    }
}
