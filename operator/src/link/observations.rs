//! The queue of observations, from all links to the engine.
//!
//! A status can take as much memory as the policies of its pod, so the channel has a bound in bytes, too. A link that
//! finds no room waits with one observation and reads nothing from its agent. So the agents of one tenant cannot fill the
//! operator's memory while the engine is busy.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use weir_wire::{PolicyStatus, RuleStatus, Status, StoreStatus};

use super::{Observation, Seen};

/// The maximum number of observations.
const MOST: usize = 1024;

/// The maximum memory of all their statuses, in bytes.
const MOST_BYTES: u32 = 64 * 1024 * 1024;

/// The memory of an observation without the status, in bytes, rounded up.
const FIXED: usize = 512;

/// The end of the links.
#[derive(Clone, Debug)]
pub struct ObservationSender {
    sender: mpsc::Sender<(Observation, OwnedSemaphorePermit)>,
    /// A permit for each byte.
    room: Arc<Semaphore>,
}

/// The end of the engine.
#[derive(Debug)]
pub struct ObservationReceiver(mpsc::Receiver<(Observation, OwnedSemaphorePermit)>);

/// The engine has ended.
#[derive(Debug)]
pub(super) struct EngineEnded;

/// Returns both ends of a channel.
pub fn observations() -> (ObservationSender, ObservationReceiver) {
    let (sender, receiver) = mpsc::channel(MOST);
    (ObservationSender { sender, room: Arc::new(Semaphore::new(MOST_BYTES as usize)) }, ObservationReceiver(receiver))
}

impl ObservationSender {
    /// Sends an observation, when the channel has room for it.
    pub(super) async fn send(&self, observation: Observation) -> Result<(), EngineEnded> {
        let bytes = u32::try_from(bytes(&observation.seen)).unwrap_or(u32::MAX).min(MOST_BYTES);
        let room = self.room.clone().acquire_many_owned(bytes).await.expect("the room is never closed");
        self.sender.send((observation, room)).await.map_err(|_| EngineEnded)
    }
}

impl ObservationReceiver {
    /// Returns the next observation. `None` if there are no links and no more observations.
    pub async fn recv(&mut self) -> Option<Observation> {
        self.0.recv().await.map(|(observation, _room)| observation)
    }
}

/// The memory of a result, in bytes. All links share a content.
fn bytes(seen: &Seen) -> usize {
    let Seen::Status(status) = seen else { return FIXED };
    let Status { policies, stores, .. } = &**status;
    let of_rule = |rule: &RuleStatus| size_of::<RuleStatus>() + rule.name.len();
    let of_policy = |policy: &PolicyStatus| {
        let PolicyStatus { uid, namespace, name, revision, rules } = policy;
        let texts = [uid, namespace, name, revision].map(String::len).into_iter().sum::<usize>();
        size_of::<PolicyStatus>() + texts + rules.iter().map(of_rule).sum::<usize>()
    };
    let of_store =
        |store: &StoreStatus| size_of::<StoreStatus>() + store.name.len() + store.error.as_ref().map_or(0, String::len);
    FIXED + policies.iter().map(of_policy).sum::<usize>() + stores.iter().map(of_store).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;
    use crate::{clock, world::ObjectKey};

    fn observation(at: Instant, rules: usize, length: usize) -> Observation {
        let rule = RuleStatus { name: "x".repeat(length), ..RuleStatus::default() };
        let policy = PolicyStatus { uid: "u".to_owned(), rules: vec![rule; rules], ..PolicyStatus::default() };
        let status = Status { policies: vec![policy], ..Status::default() };
        let pod = ObjectKey { namespace: "shop".into(), name: "pod".into() };
        Observation { pod, pod_uid: "uid".into(), at, seen: Seen::Status(Arc::new(status)) }
    }

    /// Sends observations until one must wait. Returns how many were sent.
    fn fill(sender: &ObservationSender, of: impl Fn() -> Observation) -> usize {
        let mut sent = 0;
        while sender.send(of()).now_or_never().is_some() {
            sent += 1;
        }
        sent
    }

    #[test]
    fn large_statuses_fill_the_channel_sooner() {
        let at = clock::now();
        for (rules, length, expected) in [(1, 1, MOST..=MOST), (10_000, 100, 20..=40), (1, 70 << 20, 1..=1)] {
            let (sender, mut receiver) = observations();
            let sent = fill(&sender, || observation(at, rules, length));
            assert!(expected.contains(&sent), "{rules} rules: {sent}");
            for _ in 0..2 {
                receiver.recv().now_or_never().flatten().expect("an observation");
                assert_eq!(fill(&sender, || observation(at, rules, length)), 1, "{rules} rules");
            }
            drop(receiver);
            assert!(sender.send(observation(at, 1, 1)).now_or_never().expect("no wait").is_err());
        }
    }
}
