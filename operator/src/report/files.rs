//! Writes statuses as files next to the policies, and announcements as lines on standard output.
//!
//! A status file (see [`status_file`]) is replaced atomically, so a reader never reads a partial file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use kube::Resource;
use serde_json::{Value, json};
use weir_api::{RateLimitPolicy, RateLimitPolicyStatus, condition_types::ENFORCED};

use super::{Announcement, Report, SinkError};
use crate::{
    clock,
    documents::StoreSpecs,
    source::status_file::{CHANGED, Documents, FILE, documents, status_file},
    status::reason::Reason,
    world::ObjectKey,
};

/// Writes statuses into a directory.
#[derive(Debug)]
pub struct FileSink {
    directory: PathBuf,
    shown: Mutex<Shown>,
}

/// The newest status of every policy. A status from before the start stays until a newer one is written.
#[derive(Debug, Default)]
struct Shown {
    by_file: BTreeMap<String, Documents>,
    /// The status files that contain a policy: one, except after the policy moved to another file.
    files_of: BTreeMap<ObjectKey, BTreeSet<String>>,
    /// The policies without an agent, of which a line was written since the start.
    without_agent: BTreeSet<ObjectKey>,
}

impl Shown {
    fn of(by_file: BTreeMap<String, Documents>) -> Self {
        let mut files_of: BTreeMap<ObjectKey, BTreeSet<String>> = BTreeMap::new();
        for (file, documents) in &by_file {
            for key in documents.policies.keys() {
                files_of.entry(key.clone()).or_default().insert(file.clone());
            }
        }
        Self { by_file, files_of, without_agent: BTreeSet::new() }
    }

    /// Returns the line to write about a policy that applies to no agent. `None` if it was written before.
    fn without_agent(&mut self, key: &ObjectKey, status: &RateLimitPolicyStatus) -> Option<String> {
        let enforced = status.conditions.iter().find(|condition| condition.type_ == ENFORCED);
        let Some(enforced) = enforced.filter(|enforced| enforced.reason == Reason::NoPods.as_str()) else {
            self.without_agent.remove(key);
            return None;
        };
        self.without_agent.insert(key.clone()).then(|| format!("{key} {}: {}", enforced.reason, enforced.message))
    }

    /// Removes a policy from a status file.
    fn forget(&mut self, key: &ObjectKey, file: &str) {
        if let Some(documents) = self.by_file.get_mut(file) {
            documents.policies.remove(key);
            if documents.is_empty() {
                self.by_file.remove(file);
            }
        }
        if let Some(files) = self.files_of.get_mut(key) {
            files.remove(file);
            if files.is_empty() {
                self.files_of.remove(key);
            }
        }
    }
}

impl FileSink {
    /// Returns a sink that writes into `directory`.
    pub fn new(directory: PathBuf) -> Self {
        let shown = Shown::of(documents(&directory).unwrap_or_default());
        Self { directory, shown: Mutex::new(shown) }
    }

    pub(super) fn write(&self, report: &Report) -> Result<(), SinkError> {
        let Some(file) = &report.file else { return Err(SinkError::Gone) };
        let mut document = json!({
            "apiVersion": RateLimitPolicy::api_version(&()),
            "kind": RateLimitPolicy::kind(&()),
            "metadata": {
                "name": &*report.key.name,
                "namespace": &*report.key.namespace,
                "annotations": {FILE: &**file},
            },
            "status": report.status,
        });
        if let Some(changed) = report.changed {
            document["metadata"]["annotations"][CHANGED] = changed.to_string().into();
        }
        let status_file = status_file(file);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        // The status of a policy that moved to another file is removed from the old status file.
        self.forget(&mut shown, &report.key, Some(&status_file))?;
        let documents = shown.by_file.entry(status_file.clone()).or_default();
        let good = |document: Option<&Value>| document.and_then(|it| it.pointer("/status/lastKnownGood")).cloned();
        let is_new = good(documents.policies.get(&report.key)) != good(Some(&document));
        let mut next = documents.clone();
        next.policies.insert(report.key.clone(), document);
        self.render(&status_file, &next)?;
        if is_new {
            // A change of the file or its rules must survive a power failure. A change of traffic need not.
            self.sync(&status_file)?;
        }
        *documents = next;
        shown.files_of.entry(report.key.clone()).or_default().insert(status_file);
        if let Some(line) = shown.without_agent(&report.key, &report.status) {
            say(&line);
        }
        Ok(())
    }

    /// Stores the stores of a file in its status file.
    pub(super) fn store(&self, file: &str, stores: &StoreSpecs) -> io::Result<()> {
        let status_file = status_file(file);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = shown.by_file.get(&status_file).cloned().unwrap_or_default();
        if !next.set_stores(file, stores) {
            return Ok(());
        }
        self.render(&status_file, &next)?;
        self.sync(&status_file)?;
        if next.is_empty() {
            shown.by_file.remove(&status_file);
        } else {
            shown.by_file.insert(status_file, next);
        }
        Ok(())
    }

