//! The bootstrap snapshot of a new pod: the policies that already target the pod.
//!
//! The engine has these policies in memory and answers for each pod, so no second copy can become out of date. A
//! standby's engine answers in the same way as a leader's.

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{plan::Content, world::Membership};

/// The timeout of a request to the engine. The apiserver waits only for seconds. If there is no answer, the agent
/// keeps the port closed until the first push, so the pod is safe.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The sequence of bootstrap snapshots. It is the lowest, so every pushed snapshot replaces a bootstrap snapshot.
const SEQUENCE: u64 = 1;

pub(super) fn snapshot(content: &Content) -> String {
    content.body(SEQUENCE)
}

/// A request to the engine: which content must a new pod enforce?
#[derive(Debug)]
pub struct ContentRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's labels, and the workload that creates it.
    pub membership: Membership,
    /// The channel for the answer. It is dropped if there is no answer.
    pub answer: oneshot::Sender<Content>,
}

/// Returns the content that a new pod must enforce, or `None` if the engine has no answer (yet).
pub(super) async fn content(
    engine: &mpsc::Sender<ContentRequest>,
    namespace: &str,
    membership: Membership,
) -> Option<Content> {
    let asked = async {
        let (answer, answered) = oneshot::channel();
        engine.send(ContentRequest { namespace: namespace.to_owned(), membership, answer }).await.ok()?;
        answered.await.ok()
    };
    timeout(TIMEOUT, asked).await.ok().flatten()
}
