//! The status files of standalone mode.
//!
//! `checkout.yaml` gets `checkout.status.yaml`, with one document per policy and store. The status file stores the last
//! good generation of each, for an operator that starts while the file is broken. Files with the same stem (`a.yaml`,
//! `a.yml`) share one status file. Each document names its file.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};
use weir_api::{RateLimitPolicy, RateLimitStore, RateLimitStoreSpec, check};

use super::{
    folder::{Kept, KeptFile},
    listing::{self, STATUS_SUFFIX},
};
use crate::{
    compile::compile,
    documents::{StoreSpecs, values},
    world::ObjectKey,
};

/// The annotation of a status that names the file of its policy or store.
pub(crate) const FILE: &str = "weir.dev/file";
/// The annotation of a status with the time at which the policy changed.
pub(crate) const CHANGED: &str = "weir.dev/changed";
/// The maximum depth of status directories.
const DEPTH: usize = 16;

/// The documents of one status file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Documents {
    pub(crate) policies: BTreeMap<ObjectKey, Value>,
    pub(crate) stores: BTreeMap<ObjectKey, Value>,
}

impl Documents {
    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.stores.is_empty()
    }

    /// Returns the text of the status file.
    pub(crate) fn text(&self) -> io::Result<String> {
        let documents = self.policies.values().chain(self.stores.values());
        let texts = documents.map(serde_yaml::to_string).collect::<Result<Vec<_>, _>>();
        Ok(texts.map_err(io::Error::other)?.join("---\n"))
    }

    /// Replaces the stores of a file. Returns false if they are the same.
    pub(crate) fn set_stores(&mut self, file: &str, stores: &StoreSpecs) -> bool {
        let before = self.stores.clone();
        self.stores.retain(|_, document| file_of(document) != Some(file));
        for (key, spec) in stores {
            let spec = serde_json::to_string(&**spec).expect("a spec is plain data, which always serializes to JSON");
            let document = json!({
                "apiVersion": RateLimitStore::api_version(&()),
                "kind": RateLimitStore::kind(&()),
                "metadata": {"name": &*key.name, "namespace": &*key.namespace, "annotations": {FILE: file}},
                "status": {"lastKnownGood": {"spec": spec}},
            });
            self.stores.entry(key.clone()).or_insert(document);
        }
        self.stores != before
    }
}

/// Returns the last good content of every file.
///
/// # Errors
///
/// The directory cannot be read. An unreadable status is logged and ignored.
pub(crate) fn kept(directory: &Path) -> io::Result<BTreeMap<Arc<str>, KeptFile>> {
    let mut kept: BTreeMap<Arc<str>, KeptFile> = BTreeMap::new();
    for (status_file, documents) in documents(directory)? {
        for (key, document) in documents.policies {
            let (Some(file), Some(good)) = (file_of(&document), document.pointer("/status/lastKnownGood")) else {
                continue;
            };
            let changed = annotation(&document, CHANGED).and_then(|time| time.parse().ok());
            match spec(&key, good, changed) {
                Ok(policy) => kept.entry(file.into()).or_default().policies.push(policy),
                Err(problem) => {
                    tracing::warn!(policy = %key, status_file, problem, "the last good generation is not usable");
                }
            }
        }
        for (key, document) in documents.stores {
            let Some(file) = file_of(&document) else { continue };
            match store(&key, &document) {
                Ok(spec) => drop(kept.entry(file.into()).or_default().stores.insert(key, Arc::new(spec))),
                Err(problem) => {
                    tracing::warn!(store = %key, status_file, problem, "the stored store is not usable");
                    kept.entry(file.into()).or_default().unread_stores.insert(key);
                }
            }
        }
    }
    Ok(kept)
}

fn annotation<'a>(document: &'a Value, name: &str) -> Option<&'a str> {
    document["metadata"]["annotations"][name].as_str()
}

/// Returns the file of the policy or store of a status.
fn file_of(document: &Value) -> Option<&str> {
    annotation(document, FILE)
}

/// Parses a stored generation. It is validated like a new policy, because every writer of the status can change it. A
/// generation that is refused stays JSON, because another version of the operator has accepted it.
fn spec(key: &ObjectKey, good: &Value, changed: Option<Timestamp>) -> Result<Kept, String> {
    let text = good["spec"].as_str().unwrap_or_default();
    let spec: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let policy = check::review(&key.document::<RateLimitPolicy>(&spec)).ok();
    let spec = policy.map(|policy| Arc::new(policy.spec)).filter(|spec| compile(key, "", spec).is_ok());
    let spec = spec.ok_or_else(|| text.to_owned());
    let generation = good["generation"].as_i64().filter(|generation| *generation > 0).unwrap_or(1);
    Ok(Kept { key: key.clone(), generation, changed, spec })
}

/// Parses a stored store. It is validated like a new store.
fn store(key: &ObjectKey, document: &Value) -> Result<RateLimitStoreSpec, String> {
    let text = document.pointer("/status/lastKnownGood/spec").and_then(Value::as_str).unwrap_or_default();
    let spec: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let store = check::review_store(&key.document::<RateLimitStore>(&spec));
    let said = |faults: Vec<check::Fault>| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    store.map(|store| store.spec).map_err(said)
}

/// Returns the documents in the status files of a directory.
pub(crate) fn documents(directory: &Path) -> io::Result<BTreeMap<String, Documents>> {
    let mut files = BTreeMap::new();
    collect(directory, "", DEPTH, &mut files)?;
    Ok(files)
}

fn collect(directory: &Path, prefix: &str, depth: usize, files: &mut BTreeMap<String, Documents>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(ToOwned::to_owned) else { continue };
        let below = format!("{prefix}{name}");
        if name.starts_with('.') {
            continue;
        }
        // Links are not followed, because the operator writes no status through a link.
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                collect(&entry.path(), &format!("{below}/"), depth - 1, files)?;
            }
        } else if name.ends_with(STATUS_SUFFIX) {
            let text = listing::read(&entry.path()).unwrap_or_else(|error| {
                tracing::warn!(file = below, %error, "cannot read a status");
                String::new()
            });
            let mut documents = Documents::default();
            for value in values(&text) {
                if let Some(key) = key::<RateLimitPolicy>(&value) {
                    documents.policies.insert(key, value);
                } else if let Some(key) = key::<RateLimitStore>(&value) {
                    documents.stores.insert(key, value);
                }
            }
            files.insert(below, documents);
        }
    }
    Ok(())
}

/// Returns true if an operator wrote this text as a status file.
pub(crate) fn is_status_text(text: &str) -> bool {
    let is_status = |document: &Value| {
        let key = key::<RateLimitPolicy>(document).or_else(|| key::<RateLimitStore>(document));
        key.is_some() && file_of(document).is_some()
    };
    let documents = values(text);
    !documents.is_empty() && documents.iter().all(is_status)
}

/// Returns the object of kind `K` of a status, or `None` if the operator did not write it.
fn key<K: Resource<DynamicType = ()>>(document: &Value) -> Option<ObjectKey> {
    let is_status = document["kind"] == *K::kind(&()) && document.get("spec").is_none();
    let metadata = |field: &str| document["metadata"][field].as_str();
    Some(ObjectKey::new(metadata("namespace")?, metadata("name")?)).filter(|_| is_status)
}

pub(crate) fn status_file(file: &str) -> String {
    let path = Path::new(file);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(file);
    path.with_file_name(format!("{stem}{STATUS_SUFFIX}")).to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "status_file_fuzz.rs"]
mod fuzz;
