//! The file of keys that tokens are verified with, which others replace while the agent runs.
//!
//! What is in use changes only to a set of keys that can be used: a file that is gone or faulty leaves the last one. Once
//! there was a file, no token is ever believed unverified.

use std::{convert::Infallible, path::PathBuf, sync::Arc};

use crate::{
    apply::Snapshots,
    rules::Jwks,
    watch::{Contents, Watched},
};

/// `--jwks`: the file, and the keys that it held at the start.
#[derive(Clone, Debug)]
pub(crate) struct JwksFile {
    path: PathBuf,
    pub(crate) keys: Arc<Jwks>,
}

impl JwksFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and how to mend it.
    pub(crate) fn read(path: PathBuf) -> Result<Self, String> {
        let (_, contents) = Watched::read([path.clone()]);
        let keys = Arc::new(keys(contents)?);
        Ok(Self { path, keys })
    }

    /// Reads the file again whenever it changes, for ever.
    pub(crate) async fn follow(self, snapshots: Arc<Snapshots>) -> Infallible {
        let (mut watched, mut contents) = Watched::read([self.path.clone()]);
        loop {
            // The first may have changed since the start.
            match keys(contents) {
                Ok(keys) => {
                    snapshots.verify_with(Arc::new(keys));
                    tracing::info!(path = %self.path.display(), "keys for tokens loaded");
                }
                Err(error) => {
                    let path = self.path.display();
                    tracing::error!(%error, %path, "--jwks rejected: the keys from before stay in use");
                }
            }
            contents = watched.changed().await;
        }
    }
}

fn keys([content]: Contents<1>) -> Result<Jwks, String> {
    let text = String::from_utf8(content?).map_err(|_| "is not UTF-8".to_owned())?;
    Jwks::parse(&text).map_err(|invalid| invalid.to_string())
}
