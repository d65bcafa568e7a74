//! Writes statuses and events: to the apiserver, or to files and standard output.
//!
//! The engine sends reports and never waits. The writer keeps only the newest status of each policy, and retries until
//! it is written or replaced by a newer one. It reports each written status to the engine.

mod budget;
mod cluster;
mod files;
mod queue;
mod undeclared;
mod writer;

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use weir_api::{RateLimitPolicyStatus, RateLimitStoreStatus};

pub use self::{cluster::ClusterSink, files::FileSink, writer::run};
use crate::{
    documents::StoreSpecs,
    leader::Term,
    status::announcer::Notice,
    world::{ObjectKey, StoredStatus},
};

/// A status to write.
#[derive(Clone, Debug)]
pub struct Report {
    /// The policy.
    pub key: ObjectKey,
    /// The policy's UID: a status must not be written to a new policy of the same name.
    pub uid: String,
    /// The policy's file, if the policy comes from a file.
    pub file: Option<Arc<str>>,
    /// The time at which the policy changed in this file.
    pub changed: Option<Timestamp>,
    /// A number that grows with each status of the policy.
    pub number: u64,
    /// The status to write.
    pub status: RateLimitPolicyStatus,
    /// The resource version that the status was computed from, if the source has versions. If another writer, perhaps a
    /// later leader, has written in the meantime, the write must fail.
    pub version: Option<String>,
    /// The term in which the report was created. The status is not written outside of this term.
    pub term: Term,
}

/// A status of a store to write.
#[derive(Clone, Debug)]
pub struct StoreReport {
    /// The store.
    pub key: ObjectKey,
    /// The store's UID: a status must not be written to a new store of the same name.
    pub uid: String,
    /// The status to write.
    pub status: RateLimitStoreStatus,
    /// The term in which the report was created. The status is not written outside of this term.
    pub term: Term,
}

/// The stores of a file, to write into its status file.
#[derive(Clone, Debug)]
struct FileStores {
    file: Arc<str>,
    stores: StoreSpecs,
    term: Term,
}

/// The object of a status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Target {
    Policy(ObjectKey),
    Store(ObjectKey),
    /// The stores of a file.
    File(Arc<str>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(key) => write!(f, "RateLimitPolicy {key}"),
            Self::Store(key) => write!(f, "RateLimitStore {key}"),
            Self::File(file) => write!(f, "stores of {file}"),
        }
    }
}

/// A status that is not yet written.
#[derive(Clone, Debug)]
enum Pending {
    Policy(Box<Report>),
    Store(Box<StoreReport>),
    File(Box<FileStores>),
}

impl Pending {
    fn target(&self) -> Target {
        match self {
            Self::Policy(report) => Target::Policy(report.key.clone()),
            Self::Store(report) => Target::Store(report.key.clone()),
            Self::File(stores) => Target::File(stores.file.clone()),
        }
    }

    fn term(&self) -> &Term {
        match self {
            Self::Policy(report) => &report.term,
            Self::Store(report) => &report.term,
            Self::File(stores) => &stores.term,
        }
    }
}

/// A status that was written.
#[derive(Clone, Debug)]
pub struct WrittenStatus {
    /// The policy.
    pub key: ObjectKey,
    /// The policy's UID.
    pub uid: String,
    /// The number of its [`Report`].
    pub number: u64,
    /// The status after the write, as the source will report it.
    pub stored: StoredStatus,
}

/// An Event that the operator writes only once.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The policy.
    pub key: ObjectKey,
    /// The policy's UID.
    pub uid: String,
    /// The notice to write.
    pub notice: Notice,
    /// The term in which the announcement was created. The announcement is not written outside of this term.
    pub term: Term,
}

/// A message from the engine to the writer.
#[derive(Clone, Debug)]
pub enum Message {
    /// Write this status.
    Status(Box<Report>),
    /// Write this status of a store. The status of a store in a file is not written.
    Store(Box<StoreReport>),
    /// The policy was deleted.
    Removed(ObjectKey),
    /// Write this announcement.
    Announce(Box<Announcement>),
    /// Print this notice about a file.
    Notice(String),
    /// Store the stores of a file, for a start at which the file is broken.
    Stores(Arc<str>, StoreSpecs),
}

/// The reason why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The object was deleted, or another one has its name.
    #[error("the object was deleted")]
    Gone,
    /// Another writer changed the object in the meantime.
    #[error("the object was changed in the meantime")]
    Conflict {
        /// The current version of the object.
        version: Option<String>,
    },
    /// The apiserver refused the write.
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    /// The result is unknown.
    #[error("no answer in time")]
    Timeout,
    /// The file could not be written.
    #[error("{0}")]
    File(#[from] std::io::Error),
}

impl SinkError {
    /// Returns true if a retry may succeed.
    fn may_pass(&self) -> bool {
        match self {
            Self::Gone => false,
            Self::Conflict { .. } | Self::Timeout | Self::File(_) => true,
            Self::Api(error) => match &**error {
                kube::Error::Api(status) => status.code == 429 || status.code >= 500,
                _ => true,
            },
        }
    }
}

/// The destination of reports.
#[derive(Debug)]
pub enum Sink {
    /// The status subresource and Events.
    Cluster(ClusterSink),
    /// Files next to the policies, and standard output.
    Files(Arc<FileSink>),
}

impl Sink {
    async fn write(&self, pending: &Pending) -> Result<StoredStatus, SinkError> {
        match (self, pending) {
            (Self::Cluster(sink), _) => sink.write(pending).await,
            // The source of files reports policies without a status, because the status is in another file.
            (Self::Files(sink), _) => {
                let (sink, pending) = (sink.clone(), pending.clone());
                // The write runs on another thread, because a disk can take long to sync.
                let written = tokio::task::spawn_blocking(move || match pending {
                    Pending::Policy(report) => sink.write(&report),
                    Pending::Store(_) => Err(SinkError::Gone),
                    Pending::File(stores) => Ok(sink.store(&stores.file, &stores.stores)?),
                });
                written.await.expect("writing does not panic and is not cancelled").map(|()| StoredStatus::default())
            }
        }
    }

    fn removed(&self, target: &Target) {
        if let (Self::Files(sink), Target::Policy(key)) = (self, target) {
            sink.removed(key);
        }
    }

    fn notice(&self, text: &str) {
        match self {
            Self::Cluster(_) => tracing::warn!("{text}"),
            Self::Files(sink) => sink.notice(text),
        }
    }
}
