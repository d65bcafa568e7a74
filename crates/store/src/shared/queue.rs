//! The requests that wait for slots of the store.
//!
//! A slot is the seats of one request, and the time from which they can be used. A slot belongs to no request: at its time,
//! the first request in the queue gets it. So when a client leaves, the requests behind its request move forward, and a
//! later request takes the slot that became free at the end.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};
use weir_seats::{Left, Seats};

use super::{
    Refused, SharedLimiter,
    decision::{Decision, Grant, QueueId},
    entry::Waiter,
    request::slowest,
    upkeep::UNUSED,
};
use crate::lock::lock;

/// A decision. A granted request goes at this time of the store's clock, or immediately if it is zero.
pub(super) type TimedDecision = Result<(Grant, u64), Refused>;

/// Decisions, with the requests that wait for them. They are sent when no lock is held.
pub(super) type Decisions = Vec<(Waiter, TimedDecision)>;

#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Mutex<HashMap<QueueId, Queue>>,
}

/// A queue never has more requests than slots.
#[derive(Debug, Default)]
struct Queue {
    /// The requests by their number.
    requests: BTreeMap<u64, oneshot::Sender<Decision>>,
    /// The slots by their time.
    slots: VecDeque<TimedSeats>,
    /// The time since which no request waits, if none does.
    idle_since: Duration,
    /// Wakes the task of the queue.
    wakes: Arc<Notify>,
}

#[derive(Debug)]
struct TimedSeats {
    /// The time on the store's clock.
    due: u64,
    /// The time on the program's clock. A store whose clock is set, or another leader, releases no slot earlier.
    goes_at: Duration,
    /// The time on the program's clock at which a slower store's clock is certainly at `due`.
    latest: Duration,
    seats: Seats,
    left: Option<Left>,
}

/// What the task of a queue does next.
struct Turn {
    go: Vec<(oneshot::Sender<Decision>, TimedSeats)>,
    unused: Vec<TimedSeats>,
    /// The time until the next turn. None if the queue has ended.
    next: Option<(Duration, Arc<Notify>)>,
}

impl Queue {
    /// Returns true if a further request would go at this time or before.
    fn has_slot(&self, latest: Duration) -> bool {
        self.slots.get(self.requests.len()).is_some_and(|slot| slot.goes_at <= latest)
    }
}

#[cfg(test)]
impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queues).is_empty()
    }
}

impl SharedLimiter {
    /// Adds a request and the slot that the store gave it, which is this far away. The caller must hold no lock.
    fn enqueue(&self, waiter: Waiter, mut grant: Grant, (due, rest): (u64, Duration)) {
        let (queue_id, now) = (waiter.queue_id, self.client.now());
        let Some(seats) = grant.seats.take() else { return };
        let goes_at = now + rest;
        let slot = TimedSeats { due, goes_at, latest: now + slowest(rest), seats, left: grant.left };
        let mut queues = lock(&self.queues.queues);
        let begins = !queues.contains_key(&queue_id);
        let queue = queues.entry(queue_id).or_default();
        if !waiter.sender.is_closed() {
            queue.requests.insert(waiter.id, waiter.sender);
        } else if queue.requests.is_empty() {
            queue.idle_since = now;
        }
        let index = queue.slots.partition_point(|earlier| earlier.goes_at <= goes_at);
        queue.slots.insert(index, slot);
        if index == 0 {
            queue.wakes.notify_one();
        }
        drop(queues);
        if begins && let Some(me) = self.me.upgrade() {
            self.client.spawn(async move { me.serve_queue(queue_id).await });
        }
    }

    /// Returns true if a new request can take a free slot at this time or before.
    pub(super) fn has_slot(&self, queue_id: QueueId, latest: Duration) -> bool {
        lock(&self.queues.queues).get(&queue_id).is_some_and(|queue| queue.has_slot(latest))
    }