    /// Lets the names of a status file's directory survive a power failure.
    fn sync(&self, status_file: &str) -> io::Result<()> {
        let path = self.directory.join(status_file);
        let folder = path.parent().unwrap_or(&self.directory);
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))
    }

    pub(super) fn removed(&self, key: &ObjectKey) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.forget(&mut shown, key, None) {
            tracing::warn!(policy = %key, %error, "cannot remove the status");
        }
        shown.without_agent.remove(key);
        say(&format!("{key} Removed: the policy was deleted"));
    }

    pub(super) fn announce(&self, announcement: &Announcement) {
        let Announcement { key, notice, .. } = announcement;
        say(&format!("{key} {}: {}", notice.reason, notice.note));
    }

    pub(super) fn notice(&self, text: &str) {
        say(text);
    }

    /// Removes a policy from every status file except `except`. A file that cannot be written keeps the policy, so that
    /// the next attempt finds it.
    fn forget(&self, shown: &mut Shown, key: &ObjectKey, except: Option<&str>) -> io::Result<()> {
        let files = shown.files_of.get(key).into_iter().flatten();
        let files: Vec<String> = files.filter(|file| Some(file.as_str()) != except).cloned().collect();
        for file in files {
            let mut left = shown.by_file.get(&file).cloned().unwrap_or_default();
            left.policies.remove(key);
            self.render(&file, &left)?;
            shown.forget(key, &file);
        }
        Ok(())
    }

    fn render(&self, status_file: &str, documents: &Documents) -> io::Result<()> {
        let path = self.directory.join(status_file);
        if documents.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
                _ => Ok(()),
            };
        }
        let text = documents.text()?;
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

/// Replaces a file atomically. The file contains the last good generations, so after a power failure the old or the new
/// one must exist, complete. Therefore the text is synced to the disk before the rename.
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

/// Writes one line to standard output. If the reader has closed the pipe, the operator continues.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{} {text}", clock::timestamp());
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use weir_api::{LastKnownGood, RateLimitPolicyStatus};

    use super::*;
    use crate::{leader::Term, source::status_file::kept};

    /// Without this time, an operator that starts again would give the same rules another stamp.
    #[test]
    fn a_status_file_stores_when_its_policy_changed() {
        let directory = tempfile::tempdir().unwrap();
        let limits = json!([{"name": "a", "requests": 1, "per": "1s"}]);
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [{"name": "all", "limits": limits}]})
            .to_string();
        let last_known_good = Some(LastKnownGood { generation: 3, spec });
        for changed in [Some(Timestamp::constant(1_800_000_000, 5)), None] {
            let report = Report {
                key: ObjectKey::new("shop", "checkout"),
                uid: "1".to_owned(),
                file: Some("a.yaml".into()),
                changed,
                number: 1,
                status: RateLimitPolicyStatus { last_known_good: last_known_good.clone(), ..Default::default() },
                version: None,
                term: Term::unbounded(),
            };
            FileSink::new(directory.path().to_owned()).write(&report).unwrap();
            let kept = kept(directory.path()).unwrap();
            assert_eq!((kept["a.yaml"].policies[0].generation, kept["a.yaml"].policies[0].changed), (3, changed));
        }
    }

    #[test]
    fn a_policy_without_an_agent_is_reported_once() {
        let (mut shown, key) = (Shown::default(), ObjectKey::new("shop", "checkout"));
        let status = |reason: &str| {
            let condition = json!({
                "type": "Enforced", "status": "False", "reason": reason, "message": "no running pod is targeted",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            let conditions = vec![serde_json::from_value(condition).unwrap()];
            RateLimitPolicyStatus { conditions, ..Default::default() }
        };
        for (reason, is_reported) in
            [("Pending", false), ("NoPods", true), ("NoPods", false), ("Enforced", false), ("NoPods", true)]
        {
            let line = is_reported.then(|| "shop/checkout NoPods: no running pod is targeted".to_owned());
            assert_eq!(shown.without_agent(&key, &status(reason)), line, "{reason}");
        }
        shown.without_agent.remove(&key);
        assert!(shown.without_agent(&key, &status("NoPods")).is_some(), "a policy that was deleted and created again");
    }

    #[test]
    fn a_status_file_stores_the_stores_of_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let text = |name: &str| {
            format!(
                "apiVersion: weir.dev/v1alpha1\nkind: RateLimitStore\nmetadata: {{name: {name}, namespace: shop}}\n\
                 spec: {{redis: {{endpoints: [\"r:1\"], credentialsSecretRef: {{name: secret}}}}}}\n"
            )
        };
        let stores = |name: &str| crate::documents::read(&text(name)).stores;
        let (one, other) = (stores("s"), stores("t"));
        assert_eq!((one.len(), other.len()), (1, 1));
        let write = |file: &str, stores: &StoreSpecs| {
            FileSink::new(directory.path().to_owned()).store(file, stores).unwrap();
        };
        write("a.yaml", &one);
        write("a.json", &other);
        let kept = |file: &str| kept(directory.path()).unwrap().remove(file).map(|kept| kept.stores);
        assert_eq!((kept("a.yaml"), kept("a.json")), (Some(one), Some(other.clone())));
        write("a.yaml", &StoreSpecs::new());
        assert_eq!((kept("a.yaml"), kept("a.json")), (None, Some(other)));
        write("a.json", &StoreSpecs::new());
        assert!(!directory.path().join("a.status.yaml").exists());
    }

    #[test]
    fn a_failed_write_names_the_file_and_keeps_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.status.yaml");
        replace(&path, "before").unwrap();
        // A directory exists at the path of the temporary file.
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
