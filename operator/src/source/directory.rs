//! A directory of policy files and a list of agents as a source.
//!
//! Files are read again as soon as the system says that something moved and then kept still for a moment; a slow
//! second look covers file systems that say nothing, and a call to reload those that cannot wait. Status files, which the
//! operator writes, and editors' droppings are no input.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep_until, timeout};

use super::agents::{Agents, AgentsError, StandaloneAgent};
use super::folder::Folder;
pub use super::folder::{FileCounts, Kept, Notice};
use super::listing::{Listing, Reader};
pub use super::listing::{STATUS_SUFFIX, names};
use crate::clock;
use crate::identity::{CallingFiles, Held, InvalidTls, TlsFiles};
use crate::log_once::LogOnce;
use crate::metrics::Metrics;
use crate::report::{self, Message};
use crate::world::Update;

/// Files are read once nothing moved for this long.
const QUIET: Duration = Duration::from_millis(20);
/// They are read after this long even if something always moves.
const RESTLESS: Duration = Duration::from_millis(200);
/// The second look.
const RESCAN: Duration = Duration::from_secs(2);
/// A file that is broken at the start may be on its way: agents are told nothing for so long, at most.
const FIRST: Duration = Duration::from_secs(1);

/// What standalone mode works on.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The directory of policies.
    pub policies: PathBuf,
    /// Where statuses are written, and read at the start; none: beside the policies.
    pub state: Option<PathBuf>,
    /// Whether the directories below count.
    pub recursive: bool,
    /// Agents that stay.
    pub agents: Vec<StandaloneAgent>,
    /// A file that names more of them, a line each.
    pub agents_file: Option<PathBuf>,
    /// How those are called whose URL says `https`.
    pub tls: Option<TlsFiles>,
}

impl Place {
    /// Where statuses are.
    pub fn state(&self) -> &Path {
        self.state.as_deref().unwrap_or(&self.policies)
    }
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
    /// Statuses cannot be kept there.
    #[error("cannot keep statuses in {}: name another directory with --state-dir", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agents are not known.
    #[error(transparent)]
    Agents(#[from] AgentsError),
    /// No agent can be called over mutual TLS with these files.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
}

/// A directory that was read once and is watched.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    reader: Option<Reader>,
    folder: Folder,
    agents: Agents,
    calling: Option<CallingFiles>,
    moved: mpsc::Receiver<()>,
    _watcher: RecommendedWatcher,
}