    /// Adds a request that takes a free slot. Gives the request back if there is none within its patience.
    pub(super) fn join(&self, waiter: Waiter) -> Result<(), Waiter> {
        let mut queues = lock(&self.queues.queues);
        match queues.get_mut(&waiter.queue_id) {
            Some(queue) if waiter.is_patient && !waiter.sender.is_closed() && queue.has_slot(waiter.latest) => {
                queue.requests.insert(waiter.id, waiter.sender);
                Ok(())
            }
            _ => Err(waiter),
        }
    }

    /// Removes a request. Its slot stays for others.
    pub(super) fn leave(&self, queue_id: QueueId, id: u64) {
        let mut queues = lock(&self.queues.queues);
        let Some(queue) = queues.get_mut(&queue_id) else { return };
        if queue.requests.remove(&id).is_some() && queue.requests.is_empty() {
            queue.idle_since = self.client.now();
            queue.wakes.notify_one();
        }
    }

    /// Takes back the seats of all free slots.
    pub(super) fn end_free_slots(&self) {
        let mut free = Vec::new();
        for (&queue_id, queue) in &mut *lock(&self.queues.queues) {
            free.extend(queue.slots.drain(queue.requests.len()..).map(|slot| (queue_id, slot)));
            queue.wakes.notify_one();
        }
        free.into_iter().for_each(|(queue_id, slot)| self.put_back(queue_id.hash, slot.seats, slot.latest));
    }

    async fn serve_queue(self: Arc<Self>, queue_id: QueueId) {
        loop {
            let Turn { go, unused, next } = self.turn(queue_id);
            for (sender, slot) in go {
                let _ = sender.send(Ok(self.grant(queue_id.hash, Some(slot.seats), slot.left)));
            }
            unused.into_iter().for_each(|slot| self.put_back(queue_id.hash, slot.seats, slot.latest));
            let Some((rest, wakes)) = next else { return };
            let _ = timeout(rest, wakes.notified()).await;
        }
    }

    /// Gives each slot whose time has come to the first request of the queue. A free slot ends at its time, or after
    /// [`UNUSED`] without requests.
    fn turn(&self, queue_id: QueueId) -> Turn {
        let now = self.client.now();
        let (mut go, mut unused) = (Vec::new(), Vec::new());
        let mut queues = lock(&self.queues.queues);
        let Some(queue) = queues.get_mut(&queue_id) else { return Turn { go, unused, next: None } };
        if queue.requests.is_empty() && now >= queue.idle_since + UNUSED {
            unused.extend(queue.slots.drain(..));
        }
        while let Some(slot) = queue.slots.pop_front_if(|slot| self.rest(slot, now).is_zero()) {
            let requests = std::iter::from_fn(|| queue.requests.pop_first());
            match requests.map(|(_, sender)| sender).find(|sender| !sender.is_closed()) {
                Some(sender) => {
                    go.push((sender, slot));
                    queue.idle_since = now;
                }
                None => unused.push(slot),
            }
        }
        let Some(first) = queue.slots.front() else {
            queues.remove(&queue_id);
            return Turn { go, unused, next: None };
        };
        let rest = self.rest(first, now);
        let idle = queue.requests.is_empty().then(|| (queue.idle_since + UNUSED).saturating_sub(now));
        let next = Some((idle.map_or(rest, |idle| idle.min(rest)), Arc::clone(&queue.wakes)));
        Turn { go, unused, next }
    }

    /// The time until a slot can be used. Zero if it can be used now.
    fn rest(&self, slot: &TimedSeats, now: Duration) -> Duration {
        match slot.goes_at.saturating_sub(now) {
            Duration::ZERO => self.until(slot.due).unwrap_or_default().min(slot.latest.saturating_sub(now)),
            rest => rest,
        }
    }
}

/// Sends the decisions. The caller must hold no lock, because a grant without a receiver puts its seats back.
pub(super) fn send(limiter: &SharedLimiter, decisions: Decisions) {
    limiter.waiting.fetch_sub(decisions.len(), Relaxed);
    for (waiter, decision) in decisions {
        match decision {
            Ok((grant, due)) => match limiter.until(due) {
                Some(rest) => limiter.enqueue(waiter, grant, (due, rest)),
                None => drop(waiter.sender.send(Ok(grant))),
            },
            Err(refused) => drop(waiter.sender.send(Err(refused))),
        }
    }
}
