//! The status files of standalone mode.
//!
//! `checkout.yaml` gets `checkout.status.yaml`, with one document per policy. The status file also stores the last good
//! generation of each policy, for an operator that starts while the policy's file is broken. Files with the same stem
//! (`a.yaml`, `a.yml`) share one status file; each document names its policy's file.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use jiff::Timestamp;
use kube::Resource;
use serde_json::Value;
use weir_api::{
    RateLimitPolicy,
    check::{self, FaultKind},
};

use super::{
    folder::Kept,
    listing::{self, STATUS_SUFFIX},
};
use crate::{documents::values, world::ObjectKey};

/// The annotation of a status that names the policy's file.
pub(crate) const FILE: &str = "weir.dev/file";
/// The annotation of a status with the time at which the policy changed.
pub(crate) const CHANGED: &str = "weir.dev/changed";
/// The maximum depth of status directories.
const DEPTH: usize = 16;

/// The documents of one status file.
pub(crate) type Documents = BTreeMap<ObjectKey, Value>;

/// Returns the last good generation of every policy, by its file.
///
/// # Errors
///
/// The directory cannot be read. An unreadable status is logged and ignored.
pub(crate) fn kept(directory: &Path) -> io::Result<BTreeMap<Arc<str>, Vec<Kept>>> {
    let mut kept: BTreeMap<Arc<str>, Vec<Kept>> = BTreeMap::new();
    for (status_file, documents) in documents(directory)? {
        for (key, document) in documents {
            let annotation = |name: &str| document["metadata"]["annotations"][name].as_str();
            let (Some(file), Some(good)) = (annotation(FILE), document.pointer("/status/lastKnownGood")) else {
                continue;
            };
            let changed = annotation(CHANGED).and_then(|time| time.parse().ok());
            match spec(&key, good, changed) {
                Ok(policy) => kept.entry(file.into()).or_default().push(policy),
                Err(problem) => {
                    tracing::warn!(policy = %key, status_file, problem, "the last good generation is not usable");
                }
            }
        }
    }
    Ok(kept)
}

/// Parses a stored generation. It is validated like a new policy, because every writer of the status can change it. A
/// generation with unknown fields or values stays JSON.
fn spec(key: &ObjectKey, good: &Value, changed: Option<Timestamp>) -> Result<Kept, String> {
    let text = good["spec"].as_str().unwrap_or_default();
    let spec: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let spec = match check::review(&key.document::<RateLimitPolicy>(&spec)) {
        Ok(policy) => Ok(Arc::new(policy.spec)),
        Err(faults) if faults.iter().any(|fault| fault.kind != FaultKind::Invalid) => Err(text.to_owned()),
        Err(faults) => return Err(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    };
    let generation = good["generation"].as_i64().filter(|generation| *generation > 0).unwrap_or(1);
    Ok(Kept { key: key.clone(), generation, changed, spec })
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
            let documents = values(&text).into_iter().filter_map(|value| Some((key(&value)?, value)));
            files.insert(below, documents.collect());
        }
    }
    Ok(())
}

/// Returns the policy of a status; `None` if the operator did not write it.
fn key(document: &Value) -> Option<ObjectKey> {
    let is_status = document["kind"] == *RateLimitPolicy::kind(&()) && document.get("spec").is_none();
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
