//! The keys that verify tokens, from a file or a URL, reloaded while the agent runs.
//!
//! The keys in use change only to a valid key set. If the source is missing or invalid, the previous keys stay in
//! use. Once a source is configured, no unverified token is ever accepted.

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

pub(crate) use self::fetch::Source;
use crate::{
    snapshots::Snapshots,
    watch::{Contents, Watched},
};

/// The delay after the first failed fetch. Each further failure doubles it, up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The result of an attempt to load keys, as in `weir_jwks_loads_total`.
pub(crate) const LOADS: [&str; 2] = ["loaded", "failed"];
const LOADED: usize = 0;
const FAILED: usize = 1;
/// No attempt has ended yet.
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
    /// The number of attempts with each of the results in [`LOADS`].
    pub(crate) fn counts(&self) -> [u64; LOADS.len()] {
        self.counts.each_ref().map(|count| count.load(Relaxed))
    }

    /// Whether the last attempt loaded keys, or `None` before the first has ended.
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

/// The source of the keys.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    /// `--jwks`.
    File(JwksFile),
    /// `--jwks-url`.
    Url(JwksUrl),
}

impl Keys {
    /// The initial keys. They are empty before a URL's first reply, so that no token has claims.
    pub(crate) fn first(&self) -> Arc<Jwks> {
        match self {
            Self::File(file) => Arc::clone(&file.keys),
            Self::Url(_) => Arc::default(),
        }
    }

    /// A counter with no attempts yet.
    pub(crate) fn loads(&self) -> Loads {
        let source = match self {
            Self::File(_) => "file",
            Self::Url(_) => "url",
        };
        Loads { source, counts: Default::default(), last: NONE.into() }
    }

    /// Reloads the keys forever.
    pub(crate) async fn follow(self, snapshots: Arc<Snapshots>, loads: Arc<Loads>) -> Infallible {
        match self {
            Self::File(file) => file.follow(snapshots, &loads).await,
            Self::Url(url) => url.follow(snapshots, &loads).await,
        }
    }
}

/// A URL from which the agent fetches keys regularly.
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
                        snapshots.verify_with(Arc::new(keys)).await;
                        tracing::info!(url = self.source.url(), "keys for tokens loaded");
                        last = text;
                    }
                    retry = FIRST_RETRY;
                    self.refresh
                }
                Err(error) => {
                    let url = self.source.url();
                    loads.ended(FAILED);
                    tracing::error!(error, url, "cannot load keys from --jwks-url: the previous keys stay in use");
                    let pause = retry.min(self.refresh);
                    retry = (retry * 2).min(LONGEST_RETRY);
                    pause
                }
            };
            // The jitter keeps agents that started together from fetching together.
            let pause = pause.mul_f64(rand::rng().random_range(0.85..=1.0));
            sleep(pause).await;
        }
    }
}

/// `--jwks`: the file, and the keys that it contained at the start.
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
    /// Returns the fault of the file, and how to fix it.
    pub(crate) fn read(path: PathBuf) -> Result<Self, String> {
        let (_, contents) = Watched::read([path.clone()]);
        let keys = Arc::new(keys(contents)?);
        Ok(Self { path, keys })
    }

    /// Reads the file again whenever it changes, forever.
    async fn follow(self, snapshots: Arc<Snapshots>, loads: &Loads) -> Infallible {
        let (mut watched, mut contents) = Watched::read([self.path.clone()]);
        loop {
            // The file may have changed since the start.
            match keys(contents) {
                Ok(keys) => {
                    snapshots.verify_with(Arc::new(keys)).await;
                    loads.ended(LOADED);
                    tracing::info!(path = %self.path.display(), "keys for tokens loaded");
                }
                Err(error) => {
                    let path = self.path.display();
                    loads.ended(FAILED);
                    tracing::error!(%error, %path, "--jwks is invalid: the previous keys stay in use");
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
