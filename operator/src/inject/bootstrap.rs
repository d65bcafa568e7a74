//! What an agent enforces before the operator has reached it: the policies that target its pod already.
//!
//! The engine knows them and is asked for each pod, so that nothing is kept twice and nothing here can be out of date. A
//! standby's engine answers as well as a leader's.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::plan::Content;

/// The apiserver waits for seconds, and a pod whose agent closes its port until the first push is safe, too.
const PATIENCE: Duration = Duration::from_secs(1);
/// Whatever is pushed replaces it.
const SEQUENCE: u64 = 1;

/// What will a pod have to enforce that is about to be created?
#[derive(Debug)]
pub struct Question {
    /// Its namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Where the answer goes; dropped if there is none.
    pub answer: oneshot::Sender<Content>,
}

/// The snapshot for a new pod; none if nobody knows (yet).
pub(super) async fn snapshot(
    engine: &mpsc::Sender<Question>,
    namespace: &str,
    labels: BTreeMap<String, String>,
) -> Option<String> {
    let asked = async {
        let (answer, answered) = oneshot::channel();
        engine.send(Question { namespace: namespace.to_owned(), labels, answer }).await.ok()?;
        answered.await.ok()
    };
    timeout(PATIENCE, asked).await.ok().flatten().map(|content| content.body(SEQUENCE))
}
