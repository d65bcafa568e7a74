//! Where statuses and events go: the apiserver, or files and standard output.
//!
//! The engine hands over what is to be written and never waits for it. The writer keeps only the newest status of
//! each policy, tries again until it is written or there is a newer one, and tells the engine what landed.

mod budget;
mod cluster;
pub mod echo;
mod files;
pub mod pace;
mod queue;
mod writer;

use std::sync::Arc;

use weir_api::RateLimitPolicyStatus;

pub use cluster::ClusterSink;
pub use files::{FileSink, kept};
pub use writer::run;

use crate::leader::Term;
use crate::world::ObjectKey;
use echo::Shown;

/// A status to write.
#[derive(Clone, Debug)]
pub struct Report {
    /// The policy.
    pub key: ObjectKey,
    /// Its UID: a status must not land on a successor of the same name.
    pub uid: String,
    /// The file that it is in, if it is in one.
    pub file: Option<Arc<str>>,
    /// Grows with each status of the policy.
    pub number: u64,
    /// What to write.
    pub status: RateLimitPolicyStatus,
    /// The version of the policy that it was made from, if its source has versions: a status must not land on one that
    /// somebody else, perhaps a later leader, has written to since.
    pub version: Option<String>,
    /// The term that it was made in: it is not written outside of it.
    pub term: Term,
}

/// A status that was written.
#[derive(Clone, Debug)]
pub struct WrittenStatus {
    /// The policy.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// The number of its [`Report`].
    pub number: u64,
    /// What the policy has become.
    pub stored: Stored,
}

/// A policy after a status was written to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// The status as the source of policies will show it.
    pub status: Shown,
    /// The policy's version, if its source has versions.
    pub version: Option<String>,
}

/// Something worth telling a person, once.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// The policy.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// Whether somebody should look.
    pub warning: bool,
    /// One word in PascalCase.
    pub reason: &'static str,
    /// One sentence.
    pub note: String,
    /// The term that it was made in: it is not told outside of it.
    pub term: Term,
}

/// What the engine sends to the writer.
#[derive(Clone, Debug)]
pub enum Message {
    /// Write this status.
    Status(Box<Report>),
    /// The policy is gone.
    Removed(ObjectKey),
    /// Tell this.
    Announce(Announcement),
    /// Tell this about a file.
    Notice(String),
}

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The policy is gone or another one took its name: there is nothing to write to.
    #[error("the policy is gone")]
    Gone,
    /// Somebody else wrote to the policy in the meantime.
    #[error("it was changed meanwhile")]
    Conflict {
        /// Its version now.
        version: Option<String>,
    },
    /// The apiserver did not take it.
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    /// Nobody knows what became of it.
    #[error("no answer in time")]
    Timeout,
    /// The file could not be written.
    #[error("{0}")]
    File(#[from] std::io::Error),
}

impl SinkError {
    /// Whether the same may go well in a moment.
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

/// Where reports go.
#[derive(Debug)]
pub enum Sink {
    /// The status subresource and Events.
    Cluster(ClusterSink),
    /// Files beside the policies and standard output.
    Files(Arc<FileSink>),
}

impl Sink {
    async fn write(&self, report: &Report) -> Result<Stored, SinkError> {
        match self {
            Self::Cluster(sink) => sink.write(report).await,
            // Policies in files are shown without a status: theirs is in another file.
            Self::Files(sink) => {
                let (sink, report) = (sink.clone(), report.clone());
                // A disk takes its time to say that it has something.
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
