//! Writes statuses and events: to the apiserver, or to files and standard output.
//!
//! The engine sends reports and never waits. The writer keeps only the newest status of each policy, and retries until
//! it is written or replaced by a newer one. It reports each status that landed to the engine.

mod budget;
mod cluster;
pub mod echo;
mod files;
pub mod pace;
mod queue;
mod stores;
mod writer;

use std::sync::Arc;

use weir_api::{RateLimitPolicyStatus, RateLimitStoreStatus};

use self::echo::SourceStatus;
use crate::{leader::Term, world::ObjectKey};

pub use self::{cluster::ClusterSink, files::FileSink, writer::run};

/// A status to write.
#[derive(Clone, Debug)]
pub struct Report {
    /// The policy.
    pub key: ObjectKey,
    /// The policy's UID: a status must not be written to a new policy of the same name.
    pub uid: String,
    /// The policy's file, if the policy comes from a file.
    pub file: Option<Arc<str>>,
    /// A number that grows with each status of the policy.
    pub number: u64,
    /// The status to write.
    pub status: RateLimitPolicyStatus,
    /// The resource version that the status was computed from, if the source has versions. If another writer, perhaps a
    /// later leader, has written in the meantime, the write must fail.
    pub version: Option<String>,
    /// The term in which the report was created. The status is not written outside of it.
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
    /// The term in which the report was created. The status is not written outside of it.
    pub term: Term,
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
    /// The policy after the write.
    pub stored: Stored,
}

/// A policy after a status was written to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// The status as the source will report it.
    pub status: SourceStatus,
    /// The policy's version, if its source has versions.
    pub version: Option<String>,
}

/// An Event that the operator writes only once.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The policy.
    pub key: ObjectKey,
    /// The policy's UID.
    pub uid: String,
    /// True for an Event of type Warning, which a person should investigate.
    pub warning: bool,
    /// The reason: one word in PascalCase.
    pub reason: &'static str,
    /// The text: one sentence.
    pub note: String,
    /// The term in which the announcement was created. It is not written outside of it.
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
    Announce(Announcement),
    /// Print this notice about a file.
    Notice(String),
}

/// The reason why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The policy was deleted, or another policy has its name.
    #[error("the policy was deleted")]
    Gone,
    /// Another writer changed the policy in the meantime.
    #[error("the policy was changed in the meantime")]
    Conflict {
        /// The current version of the policy.
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
    async fn write(&self, report: &Report) -> Result<Stored, SinkError> {
        match self {
            Self::Cluster(sink) => sink.write(report).await,
            // The source of files reports policies without a status, because the status is in another file.
            Self::Files(sink) => {
                let (sink, report) = (sink.clone(), report.clone());
                // The write runs on another thread, because a disk can take long to sync.
                let written = tokio::task::spawn_blocking(move || sink.write(&report));
                written.await.expect("writing does not panic and is not cancelled").map(|()| Stored::default())
            }
        }
    }

    fn removed(&self, key: &ObjectKey) {
        if let Self::Files(sink) = self {
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
