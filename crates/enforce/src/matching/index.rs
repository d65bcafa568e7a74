//! Finds the rules that can match a request. The cost is nearly independent of the number of rules.
//!
//! Every entry of every `match` list is indexed by one of its conditions: its paths, its hosts, a header, a query
//! parameter, or its regular expressions. The index chooses the condition that the fewest other entries share. For a
//! request, it returns only the entries with the request's path, host, header or query parameter, and the entries
//! without such a condition. These are candidates: the index can return an entry that does not match, but never omits
//! an entry that matches. The exact conditions decide.

use std::collections::HashMap;

use http::HeaderName;
use weir_expressions::{PathRegex, PathRegexSet};

use super::{
    Conditions, HostPattern, Matcher, RequestView, ValueCondition,
    glob::{Glob, Step},
    trie::Trie,
};

/// The number of entries up to which all are checked one by one, because an index would cost more.
const MAX_UNINDEXED: usize = 8;

type ByKey<K> = HashMap<K, Vec<u32>, foldhash::fast::RandomState>;

type ByValue = ByKey<Box<[u8]>>;

/// The entries of a list of matchers, indexed.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The position of the matcher and of the entry in it, for each indexed entry in order.
    entries: Vec<(u32, u32)>,
    /// The entries that are candidates for every request.
    always: Vec<u32>,
    paths: Trie,
    hosts: ByKey<Box<str>>,
    /// Entries by their domains, with the leading dot.
    domains: ByKey<Box<str>>,
    longest_domain: usize,
    headers: Vec<(HeaderName, ByValue)>,
    query: Vec<(Box<[u8]>, ByValue)>,
    descriptor: Vec<(Box<str>, ByValue)>,
    /// The regular expressions, and the entry of each expression.
    regexes: Option<(PathRegexSet, Vec<u32>)>,
}

/// A value by which an entry can be indexed.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key<'a> {
    /// The segments of a glob up to its first `**`.
    Path(Vec<Step<'a>>),
    Host(String),
    Domain(String),
    Header(&'a HeaderName, &'a [u8]),
    Query(&'a [u8], &'a [u8]),
    Descriptor(&'a str, &'a [u8]),
    Regex(&'a str),
}

impl Index {
    pub(crate) fn new<'a>(matchers: impl Iterator<Item = &'a Matcher>) -> Self {
        let mut index = Self::default();
        let mut all = Vec::new();
        for (matcher, position) in matchers.zip(0..) {
            for (conditions, entry) in matcher.entries().iter().zip(0..) {
                index.entries.push((position, entry));
                all.push(conditions);
            }
        }
        let ids = 0..u32::try_from(all.len()).expect("a snapshot is smaller than that");
        if all.len() <= MAX_UNINDEXED {
            index.always.extend(ids);
            return index;
        }
        let ways: Vec<Vec<Vec<Key<'_>>>> = all.iter().map(|conditions| ways_to_file(conditions)).collect();
        let mut entries_per_key: HashMap<&Key<'_>, usize> = HashMap::new();
        for key in ways.iter().flatten().flatten() {
            *entries_per_key.entry(key).or_default() += 1;
        }
        let crowd = |way: &Vec<Key<'_>>| way.iter().map(|key| entries_per_key[key]).max();
        let mut regexes = Vec::new();
        for ((conditions, ways), id) in all.iter().zip(&ways).zip(ids) {
            // `min_by_key` returns the first of several equal ways.
            match ways.iter().min_by_key(|way| crowd(way)) {
                Some(way) => way.iter().for_each(|key| index.file(key, conditions, id, &mut regexes)),
                None => index.always.push(id),
            }
        }
        index.file_regexes(&regexes);
        index
    }

    fn file<'a>(&mut self, key: &Key<'a>, conditions: &Conditions, id: u32, regexes: &mut Vec<(&'a str, u32)>) {
        match key {
            Key::Path(steps) => {
                let same = |glob: &&Glob| glob.steps().take_while(|step| *step != Step::Any).eq(steps.iter().copied());
                conditions.paths.iter().filter(same).for_each(|glob| self.paths.insert(glob, id));
            }
            Key::Host(host) => self.hosts.entry(host.as_str().into()).or_default().push(id),
            Key::Domain(domain) => {
                self.longest_domain = self.longest_domain.max(domain.len());
                self.domains.entry(domain.as_str().into()).or_default().push(id);
            }
            Key::Header(name, value) => {
                let values = of_name(&mut self.headers, |known| known == *name, || (*name).clone());
                values.entry((*value).into()).or_default().push(id);
            }
            Key::Query(name, value) => {
                let values = of_name(&mut self.query, |known| **known == **name, || (*name).into());
                values.entry((*value).into()).or_default().push(id);
            }
            Key::Descriptor(key, value) => {
                let values = of_name(&mut self.descriptor, |known| **known == **key, || (*key).into());
                values.entry((*value).into()).or_default().push(id);
            }
            Key::Regex(pattern) => regexes.push((pattern, id)),
        }
    }

    /// Compiles all expressions into one set. If the set needs too much memory, their entries become candidates for
    /// every request.
    fn file_regexes(&mut self, regexes: &[(&str, u32)]) {
        if regexes.is_empty() {
            return;
        }
        let (patterns, ids): (Vec<&str>, Vec<u32>) = regexes.iter().copied().unzip();
        match PathRegexSet::new(&patterns) {
            Some(set) => self.regexes = Some((set, ids)),
            None => {
                self.always.extend(ids);
                self.always.sort_unstable();
            }
        }
    }

    /// Returns the entries that the request can match, in order and without duplicates. Writes them into the buffer,
    /// unless all entries are candidates.
    #[inline]
    pub(crate) fn candidates<'a>(&'a self, request: &RequestView<'_>, buffer: &'a mut Vec<u32>) -> &'a [u32] {
        if self.always.len() == self.entries.len() {
            return &self.always;
        }
        buffer.clear();
        buffer.extend_from_slice(&self.always);
        self.look_up(request, buffer);
        buffer
    }

    fn look_up(&self, request: &RequestView<'_>, to: &mut Vec<u32>) {
        if !self.paths.is_empty() {
            self.paths.find(request.path(), to);
        }
        if !(self.hosts.is_empty() && self.domains.is_empty()) {
            self.look_up_host(request.host(), to);
        }
        for (name, values) in &self.headers {
            for value in request.headers().all(name) {
                to.extend(values.get(value).into_iter().flatten());
            }
        }
        for (name, values) in &self.query {
            for value in request.query(name) {
                to.extend(values.get(&*value).into_iter().flatten());
            }
        }
        for (key, values) in &self.descriptor {
            for (_, value) in request.descriptor().iter().filter(|(entry, _)| *entry == &**key) {
                to.extend(values.get(value.as_bytes()).into_iter().flatten());
            }
        }
        if let Some((set, ids)) = &self.regexes {
            match set.matches(request.path()) {
                Some(found) => to.extend(found.into_iter().map(|pattern| ids[pattern])),
                None => to.extend(ids),
            }
        }
        to.sort_unstable();
        to.dedup();
    }

    fn look_up_host(&self, host: &str, to: &mut Vec<u32>) {
        let lower;
        let host = if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            lower = host.to_ascii_lowercase();
            lower.as_str()
        } else {
            host
        };
        to.extend(self.hosts.get(host).into_iter().flatten());
        // A client can send a long host. Suffixes that are longer than all indexed domains are not looked up.
        let start = host.len().saturating_sub(self.longest_domain);
        for (dot, _) in host.match_indices('.').filter(|&(dot, _)| dot >= start && dot > 0) {
            to.extend(self.domains.get(&host[dot..]).into_iter().flatten());
        }
    }

    /// The number of entries.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the position of an entry's matcher, and the position of the entry in that matcher.
    pub(crate) fn entry(&self, id: u32) -> (usize, usize) {
        let (matcher, entry) = self.entries[id as usize];
        (matcher as usize, entry as usize)
    }
}

