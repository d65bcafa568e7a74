//! Where statuses and events go: the apiserver, or files and standard output.
//!
//! The engine hands over what is to be written and never waits for it. The writer keeps only the newest status of
//! each policy, and tries again until it is written or there is a newer one.

mod cluster;
mod files;
pub mod pace;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::sleep;
use weir_api::RateLimitPolicyStatus;

pub use cluster::ClusterSink;
pub use files::FileSink;

use crate::metrics::Metrics;
use crate::world::ObjectKey;

/// How many statuses are written side by side.
const WRITERS: usize = 8;
/// The longest pause after failed writes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A status to write.
#[derive(Clone, Debug)]
pub struct Report {
    /// The policy.
    pub key: ObjectKey,
    /// Its UID: a status must not land on a successor of the same name.
    pub uid: String,
    /// The file that it is in, if it is in one.
    pub file: Option<Arc<str>>,
    /// What to write.
    pub status: RateLimitPolicyStatus,
}

/// Something worth telling a person, once.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The apiserver did not take it.
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    /// The file could not be written.
    #[error("{0}")]
    File(#[from] std::io::Error),
}

/// Where reports go.
#[derive(Debug)]
pub enum Sink {
    /// The status subresource and Events.
    Cluster(ClusterSink),
    /// Files beside the policies and standard output.
    Files(FileSink),
}

impl Sink {
    async fn write(&self, report: &Report) -> Result<(), SinkError> {
        match self {
            Self::Cluster(sink) => sink.write(report).await,
            Self::Files(sink) => sink.write(report),
        }
    }

    async fn announce(&self, announcement: &Announcement) {
        match self {
            Self::Cluster(sink) => sink.announce(announcement).await,
            Self::Files(sink) => sink.announce(announcement),
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

/// Writes until `messages` is closed, and what is left then.
pub async fn run(sink: Sink, mut messages: mpsc::UnboundedReceiver<Message>, metrics: Metrics) {
    let mut pending: BTreeMap<ObjectKey, Box<Report>> = BTreeMap::new();
    let mut failures = 0_u32;
    loop {
        let pause = Duration::from_millis(100).saturating_mul(1 << failures.min(8)).min(LONGEST_PAUSE);
        let message = tokio::select! {
            message = messages.recv() => match message {
                Some(message) => Some(message),
                None => return,
            },
            () = sleep(pause), if !pending.is_empty() => None,
        };
        let mut next = message;
        while let Some(message) = next {
            match message {
                Message::Status(report) => drop(pending.insert(report.key.clone(), report)),
                Message::Removed(key) => {
                    pending.remove(&key);
                    sink.removed(&key);
                }
                Message::Announce(announcement) => sink.announce(&announcement).await,
                Message::Notice(text) => sink.notice(&text),
            }
            next = messages.try_recv().ok();
        }
        let batch = std::mem::take(&mut pending);
        let written: Vec<_> = futures::stream::iter(batch)
            .map(|(key, report)| async {
                let outcome = sink.write(&report).await;
                (key, report, outcome)
            })
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        let mut failed = false;
        for (key, report, outcome) in written {
            match outcome {
                Ok(()) => metrics.status_written(true),
                Err(SinkError::Gone) => {}
                Err(error) => {
                    failed = true;
                    metrics.status_written(false);
                    tracing::warn!(policy = %key, error = %format!("{error:#}"), "cannot write the status, trying again");
                    pending.insert(key, report);
                }
            }
        }
        failures = if failed { failures.saturating_add(1) } else { 0 };
    }
}
