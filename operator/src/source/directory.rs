//! A directory of policy files and a fixed list of agents as a source.
//!
//! Files are read again as soon as the system says that something moved and then kept still for a moment; a slow
//! second look covers file systems that say nothing. Status files, which the operator writes beside the policies, and
//! editors' droppings are no input.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};

pub use super::folder::Notice;
use super::folder::{Folder, Listing};
use crate::clock;
use crate::world::{Agent, Change, Membership, ObjectKey, Pod, Update};

/// How the files end that the operator writes.
pub const STATUS_SUFFIX: &str = ".status.yaml";

/// Files are read once nothing moved for this long.
const QUIET: Duration = Duration::from_millis(20);
/// They are read after this long even if something always moves.
const RESTLESS: Duration = Duration::from_millis(200);
/// The second look.
const RESCAN: Duration = Duration::from_secs(2);

/// An agent named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandaloneAgent {
    /// Base URL of its control API, without a slash at its end.
    pub url: String,
    /// What selectors see. Without labels every policy targets it.
    pub labels: BTreeMap<String, String>,
}

/// Why a directory cannot be a source.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be watched.
    #[error("cannot watch {}", path.display())]
    Unwatchable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: notify::Error,
    },
    /// Some of its files are not good to start with. Agents may hold the last good content of them, so going on
    /// without would take limits away.
    #[error("not starting with faulty policies:\n{}", .0.iter().map(|n| format!("  {n}")).collect::<Vec<_>>().join("\n"))]
    Faulty(Vec<Notice>),
}

/// A directory that was read once and is watched.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    moved: mpsc::Receiver<()>,
    _watcher: RecommendedWatcher,
}

impl Directory {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// It cannot be read or watched, or one of its files is faulty.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let (tell, moved) = mpsc::channel(1);
        let unwatchable = |source| DirectoryError::Unwatchable { path: path.to_owned(), source };
        let listing = list(path).map_err(|source| DirectoryError::Unreadable { path: path.to_owned(), source })?;
        let faults = Folder::faults(&listing);
        if !faults.is_empty() {
            return Err(DirectoryError::Faulty(faults));
        }
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let is_input =
                |event: &notify::Event| !event.kind.is_access() && event.paths.iter().any(|path| !is_status_file(path));
            if event.as_ref().map_or(true, is_input) {
                // Full means that somebody is about to look anyway.
                let _ = tell.try_send(());
            }
        })
        .map_err(unwatchable)?;
        watcher.watch(path, RecursiveMode::NonRecursive).map_err(unwatchable)?;
        Ok(Self { path: path.to_owned(), moved, _watcher: watcher })
    }

    /// Sends what is in the directory, and every change of it, until `updates` is closed.
    pub async fn run(
        mut self,
        agents: Vec<StandaloneAgent>,
        updates: mpsc::Sender<Update>,
        notices: mpsc::Sender<Notice>,
    ) {
        let mut folder = Folder::default();
        let mut changes: Vec<Change> = agents.into_iter().map(agent_change).collect();
        let mut complete = true;
        loop {
            let mut look_again = clock::now() + RESCAN;
            match list(&self.path) {
                Ok(listing) => {
                    let outcome = folder.absorb(clock::now(), listing);
                    changes.extend(outcome.changes);
                    for notice in outcome.notices {
                        if notices.send(notice).await.is_err() {
                            return;
                        }
                    }
                    look_again = outcome.look_again.map_or(look_again, |at| at.min(look_again));
                }
                // The whole directory being away says nothing about its policies.
                Err(error) => tracing::warn!(path = %self.path.display(), %error, "cannot read the policies"),
            }
            if complete || !changes.is_empty() {
                let update = Update { changes: std::mem::take(&mut changes), complete };
                complete = false;
                if updates.send(update).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = self.wait_for_quiet() => {}
                () = sleep_until(look_again) => {}
                () = updates.closed() => return,
            }
        }
    }

    async fn wait_for_quiet(&mut self) {
        if self.moved.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        let latest = clock::now() + RESTLESS;
        while clock::now() < latest && matches!(timeout(QUIET, self.moved.recv()).await, Ok(Some(()))) {}
    }
}

fn agent_change(agent: StandaloneAgent) -> Change {
    let name = agent.url.strip_prefix("http://").unwrap_or(&agent.url).to_owned();
    let membership = if agent.labels.is_empty() { Membership::Everything } else { Membership::Labelled(agent.labels) };
    let pod = Pod { uid: agent.url.clone(), membership: membership.into(), agent: Agent::At(agent.url.into()) };
    Change::Pod(ObjectKey::new("agents", name), Some(pod))
}

fn list(directory: &Path) -> io::Result<Listing> {
    let mut listing = Listing::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        if !is_input(name) || path.is_dir() {
            continue;
        }
        let name: Arc<str> = name.into();
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => {
                listing.insert(name, read.map_err(|error| error.to_string()));
            }
        }
    }
    Ok(listing)
}

/// Whether a file of this name is read.
pub fn is_input(name: &str) -> bool {
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json");
    is_yaml && !name.starts_with('.') && !name.ends_with(STATUS_SUFFIX)
}

fn is_status_file(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.contains(STATUS_SUFFIX))
}
