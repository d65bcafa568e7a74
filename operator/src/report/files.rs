//! Writes statuses as files beside the policies, and announcements as lines on standard output.
//!
//! A status file (see [`status_file`]) is replaced atomically, so a reader never sees a partial file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kube::Resource;
use serde_json::{Value, json};
use weir_api::RateLimitPolicy;

use super::{Announcement, Report, SinkError};
use crate::clock;
use crate::source::status_file::{Documents, FILE, documents, status_file};
use crate::world::ObjectKey;

/// Writes into a directory.
#[derive(Debug)]
pub struct FileSink {
    directory: PathBuf,
    /// The newest status of every policy, by status file. A status from before the start stays until there is a newer
    /// one.
    files: Mutex<BTreeMap<String, Documents>>,
}

impl FileSink {
    /// Writes into `directory`.
    pub fn new(directory: PathBuf) -> Self {
        let files = documents(&directory).unwrap_or_default();
        Self { directory, files: Mutex::new(files) }
    }

    pub(super) fn write(&self, report: &Report) -> Result<(), SinkError> {
        let Some(file) = &report.file else { return Err(SinkError::Gone) };
        let document = json!({
            "apiVersion": RateLimitPolicy::api_version(&()),
            "kind": RateLimitPolicy::kind(&()),
            "metadata": {
                "name": report.key.name,
                "namespace": report.key.namespace,
                "annotations": {FILE: &**file},
            },
            "status": report.status,
        });
        let status_file = status_file(file);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // A policy that moved to another file leaves the old status file.
        for (name, documents) in files.iter_mut().filter(|(name, _)| **name != status_file) {
            if documents.remove(&report.key).is_some() {
                self.render(name, documents)?;
            }
        }
        let documents = files.entry(status_file.clone()).or_default();
        let good = |document: Option<&Value>| document.and_then(|it| it.pointer("/status/lastKnownGood")).cloned();
        let is_new = good(documents.get(&report.key)) != good(Some(&document));
        let mut next = documents.clone();
        next.insert(report.key.clone(), document);
        self.render(&status_file, &next)?;
        if is_new {
            // A change of the file or its rules must survive a power cut. Traffic need not.
            let path = self.directory.join(&status_file);
            let folder = path.parent().unwrap_or(&self.directory);
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))?;
        }
        *documents = next;
        Ok(())
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

    fn render(&self, status_file: &str, documents: &Documents) -> io::Result<()> {
        let path = self.directory.join(status_file);
        if documents.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
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
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(at(parent))?;
        }
        replace(&path, &text).map_err(at(&path))
    }
}

/// Adds the path to an error, and the fix if there is one.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| {
        let fix = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ": let the operator write there, or name another directory with --state-dir"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("{}: {error}{fix}", path.display()))
    }
}

/// Replaces a file atomically. After a power cut either the old file or the new one is there, complete, because it
/// holds the last good generations. So the text is synced to the disk before the rename.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let replaced = write_through(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        // On a full disk, the temporary file is partial. If it cannot be removed, the next write replaces it.
        let _ = std::fs::remove_file(&temporary);
    }
    replaced
}

fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

/// Writes one line to standard output. If the reader is gone, limiting goes on.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{} {text}", clock::timestamp());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_names_the_file_and_keeps_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.status.yaml");
        replace(&path, "before").unwrap();
        // A directory stands where the temporary file would go.
        let temporary = directory.path().join(".a.status.yaml.tmp");
        std::fs::create_dir(&temporary).unwrap();
        let error = replace(&path, "after").map_err(at(&path)).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        std::fs::remove_dir(&temporary).unwrap();
        replace(&path, "after").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after");
        assert!(!temporary.exists());

        let denied = at(&path)(io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(denied.ends_with("or name another directory with --state-dir"), "{denied}");
    }
}
