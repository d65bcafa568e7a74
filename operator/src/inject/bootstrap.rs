//! The bootstrap snapshot of a new pod: the policies that target the pod already.
//!
//! The engine knows them and answers for each pod, so nothing is stored twice or out of date. A standby's engine
//! answers as well as a leader's.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::plan::Content;

/// The timeout. The apiserver waits for seconds. Without an answer the pod is safe, too: its agent keeps the port
/// closed until the first push.
const PATIENCE: Duration = Duration::from_secs(1);
/// Every pushed snapshot replaces a bootstrap snapshot.
const SEQUENCE: u64 = 1;

/// The bootstrap snapshot with this content.
pub(super) fn snapshot(content: &Content) -> String {
    content.body(SEQUENCE)
}

/// A question to the engine: what will a new pod have to enforce?
#[derive(Debug)]
pub struct Question {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// The channel for the answer; dropped if there is none.
    pub answer: oneshot::Sender<Content>,
}

/// What a new pod will have to enforce; `None` if the engine does not know it (yet).
pub(super) async fn content(
    engine: &mpsc::Sender<Question>,
    namespace: &str,
    labels: BTreeMap<String, String>,
) -> Option<Content> {
    let asked = async {
        let (answer, answered) = oneshot::channel();
        engine.send(Question { namespace: namespace.to_owned(), labels, answer }).await.ok()?;
        answered.await.ok()
    };
    timeout(PATIENCE, asked).await.ok().flatten()
}
