//! Globs by their segments: which of many can match a path, found in one walk along the path.
//!
//! It may name one that does not match (what a segment with a `*` looks like is not compared here, nor is what follows a
//! `**`), and never leaves one out that does.

use std::collections::HashMap;

use super::glob::{Glob, Step};

/// Segments that are looked at. A walk goes two ways where a literal and a `*` are on offer: this bounds it.
const DEEPEST: usize = 8;

/// Globs, each with the entry that it belongs to.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<str>, usize, foldhash::fast::RandomState>,
    /// Where any segment leads.
    any: Option<usize>,
    /// Entries whose glob ends here.
    here: Vec<u32>,
    /// Entries whose glob goes on with anything.
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

    /// Appends the entries whose glob can match `path`, which is in its normal form; some of them twice.
    pub(super) fn find(&self, path: &str, to: &mut Vec<u32>) {
        self.walk(&self.nodes[0], Some(path.strip_prefix('/').unwrap_or(path)), to);
    }

    fn walk(&self, node: &Node, rest: Option<&str>, to: &mut Vec<u32>) {
        to.extend_from_slice(&node.below);
        // A final slash does not count.
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
