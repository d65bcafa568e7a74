//! Parses policies from text: YAML with any number of documents, and lists as `kubectl get -o yaml` writes them.
//!
//! The module validates them with the same schema and CEL rules as an apiserver. It ignores documents of other kinds, so
//! that one file can contain a policy and its workload.

mod cluster;
mod yaml;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    rc::Rc,
    sync::Arc,
};

use kube::Resource;
use serde_json::Value;
use weir_api::{RateLimitPolicy, RateLimitPolicySpec, RateLimitStore, RateLimitStoreSpec, check};

pub use self::yaml::TextPosition;
use self::yaml::Tree;
use crate::{
    compile::compile,
    world::{Fault, ObjectKey},
};

/// The namespace of a policy that does not name one.
const DEFAULT_NAMESPACE: &str = "default";

/// The specs of policies.
pub type Specs = BTreeMap<ObjectKey, Arc<RateLimitPolicySpec>>;

/// The specs of stores.
pub type StoreSpecs = BTreeMap<ObjectKey, Arc<RateLimitStoreSpec>>;

/// A fault in a text, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The place of the field, or of its parent if the field is absent.
    pub place: TextPosition,
    /// The fault, with its path and message.
    pub fault: Fault,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

/// A policy in a text, or its faults.
#[derive(Debug)]
pub struct Document {
    /// The policy's name, if it can be read.
    pub key: Option<ObjectKey>,
    /// The policy's spec.
    pub policy: Result<Arc<RateLimitPolicySpec>, Vec<Finding>>,
    tree: Rc<Tree>,
    /// The prefix of paths in the document: empty, or such as `items[0].`.
    prefix: String,
}

impl Document {
    /// Returns a finding about a field.
    pub fn finding(&self, path: &str, message: impl Into<String>) -> Finding {
        let path = format!("{}{path}", self.prefix);
        Finding { place: self.tree.place(&path), fault: Fault { path, message: message.into() } }
    }
}

/// A parsed text.
#[derive(Debug, Default)]
pub struct Text {
    /// All policies, and all documents that may have been intended as policies.
    pub policies: Vec<Document>,
    /// All stores without faults.
    pub stores: StoreSpecs,
    /// The place of the name of each of these stores.
    pub store_names: BTreeMap<ObjectKey, Finding>,
    /// The faults of stores.
    pub store_findings: Vec<Finding>,
    /// What `kubectl apply` refuses or reads as another policy. Standalone mode accepts it.
    pub cluster_findings: Vec<Finding>,
    /// The number of documents of other kinds.
    pub others: usize,
}

/// The faults of a text, and the policies that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// All faults.
    pub findings: Vec<Finding>,
    /// The policies that the text names.
    pub named: BTreeSet<ObjectKey>,
}

/// Parses a text.
pub fn read(text: &str) -> Text {
    let mut read = Text::default();
    for mut tree in yaml::read(text) {
        match tree.value.take() {
            Some(Value::Null) if tree.faults.is_empty() => {}
            None => read.add(&Rc::new(tree), "", &Value::Null),
            Some(value) => read.add(&Rc::new(tree), "", &value),
        }
    }
    read
}

/// Returns the readable documents of a text.
pub fn values(text: &str) -> Vec<Value> {
    yaml::read(text).into_iter().filter_map(|tree| tree.value).collect()
}

/// Returns the value of a text with one document, for programs that read other files than policies.
///
/// # Errors
///
/// The faults, each with its line.
pub fn one_value(text: &str) -> Result<Value, Vec<String>> {
    let mut trees = yaml::read(text);
    let (Some(tree), true) = (trees.pop(), trees.is_empty()) else {
        return Err(vec!["must have one YAML document: split the file".to_owned()]);
    };
    let described = |(place, path, message): (TextPosition, String, String)| {
        let colon = if path.is_empty() { "" } else { ": " };
        format!("line {}: {path}{colon}{message}", place.line)
    };
    match tree.value {
        Some(value) if tree.faults.is_empty() => Ok(value),
        _ => Err(tree.faults.into_iter().map(described).collect()),
    }
}

