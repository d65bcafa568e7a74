//! A directory of policy files and a list of agents as a source.
//!
//! Files are read again when the system has reported a change and then no other for a short time. A slow rescan covers
//! file systems that report nothing, and a reload can be requested at any time. Status files, which the operator
//! writes, and editors' temporary files are ignored.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::{
    sync::{Notify, mpsc},
    time::{sleep_until, timeout},
};

use super::{
    agents::{Agents, AgentsError, StandaloneAgent},
    folder::{Folder, FolderUpdate},
    listing::Reader,
    status_file,
};
pub use super::{
    folder::{FileNotice, Kept},
    listing::{STATUS_SUFFIX, names},
};
use crate::{
    clock,
    dialing::{DialingFiles, Held, InvalidTls, TlsFiles},
    documents::StoreSpecs,
    log_once::LogOnce,
    metrics::{FileCounts, Metrics},
    world::{ObjectKey, Update},
};

/// The time without a change after which files are read.
const QUIET: Duration = Duration::from_millis(20);
/// The time after which files are read even if they keep changing.
const RESTLESS: Duration = Duration::from_millis(200);
/// The interval of the rescan.
const RESCAN: Duration = Duration::from_secs(2);
/// The longest wait, before the first push, for a file that is broken at the start: it may be only partly written.
const FIRST: Duration = Duration::from_secs(1);

/// The inputs of standalone mode.
#[derive(Clone, Debug, Default)]
pub struct StandaloneInputs {
    /// The directory of policies.
    pub policies: PathBuf,
    /// The directory of statuses, which are written there and read at the start, or `None` for the directory of
    /// policies.
    pub state: Option<PathBuf>,
    /// True to include subdirectories.
    pub recursive: bool,
    /// The agents of the command line.
    pub agents: Vec<StandaloneAgent>,
    /// A file with more agents, one per line.
    pub agents_file: Option<PathBuf>,
    /// The files for agents whose URL begins with `https`.
    pub tls: Option<TlsFiles>,
}

impl StandaloneInputs {
    /// Returns the directory of statuses.
    pub fn state(&self) -> &Path {
        self.state.as_deref().unwrap_or(&self.policies)
    }
}

/// The reason why a directory cannot be a source.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Statuses cannot be stored in the directory.
    #[error("cannot store statuses in {}: choose another directory with --state-dir", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The list of agents is invalid.
    #[error(transparent)]
    Agents(#[from] AgentsError),
    /// The files for mutual TLS are not usable.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
}

/// A message about a directory's files, in addition to their policies.
#[derive(Clone, Debug)]
pub enum Remark {
    /// A message for the user.
    Notice(FileNotice),
    /// This policy was stored before the start, and no file contains it.
    Forgotten(ObjectKey),
    /// The last good content of this file has these stores.
    Stores(Arc<str>, StoreSpecs),
}

/// A directory that was read once and is watched.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    files: Option<Files>,
    agents: Agents,
    dialing: Option<DialingFiles>,
    moved: mpsc::Receiver<()>,
    _watcher: Option<RecommendedWatcher>,
}

/// The files, read and parsed so far.
#[derive(Debug)]
struct Files {
    reader: Reader,
    folder: Folder,
}

impl Directory {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be read, statuses cannot be stored, or the list of agents is invalid. A broken
    /// policy file is not an error: see [`Kept`].
    pub fn open(inputs: &StandaloneInputs) -> Result<Self, DirectoryError> {
        let path = &inputs.policies;
        let (tell, moved) = mpsc::channel(1);
        let dialing = inputs.tls.clone().map(DialingFiles::open).transpose()?;
        let agents = Agents::open(inputs.agents.clone(), inputs.agents_file.clone(), dialing.is_some())?;
        let unreadable = |source| DirectoryError::Unreadable { path: path.clone(), source };
        let is_empty = names(path, inputs.recursive).map_err(unreadable)?.is_empty();
        let state = |source| DirectoryError::State { path: inputs.state().to_owned(), source };
        std::fs::create_dir_all(inputs.state()).map_err(state)?;
        let kept = status_file::kept(inputs.state()).map_err(state)?;
        // A status next to the policies proves that their volume is mounted.
        let awaited = if inputs.state.is_some() && is_empty { kept.keys().cloned().collect() } else { Vec::new() };
        let listed = kept.keys().cloned().collect();
        let reader = Reader::new(path, inputs.recursive, listed, awaited);

        let mode = if inputs.recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
        let files = agents.file().into_iter().chain(dialing.iter().flat_map(|dialing| dialing.files().paths()));
        // Watches the parent directories, because a replaced file is a new file.
        let parents = files.filter_map(Path::parent);
        let parents = parents.map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
        // The directory of policies is watched perhaps with its subdirectories.
        let parents = parents.filter(|parent| *parent != path.as_path()).collect::<BTreeSet<_>>();
        let parents = parents.into_iter().map(|parent| (parent, RecursiveMode::NonRecursive));
        let watched: Vec<_> = [(path.as_path(), mode)].into_iter().chain(parents).collect();
        let watcher = watch(&watched, tell);
        Ok(Self {
            path: path.clone(),
            files: Some(Files { reader, folder: Folder::new(kept) }),
            agents,
            dialing,
            moved,
            _watcher: watcher,
        })
    }

