//! The keys that tokens are verified with, from a file that others replace or from a URL, while the agent runs.
//!
//! What is in use changes only to a set of keys that can be used: a source that is gone or faulty leaves the last one. Once
//! there was a source, no token is ever believed unverified.

mod fetch;

use std::{
    convert::Infallible,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::Rng;
use tokio::time::sleep;
use weir_enforce::Jwks;

pub use self::fetch::InvalidSource;
pub(crate) use self::fetch::Source;
use crate::{
    apply::Snapshots,
    watch::{Contents, Watched},
};

/// After the first failure to fetch keys; each further one doubles it, up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// What can become of an attempt to load keys, as in `weir_jwks_loads_total`.
pub(crate) const LOADS: [&str; 2] = ["loaded", "failed"];
const LOADED: usize = 0;
const FAILED: usize = 1;
/// In place of the last result: there is none yet.
const NONE: usize = LOADS.len();

/// Counts the attempts to load keys from one source.
#[derive(Debug)]
pub(crate) struct Loads {
    /// `file` or `url`.
    pub(crate) source: &'static str,
    counts: [AtomicU64; LOADS.len()],
    last: AtomicUsize,
}

impl Loads {
    /// How many attempts had each of the [`LOADS`].
    pub(crate) fn counts(&self) -> [u64; LOADS.len()] {
        self.counts.each_ref().map(|count| count.load(Relaxed))
    }

    /// Whether the last attempt loaded keys; none before the first has ended.
    pub(crate) fn last_succeeded(&self) -> Option<bool> {
        match self.last.load(Relaxed) {
            NONE => None,
            last => Some(last == LOADED),
        }
    }

    fn ended(&self, result: usize) {
        self.counts[result].fetch_add(1, Relaxed);
        self.last.store(result, Relaxed);
    }
}

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

    /// Counts of no attempts yet.
    pub(crate) fn loads(&self) -> Loads {
        let source = match self {
            Self::File(_) => "file",
            Self::Url(_) => "url",
        };
        Loads { source, counts: Default::default(), last: NONE.into() }
    }

    /// Keeps up with them, for ever.
    pub(crate) async fn follow(self, snapshots: Arc<Snapshots>, loads: Arc<Loads>) -> Infallible {
        match self {
            Self::File(file) => file.follow(snapshots, &loads).await,
            Self::Url(url) => url.follow(snapshots, &loads).await,
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
    async fn follow(self, snapshots: Arc<Snapshots>, loads: &Loads) -> Infallible {
        let mut last = String::new();
        let mut retry = FIRST_RETRY;
        loop {
            let fetched = self.source.fetch().await;
            let read = fetched.and_then(|text| Ok((Jwks::parse(&text).map_err(|invalid| invalid.to_string())?, text)));
            let pause = match read {
                Ok((keys, text)) => {
                    loads.ended(LOADED);
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
                    loads.ended(FAILED);
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
    /// What is wrong with it, and how to fix it.
    pub(crate) fn read(path: PathBuf) -> Result<Self, String> {
        let (_, contents) = Watched::read([path.clone()]);
        let keys = Arc::new(keys(contents)?);
        Ok(Self { path, keys })
    }

    /// Reads the file again whenever it changes, for ever.
    async fn follow(self, snapshots: Arc<Snapshots>, loads: &Loads) -> Infallible {
        let (mut watched, mut contents) = Watched::read([self.path.clone()]);
        loop {
            // The first may have changed since the start.
            match keys(contents) {
                Ok(keys) => {
                    snapshots.verify_with(Arc::new(keys));
                    loads.ended(LOADED);
                    tracing::info!(path = %self.path.display(), "keys for tokens loaded");
                }
                Err(error) => {
                    let path = self.path.display();
                    loads.ended(FAILED);
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