impl Text {
    /// Returns true if the text contains no document, as an emptied file does.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.stores.is_empty() && self.store_findings.is_empty() && self.others == 0
    }

    /// Returns the policies of a text without faults.
    ///
    /// # Errors
    ///
    /// All faults, including those of stores, and duplicate names of policies.
    pub fn policies(self) -> Result<Specs, Broken> {
        let mut specs = Specs::new();
        let mut broken = Broken { findings: self.store_findings, named: BTreeSet::new() };
        for document in self.policies {
            if let Some(key) = &document.key
                && !broken.named.insert(key.clone())
            {
                let message = format!("policy {key} occurs twice: give one of them another name");
                broken.findings.push(document.finding("metadata.name", message));
            }
            match document.policy {
                Ok(spec) => specs.extend(document.key.map(|key| (key, spec))),
                Err(findings) => broken.findings.extend(findings),
            }
        }
        if broken.findings.is_empty() { Ok(specs) } else { Err(broken) }
    }

    fn add(&mut self, tree: &Rc<Tree>, prefix: &str, value: &Value) {
        let word = |field| value.get(field).and_then(Value::as_str);
        let group = word("apiVersion").map(|version| version.split('/').next().unwrap_or_default());
        let is_list = matches!(
            (group, word("kind")),
            (Some("v1"), Some("List")) | (Some("weir.dev"), Some("RateLimitPolicyList" | "RateLimitStoreList"))
        );
        if let (true, Some(Value::Array(items))) = (is_list, value.get("items")) {
            for (index, item) in items.iter().enumerate() {
                self.add(tree, &format!("{prefix}items[{index}]."), item);
            }
            return;
        }
        if let (Some(kind), Some(group)) = (word("kind"), group)
            && kind != RateLimitPolicy::kind(&())
            && group != RateLimitPolicy::group(&())
        {
            self.others += 1;
            return;
        }
        let misread = tree.misread.iter().filter(|(_, path, _)| path.starts_with(prefix)).cloned();
        let misread = misread.map(|(place, path, message)| Finding { place, fault: Fault { path, message } });
        self.cluster_findings.extend(misread);
        for fault in cluster::faults_of_metadata(value) {
            let path = format!("{prefix}{}", fault.path);
            self.cluster_findings.push(Finding { place: tree.place(&path), fault: Fault { path, ..fault } });
        }
        let key = key_of(value);
        if word("kind") == Some(&*RateLimitStore::kind(&())) {
            return self.add_store(tree, prefix, key, value);
        }
        let mut document = Document { key, policy: Err(Vec::new()), tree: tree.clone(), prefix: prefix.to_owned() };
        let mut findings = faults_of_form(tree, prefix);
        let judged = match (value, findings.is_empty()) {
            // An unreadable document has no further faults.
            (Value::Null, false) => Err(Vec::new()),
            _ => judge(document.key.as_ref(), value),
        };
        let faults = judged.as_ref().err().into_iter().flatten();
        findings.extend(faults.map(|fault| document.finding(&fault.path, fault.message.clone())));
        findings.sort_by_key(|finding| finding.place);
        document.policy = match judged {
            Ok(spec) if findings.is_empty() => Ok(spec),
            _ => Err(findings),
        };
        self.policies.push(document);
    }

    fn add_store(&mut self, tree: &Rc<Tree>, prefix: &str, key: Option<ObjectKey>, value: &Value) {
        let mut findings = faults_of_form(tree, prefix);
        let mut find = |path: &str, message: String| {
            let path = format!("{prefix}{path}");
            findings.push(Finding { place: tree.place(&path), fault: Fault { path, message } });
        };
        match (check::review_store(value), key) {
            (Ok(store), Some(key)) => {
                if self.stores.contains_key(&key) {
                    find("metadata.name", format!("store {key} occurs twice: give one of them another name"));
                }
                let path = format!("{prefix}metadata.name");
                let fault = Fault { path: path.clone(), message: String::new() };
                self.store_names.entry(key.clone()).or_insert(Finding { place: tree.place(&path), fault });
                self.stores.insert(key, Arc::new(store.spec));
            }
            (Ok(_), None) => find("metadata.name", "a store must have a name".to_owned()),
            (Err(faults), _) => faults.into_iter().for_each(|fault| find(&fault.path, fault.message)),
        }
        self.store_findings.append(&mut findings);
    }
}

/// Returns the name of a document, if it can be read.
fn key_of(value: &Value) -> Option<ObjectKey> {
    let metadata = |field| value.pointer(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let namespace = metadata("/metadata/namespace").unwrap_or(DEFAULT_NAMESPACE);
    metadata("/metadata/name").map(|name| ObjectKey::new(namespace, name))
}

/// Returns the faults in the form of a text, for fields below this prefix.
fn faults_of_form(tree: &Tree, prefix: &str) -> Vec<Finding> {
    let form = tree.faults.iter().filter(|(_, path, _)| path.is_empty() || path.starts_with(prefix));
    form.map(|(place, path, message)| {
        let fault = Fault { path: path.clone(), message: message.clone() };
        Finding { place: *place, fault }
    })
    .collect()
}

fn judge(key: Option<&ObjectKey>, value: &Value) -> Result<Arc<RateLimitPolicySpec>, Vec<Fault>> {
    let policy = check::review(value)
        .map_err(|faults| faults.into_iter().map(|f| Fault { path: f.path, message: f.message }).collect::<Vec<_>>())?;
    let key = key.ok_or_else(|| {
        vec![Fault { path: "metadata.name".to_owned(), message: "a policy must have a name".to_owned() }]
    })?;
    compile(key, "", &policy.spec)?;
    Ok(Arc::new(policy.spec))
}

#[cfg(test)]
pub(crate) mod tests;
