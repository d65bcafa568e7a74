//! A trie of globs by their segments. One walk along a path finds the globs that can match it.
//!
//! The walk compares neither a segment that contains `*` nor the segments after a `**`, so the result can contain a
//! glob that does not match. The result never omits a glob that matches.

use std::collections::HashMap;

use super::glob::{Glob, Step};

/// The maximum number of segments that a walk compares. The walk branches where both a literal and a `*` continue, so
/// this maximum bounds the work.
const DEEPEST: usize = 8;

/// Globs, with the entry of each glob.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<str>, usize, foldhash::fast::RandomState>,
    /// The next node for a segment that contains `*`.
    any: Option<usize>,
    /// Entries whose glob ends at this node.
    here: Vec<u32>,
    /// Entries whose glob continues with `**`, or with more segments than a walk compares.
    below: Vec<u32>,
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Trie {
    pub(super) fn insert(&mut self, glob: &Glob, entry: u32) {
        let mut at = 0;
        for (depth, step) in glob.steps().enumerate() {
            if step == Step::Any || depth == DEEPEST {
                self.nodes[at].below.push(entry);
                return;
            }
            let next = self.nodes.len();
            let node = &mut self.nodes[at];
            at = match step {
                Step::Literal(text) => *node.literals.entry(text.into()).or_insert(next),
                Step::One | Step::Any => *node.any.get_or_insert(next),
            };
            if at == next {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[at].here.push(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Appends the entries whose glob can match `path`, which must be in normal form. Can append duplicates.
    pub(super) fn find(&self, path: &str, to: &mut Vec<u32>) {
        self.walk(&self.nodes[0], Some(path.strip_prefix('/').unwrap_or(path)), to);
    }

    fn walk(&self, node: &Node, rest: Option<&str>, to: &mut Vec<u32>) {
        to.extend_from_slice(&node.below);
        // A final slash of the path is ignored.
        if rest.is_none_or(str::is_empty) {
            to.extend_from_slice(&node.here);
        }
        let Some(rest) = rest else { return };
        let (segment, rest) = rest.split_once('/').map_or((rest, None), |(segment, rest)| (segment, Some(rest)));
        for next in [node.literals.get(segment).copied(), node.any].into_iter().flatten() {
            self.walk(&self.nodes[next], rest, to);
        }
    }
}
