//! Statuses as files beside the policies, announcements as lines on standard output.
//!
//! `checkout.yaml` gets `checkout.status.yaml`, with one document per policy, replaced as a whole: a reader never sees
//! half of it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kube::Resource;
use serde_json::{Value, json};
use weir_api::RateLimitPolicy;

use super::{Announcement, Report, SinkError};
use crate::clock;
use crate::source::directory::STATUS_SUFFIX;
use crate::world::ObjectKey;

/// Writes into the policies' directory.
#[derive(Debug)]
pub struct FileSink {
    directory: PathBuf,
    /// The newest status of every policy, by file.
    files: Mutex<BTreeMap<Arc<str>, BTreeMap<ObjectKey, Value>>>,
}

impl FileSink {
    /// Writes into `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, files: Mutex::default() }
    }

    pub(super) fn write(&self, report: &Report) -> Result<(), SinkError> {
        let Some(file) = &report.file else { return Err(SinkError::Gone) };
        let document = json!({
            "apiVersion": RateLimitPolicy::api_version(&()),
            "kind": RateLimitPolicy::kind(&()),
            "metadata": {"name": report.key.name, "namespace": report.key.namespace},
            "status": report.status,
        });
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // A policy that moved to another file leaves the old one.
        for (name, documents) in files.iter_mut().filter(|(name, _)| *name != file) {
            if documents.remove(&report.key).is_some() {
                self.render(name, documents)?;
            }
        }
        let documents = files.entry(file.clone()).or_default();
        documents.insert(report.key.clone(), document);
        Ok(self.render(file, documents)?)
    }

    pub(super) fn removed(&self, key: &ObjectKey) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, documents) in files.iter_mut() {
            if documents.remove(key).is_some()
                && let Err(error) = self.render(name, documents)
            {
                tracing::warn!(policy = %key, %error, "cannot remove the status");
            }
        }
        files.retain(|_, documents| !documents.is_empty());
        say(&format!("{key} Removed: the policy is gone"));
    }

    pub(super) fn announce(&self, announcement: &Announcement) {
        let Announcement { key, reason, note, .. } = announcement;
        say(&format!("{key} {reason}: {note}"));
    }

    pub(super) fn notice(&self, text: &str) {
        say(text);
    }

    fn render(&self, file: &str, documents: &BTreeMap<ObjectKey, Value>) -> io::Result<()> {
        let path = self.directory.join(status_file(file));
        if documents.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let mut text = String::new();
        for (index, document) in documents.values().enumerate() {
            if index > 0 {
                text.push_str("---\n");
            }
            text.push_str(&serde_yaml::to_string(document).map_err(io::Error::other)?);
        }
        replace(&path, &text)
    }
}

/// The status file of a policy file.
fn status_file(file: &str) -> String {
    let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or(file);
    format!("{stem}{STATUS_SUFFIX}")
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, path)
}

/// One line on standard output. A reader that went away is no reason to stop limiting.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{} {text}", clock::timestamp());
}