    /// Returns the TLS configuration for connections to agents, and its files.
    pub(crate) fn dialing(&self) -> Option<(Held, Arc<TlsFiles>)> {
        self.dialing.as_ref().map(|dialing| (dialing.held(), dialing.files().clone()))
    }

    /// Sends the content of the directory, and every change, until `updates` is closed. Calls `remark` with further
    /// messages. `reload` requests an immediate read.
    pub async fn run(
        mut self,
        updates: mpsc::Sender<Update>,
        remark: impl Fn(Remark) + Send,
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
            let refreshed = self.dialing.as_mut().map_or(Ok(()), DialingFiles::refresh);
            if let Some(problem) = certificates.changed(refreshed) {
                tracing::warn!(problem, "the previous certificates for agents stay in use");
            }
            let found = self.agents.changes().map(|found| changes.extend(found));
            if let Some(problem) = agents.changed(found) {
                tracing::warn!(problem, "the previous agents stay in use");
            }
            match self.look().await {
                Ok((update, counts)) => {
                    changes.extend(update.changes);
                    update.notices.into_iter().map(Remark::Notice).for_each(&remark);
                    update.forgotten.into_iter().map(Remark::Forgotten).for_each(&remark);
                    update.stores.into_iter().map(|(file, stores)| Remark::Stores(file, stores)).for_each(&remark);
                    has_converged = update.look_again.is_none();
                    look_again = update.look_again.map_or(look_again, |at| at.min(look_again));
                    metrics.set_files(counts);
                    unreadable.changed(Ok::<_, io::Error>(()));
                }
                // If the directory is missing, nothing is known about its policies.
                Err(error) => {
                    if let Some(problem) = unreadable.changed(Err(error)) {
                        tracing::warn!(path = %self.path.display(), problem, "cannot read the policies: the previous ones stay in force");
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
                    self.files.iter_mut().for_each(|files| files.folder.complete());
                }
            }
            tokio::select! {
                () = self.wait_for_quiet() => {}
                () = reload.notified() => {
                    tracing::info!("reading the policies, agents and certificates again, as requested");
                    // Some file systems report neither events nor changed times.
                    self.files.iter_mut().for_each(|files| files.reader.forget());
                }
                () = sleep_until(look_again) => {}
                () = updates.closed() => return,
            }
        }
    }

    /// Reads and parses on a separate thread, because ten thousand files would delay the threads that serve agents.
    async fn look(&mut self) -> io::Result<(FolderUpdate, FileCounts)> {
        let mut files = self.files.take().expect("the files are always put back below");
        let looked = tokio::task::spawn_blocking(move || {
            let time = clock::timestamp();
            let listing = files.reader.list(SystemTime::from(time));
            let update = listing.map(|listing| files.folder.absorb(clock::now(), time, listing));
            let counts = files.folder.counts();
            (files, update.map(|update| (update, counts)))
        });
        let (files, update) = looked.await.expect("reading does not panic and is not cancelled");
        self.files = Some(files);
        update
    }

    async fn wait_for_quiet(&mut self) {
        if self.moved.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        let latest = clock::now() + RESTLESS;
        while clock::now() < latest && matches!(timeout(QUIET, self.moved.recv()).await, Ok(Some(()))) {}
    }
}

/// Watches directories, as far as the system allows it: all programs of a user share the instances of inotify. The
/// rescan finds changes of the other directories.
fn watch(directories: &[(&Path, RecursiveMode)], tell: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    const LATER: &str = "the system reports no changes of files here, so the operator finds them within 2 s";
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let is_input =
            |event: &notify::Event| !event.kind.is_access() && event.paths.iter().any(|path| !is_status_file(path));
        if event.as_ref().map_or(true, is_input) {
            // A full channel means that a read is already scheduled.
            let _ = tell.try_send(());
        }
    });
    let mut watcher =
        watcher.inspect_err(|error| tracing::warn!(%error, "{LATER}: raise fs.inotify.max_user_instances")).ok()?;
    for (directory, mode) in directories {
        if let Err(error) = watcher.watch(directory, *mode) {
            tracing::warn!(path = %directory.display(), %error, "{LATER}: raise fs.inotify.max_user_watches");
        }
    }
    Some(watcher)
}

fn is_status_file(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.contains(STATUS_SUFFIX))
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
