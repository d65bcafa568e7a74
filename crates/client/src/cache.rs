//! Saves the last pushed snapshot to a file, for the next start of the container.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The file of `--snapshot-cache`.
#[derive(Clone, Debug)]
pub(crate) struct Cache(PathBuf);

impl Cache {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The saved snapshot; `None` if nothing was saved yet.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.0) {
            Ok(body) => Ok(Some(body)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the saved snapshot. The file is renamed into place, so a crash leaves either the old snapshot or the
    /// new one. Once this function returns, the new snapshot also survives a power cut.
    pub(crate) fn keep(&self, body: &[u8]) -> io::Result<()> {
        let mut partial = self.0.clone().into_os_string();
        partial.push(".partial");
        let mut file = File::create(&partial)?;
        file.write_all(body)?;
        file.sync_all()?;
        fs::rename(&partial, &self.0)?;
        let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}
