//! Policies in text: YAML with any number of documents, and lists of them as `kubectl get -o yaml` writes.
//!
//! Checked by the schema and the CEL rules that the cluster would apply, in words for people. Documents of other kinds are left
//! alone, so that a policy can live beside the workload that it is about.

mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use kube::Resource;
use serde_json::Value;
use weir_api::{RateLimitPolicy, RateLimitPolicySpec, check};

pub use self::yaml::Place;
use self::yaml::Tree;
use crate::compile::compile;
use crate::world::{Fault, ObjectKey};

/// The namespace of a policy that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// Specs by their policy.
pub type Specs = BTreeMap<ObjectKey, Arc<RateLimitPolicySpec>>;

/// Something that is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The place of the field, or of what should hold it.
    pub place: Place,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

/// A policy in a text, or what is wrong with it.
#[derive(Debug)]
pub struct Document {
    /// Its name, if that much can be read.
    pub key: Option<ObjectKey>,
    /// What it asks for.
    pub policy: Result<Arc<RateLimitPolicySpec>, Vec<Finding>>,
    tree: Rc<Tree>,
    /// Where it stands in its document: empty, or as `items[0].`.
    prefix: String,
}

impl Document {
    /// What is to be said of one of its fields.
    pub fn finding(&self, path: &str, message: impl Into<String>) -> Finding {
        let path = format!("{}{path}", self.prefix);
        Finding { place: self.tree.place(&path), fault: Fault { path, message: message.into() } }
    }
}

/// A text that was read.
#[derive(Debug, Default)]
pub struct Text {
    /// Every policy, and everything that may have been meant to be one.
    pub policies: Vec<Document>,
    /// How many documents of other kinds there are.
    pub others: usize,
}

/// What a text with faults says all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// Every fault.
    pub findings: Vec<Finding>,
    /// The policies that it names.
    pub named: BTreeSet<ObjectKey>,
}

/// Reads a text.
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

/// What the documents of a text hold that can be read.
pub fn values(text: &str) -> Vec<Value> {
    yaml::read(text).into_iter().filter_map(|tree| tree.value).collect()
}

impl Text {
    /// Whether it holds nothing, as an emptied file does.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.others == 0
    }

    /// The policies of a text that has no faults.
    ///
    /// # Errors
    ///
    /// Every fault, two policies of the same name among them.
    pub fn policies(self) -> Result<Specs, Broken> {
        let (mut specs, mut broken) = (Specs::new(), Broken::default());
        for document in self.policies {
            if let Some(key) = &document.key
                && !broken.named.insert(key.clone())
            {
                let message = format!("policy {key} is in here twice: give one of them another name");
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
            (Some("v1"), Some("List")) | (Some("weir.dev"), Some("RateLimitPolicyList"))
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
        let metadata = |field| value.pointer(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let namespace = metadata("/metadata/namespace").unwrap_or(DEFAULT_NAMESPACE);
        let key = metadata("/metadata/name").map(|name| ObjectKey::new(namespace, name));
        let mut document = Document { key, policy: Err(Vec::new()), tree: tree.clone(), prefix: prefix.to_owned() };
        let form = tree.faults.iter().filter(|(_, path, _)| path.is_empty() || path.starts_with(prefix));
        let form = form.map(|(place, path, message)| {
            let fault = Fault { path: path.clone(), message: message.clone() };
            Finding { place: *place, fault }
        });
        let mut findings: Vec<Finding> = form.collect();
        let judged = match (value, findings.is_empty()) {
            // Of what cannot be read there is no more to say.
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
mod tests;