impl Directory {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// It cannot be read or watched, statuses cannot be kept, or the agents are not known. A policy file that is broken is
    /// none: see [`Kept`].
    pub fn open(place: &Place) -> Result<Self, DirectoryError> {
        let path = &place.policies;
        let (tell, moved) = mpsc::channel(1);
        let unwatchable = |source| DirectoryError::Unwatchable { path: path.clone(), source };
        let calling = place.tls.clone().map(CallingFiles::open).transpose()?;
        let agents = Agents::open(place.agents.clone(), place.agents_file.clone(), calling.is_some())?;
        std::fs::read_dir(path).map_err(|source| DirectoryError::Unreadable { path: path.clone(), source })?;
        let state = |source| DirectoryError::State { path: place.state().to_owned(), source };
        std::fs::create_dir_all(place.state()).map_err(state)?;
        let kept = report::kept(place.state()).map_err(state)?;
        // A status beside the policies proves that their volume is mounted.
        let awaited = if place.state.is_some() { kept.keys().cloned().collect() } else { Vec::new() };

        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let is_input =
                |event: &notify::Event| !event.kind.is_access() && event.paths.iter().any(|path| !is_status_file(path));
            if event.as_ref().map_or(true, is_input) {
                // Full means that somebody is about to look anyway.
                let _ = tell.try_send(());
            }
        })
        .map_err(unwatchable)?;
        let mode = if place.recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
        watcher.watch(path, mode).map_err(unwatchable)?;
        let files = agents.file().into_iter().chain(calling.iter().flat_map(|calling| calling.files().paths()));
        // Their directories, because a file that is replaced is another one.
        let parents = files.filter_map(Path::parent);
        let parents = parents.map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
        for parent in parents.collect::<BTreeSet<_>>() {
            // The directory of policies is watched already, maybe with all below it.
            if parent != path.as_path() {
                watcher.watch(parent, RecursiveMode::NonRecursive).map_err(unwatchable)?;
            }
        }
        Ok(Self {
            path: path.clone(),
            reader: Some(Reader::new(path, place.recursive, awaited)),
            folder: Folder::new(kept),
            agents,
            calling,
            moved,
            _watcher: watcher,
        })
    }

    /// How agents are called over mutual TLS, and the files that say so.
    pub(crate) fn calling(&self) -> Option<(Held, Arc<TlsFiles>)> {
        self.calling.as_ref().map(|calling| (calling.held(), calling.files().clone()))
    }

    /// Sends what is in the directory, and every change of it, until `updates` is closed. `reload`: look again, now.
    pub async fn run(
        mut self,
        updates: mpsc::Sender<Update>,
        reports: mpsc::UnboundedSender<Message>,
        metrics: Metrics,
        reload: Arc<Notify>,
    ) {
        let begun = clock::now();
        let mut changes = Vec::new();
        let mut complete = false;
        let (mut unreadable, mut agents, mut certificates) =
            (LogOnce::default(), LogOnce::default(), LogOnce::default());
        loop {
            let mut look_again = clock::now() + RESCAN;
            let mut has_converged = true;
            let refreshed = self.calling.as_mut().map_or(Ok(()), CallingFiles::refresh);
            if let Some(problem) = certificates.changed(refreshed) {
                tracing::warn!(problem, "agents are called with the certificates from before");
            }
            let found = self.agents.changes().map(|found| changes.extend(found));
            if let Some(problem) = agents.changed(found) {
                tracing::warn!(problem, "the agents stay as they were");
            }
            let listing = self.list().await;
            match listing {
                Ok(listing) => {
                    let outcome = self.folder.absorb(clock::now(), listing);
                    changes.extend(outcome.changes);
                    // Closed only while the process ends.
                    for notice in outcome.notices {
                        let _ = reports.send(Message::Notice(notice.to_string()));
                    }
                    for key in outcome.forgotten {
                        let _ = reports.send(Message::Removed(key));
                    }
                    has_converged = outcome.look_again.is_none();
                    look_again = outcome.look_again.map_or(look_again, |at| at.min(look_again));
                    metrics.set_files(self.folder.counts());
                    unreadable.changed(Ok::<_, io::Error>(()));
                }
                // The whole directory being away says nothing about its policies.
                Err(error) => {
                    if let Some(problem) = unreadable.changed(Err(error)) {
                        tracing::warn!(path = %self.path.display(), problem, "cannot read the policies: they stay as they were");
                    }
                }
            }
            let completes = !complete && (has_converged || clock::now() - begun >= FIRST);
            if completes || !changes.is_empty() {
                complete |= completes;
                let update = Update { changes: std::mem::take(&mut changes), complete: completes };
                if updates.send(update).await.is_err() {
                    return;
                }
                if complete {
                    self.folder.complete();
                }
            }
            tokio::select! {
                () = self.wait_for_quiet() => {}
                () = reload.notified() => tracing::info!("reading the policies, agents and certificates again, as asked"),
                () = sleep_until(look_again) => {}
                () = updates.closed() => return,
            }
        }
    }

    /// Away from the threads that serve agents: ten thousand files take a while.
    async fn list(&mut self) -> io::Result<Listing> {
        let mut reader = self.reader.take().expect("it is put back below");
        let now = SystemTime::from(clock::timestamp());
        let listed = tokio::task::spawn_blocking(move || {
            let listing = reader.list(now);
            (reader, listing)
        });
        let (reader, listing) = listed.await.expect("reading does not panic and is not cancelled");
        self.reader = Some(reader);
        listing
    }

    async fn wait_for_quiet(&mut self) {
        if self.moved.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        let latest = clock::now() + RESTLESS;
        while clock::now() < latest && matches!(timeout(QUIET, self.moved.recv()).await, Ok(Some(()))) {}
    }
}

fn is_status_file(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.contains(STATUS_SUFFIX))
}
