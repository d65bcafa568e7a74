//! The keys that tokens are verified with, from a file that others replace or from a URL, while the agent runs.
//!
//! What is in use changes only to a set of keys that can be used: a source that is gone or faulty leaves the last one. Once
//! there was a source, no token is ever believed unverified.

mod fetch;

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use rand::Rng;
use tokio::time::sleep;

pub use self::fetch::InvalidSource;
pub(crate) use self::fetch::Source;
use crate::{
    apply::Snapshots,
    rules::Jwks,
    watch::{Contents, Watched},
};

/// After the first failure to fetch keys; each further one doubles it, up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Where keys come from.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    /// `--jwks`.
    File(JwksFile),
    /// `--jwks-url`.
    Url(JwksUrl),
}

impl Keys {
    /// The keys to begin with: none before the first answer of a URL, so that no token has claims.
    pub(crate) fn first(&self) -> Arc<Jwks> {
        match self {
            Self::File(file) => Arc::clone(&file.keys),
            Self::Url(_) => Arc::default(),
        }
    }

    /// Keeps up with them, for ever.
    pub(crate) async fn follow(self, snapshots: Arc<Snapshots>) -> Infallible {
        match self {
            Self::File(file) => file.follow(snapshots).await,
            Self::Url(url) => url.follow(snapshots).await,
        }
    }
}

/// A URL that is asked for keys again and again.
#[derive(Clone, Debug)]
pub(crate) struct JwksUrl {
    pub(crate) source: Source,
    pub(crate) refresh: Duration,
}

impl JwksUrl {
    async fn follow(self, snapshots: Arc<Snapshots>) -> Infallible {
        let mut last = String::new();
        let mut retry = FIRST_RETRY;
        loop {
            let fetched = self.source.fetch().await;
            let read = fetched.and_then(|text| Ok((Jwks::parse(&text).map_err(|invalid| invalid.to_string())?, text)));
            let pause = match read {
                Ok((keys, text)) => {
                    if text != last {
                        snapshots.verify_with(Arc::new(keys));
                        tracing::info!(url = self.source.url(), "keys for tokens loaded");
                        last = text;
                    }
                    retry = FIRST_RETRY;
                    self.refresh
                }
                Err(error) => {
                    let url = self.source.url();
                    tracing::error!(error, url, "--jwks-url gives no keys: those from before stay in use");
                    let pause = retry.min(self.refresh);
                    retry = (retry * 2).min(LONGEST_RETRY);
                    pause
                }
            };
            // Agents that were started together do not ask together.
            let pause = pause.mul_f64(rand::rng().random_range(0.85..=1.0));
            sleep(pause).await;
        }
    }
}

/// `--jwks`: the file, and the keys that it held at the start.
#[derive(Clone, Debug)]
pub(crate) struct JwksFile {
    path: PathBuf,
    keys: Arc<Jwks>,
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
