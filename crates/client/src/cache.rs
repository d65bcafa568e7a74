//! Saves the last pushed snapshot to a file, for the next start of the container.
//!
//! A disk can be slow, so nothing waits for it: while one snapshot is being saved, the newest later one waits for its
//! turn, and replaces those before it.

use std::{
    fs::{self, File},
    io::{self, Write},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::watch;

/// The file of `--snapshot-cache`.
#[derive(Clone, Debug)]
pub(crate) struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    saving: watch::Sender<Saving>,
}

#[derive(Debug, Default)]
struct Saving {
    is_running: bool,
    /// The newest snapshot that waits to be saved.
    next: Option<Vec<u8>>,
}

impl Cache {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(Arc::new(Inner { path, saving: watch::Sender::default() }))
    }

    /// The saved snapshot, or `None` if nothing was saved yet.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.0.path) {
            Ok(body) => Ok(Some(body)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Saves a snapshot on a blocking thread of the current runtime, without waiting for the disk. The snapshot of the last
    /// call is saved last.
    pub(crate) fn keep(&self, body: Vec<u8>) {
        let mut was_running = false;
        self.0.saving.send_modify(|saving| {
            saving.next = Some(body);
            was_running = mem::replace(&mut saving.is_running, true);
        });
        if !was_running {
            let cache = self.clone();
            tokio::task::spawn_blocking(move || cache.save_all());
        }
    }

    /// Returns when the snapshots so far are saved.
    pub(crate) async fn saved(&self) {
        // The wait fails only if the sender is dropped, and `self` holds the sender.
        let _ = self.0.saving.subscribe().wait_for(|saving| !saving.is_running).await;
    }

    /// Returns when no snapshot waits to be saved.
    #[cfg(test)]
    pub(crate) async fn begun(&self) {
        let _ = self.0.saving.subscribe().wait_for(|saving| saving.next.is_none()).await;
    }

    fn save_all(&self) {
        loop {
            let mut next = None;
            self.0.saving.send_modify(|saving| {
                next = saving.next.take();
                saving.is_running = next.is_some();
            });
            let Some(body) = next else { return };
            if let Err(error) = self.save(&body) {
                tracing::warn!(%error, "the snapshot is in force, but could not be saved to --snapshot-cache");
            }
        }
    }

    /// Replaces the saved snapshot. The file is renamed into place, so a crash leaves either the old snapshot or the
    /// new one. Once this function returns, the new snapshot also survives a power cut.
    pub(crate) fn save(&self, body: &[u8]) -> io::Result<()> {
        let mut partial = self.0.path.clone().into_os_string();
        partial.push(".partial");
        let mut file = File::create(&partial)?;
        file.write_all(body)?;
        file.sync_all()?;
        fs::rename(&partial, &self.0.path)?;
        let folder = self.0.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}
