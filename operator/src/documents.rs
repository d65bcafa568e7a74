//! Policies in text: YAML with any number of documents.
//!
//! Checked by the schema and the CEL rules that the cluster would apply. Documents of other kinds are left alone, so
//! that a policy can live beside the workload that it is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;
use serde::Deserialize;
use serde_json::Value;
use weir_api::{RateLimitPolicy, RateLimitPolicySpec, check};

use crate::compile::compile;
use crate::world::{Fault, ObjectKey};

/// The namespace of a policy that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// A policy in a text, or what is wrong with it.
#[derive(Debug)]
pub struct Document {
    /// Which document of the text, from 1.
    pub number: usize,
    /// What it holds.
    pub policy: Result<(ObjectKey, Arc<RateLimitPolicySpec>), Vec<Fault>>,
}

/// Every policy of a text, and everything that may have been meant to be one.
pub fn read(text: &str) -> Vec<Document> {
    let mut documents = Vec::new();
    for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let number = index + 1;
        match Value::deserialize(document) {
            Ok(Value::Null) => {}
            Ok(value) if is_other_kind(&value) => {}
            Ok(value) => documents.push(Document { number, policy: policy(&value) }),
            Err(error) => {
                documents.push(Document { number, policy: Err(vec![fault("", &error.to_string())]) });
                // What follows a syntax error has no meaning.
                break;
            }
        }
    }
    documents
}

/// The policies of a text that has no faults.
///
/// # Errors
///
/// Every fault, with the document's number in its path if there are several; two policies of the same name.
pub fn policies(text: &str) -> Result<BTreeMap<ObjectKey, Arc<RateLimitPolicySpec>>, Vec<Fault>> {
    let documents = read(text);
    let many = documents.len() > 1;
    let mut policies = BTreeMap::new();
    let mut faults = Vec::new();
    for Document { number, policy } in documents {
        let found = match policy {
            Ok((key, spec)) => {
                let double = policies.contains_key(&key).then(|| fault("", &format!("policy {key} is in here twice")));
                policies.insert(key, spec);
                Vec::from_iter(double)
            }
            Err(found) => found,
        };
        faults.extend(found.into_iter().map(|fault| if many { in_document(number, fault) } else { fault }));
    }
    if faults.is_empty() { Ok(policies) } else { Err(faults) }
}

fn policy(value: &Value) -> Result<(ObjectKey, Arc<RateLimitPolicySpec>), Vec<Fault>> {
    let policy = check::parse(value)
        .map_err(|faults| faults.into_iter().map(|f| Fault { path: f.path, message: f.message }).collect::<Vec<_>>())?;
    let Some(name) = policy.metadata.name else {
        return Err(vec![fault("metadata.name", "a policy must have a name")]);
    };
    let key = ObjectKey::new(policy.metadata.namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()), name);
    compile(&key, "", &policy.spec)?;
    Ok((key, Arc::new(policy.spec)))
}

fn is_other_kind(value: &Value) -> bool {
    let kind = value.get("kind").and_then(Value::as_str);
    let group = value.get("apiVersion").and_then(Value::as_str).map(|version| version.split('/').next());
    match (kind, group) {
        (Some(kind), Some(group)) => kind != RateLimitPolicy::kind(&()) && group != Some("weir.dev"),
        _ => false,
    }
}

fn in_document(number: usize, fault: Fault) -> Fault {
    let path =
        if fault.path.is_empty() { format!("document {number}") } else { format!("document {number}: {}", fault.path) };
    Fault { path, ..fault }
}

fn fault(path: &str, message: &str) -> Fault {
    Fault { path: path.to_owned(), message: message.to_owned() }
}