/// Returns the ways to index an entry. Each way is a list of keys. A matching request has at least one of the keys.
fn ways_to_file(conditions: &Conditions) -> Vec<Vec<Key<'_>>> {
    let mut ways = Vec::new();
    let paths: Vec<Key<'_>> = conditions.paths.iter().filter_map(path_key).collect();
    if !paths.is_empty() && paths.len() == conditions.paths.len() {
        ways.push(paths);
    }
    if !conditions.hosts.is_empty() {
        ways.push(conditions.hosts.iter().map(host_key).collect());
    }
    let headers = conditions.headers.iter().filter_map(|field| Some(Key::Header(&field.name, whole(&field.value)?)));
    let query = conditions.query.iter().filter_map(|field| Some(Key::Query(&field.name, whole(&field.value)?)));
    let entries =
        conditions.descriptor.iter().filter_map(|entry| Some(Key::Descriptor(&entry.name, whole(&entry.value)?)));
    ways.extend(headers.chain(query).chain(entries).map(|key| vec![key]));
    if !conditions.path_regexes.is_empty() {
        ways.push(conditions.path_regexes.iter().map(PathRegex::as_str).map(Key::Regex).collect());
    }
    ways
}

/// The value that a condition requires. `None` if several values meet the condition.
fn whole(value: &ValueCondition) -> Option<&[u8]> {
    if let ValueCondition::Exactly(whole) = value { Some(whole) } else { None }
}

/// The key of a glob. `None` if the glob has no literal before its first `**`.
fn path_key(glob: &Glob) -> Option<Key<'_>> {
    let steps: Vec<Step<'_>> = glob.steps().take_while(|step| *step != Step::Any).collect();
    steps.iter().any(|step| matches!(step, Step::Literal(_))).then_some(Key::Path(steps))
}

fn host_key(pattern: &HostPattern) -> Key<'static> {
    match pattern {
        HostPattern::Exact(host) => Key::Host(host.to_ascii_lowercase()),
        HostPattern::Below(domain) => Key::Domain(domain.to_ascii_lowercase()),
    }
}

/// Returns the value for a name. Inserts a default value if the list does not have the name.
fn of_name<N, V: Default>(list: &mut Vec<(N, V)>, is: impl Fn(&N) -> bool, name: impl FnOnce() -> N) -> &mut V {
    let at = list.iter().position(|(known, _)| is(known)).unwrap_or_else(|| {
        list.push((name(), V::default()));
        list.len() - 1
    });
    &mut list[at].1
}
