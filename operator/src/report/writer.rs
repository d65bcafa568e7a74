//! The writing loop. Statuses are written in parallel, announcements one after the other. Statuses and announcements do
//! not wait for each other.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use rand::Rng;
use tokio::{
    sync::mpsc,
    time::{sleep_until, timeout},
};

use super::{
    Announcement, ClusterSink, Message, Report, Sink, SinkError, StoreReport, Stored, WrittenStatus,
    budget::Budget,
    queue::{Queue, pause},
    stores,
};
use crate::{clock, metrics::Metrics, world::ObjectKey};

/// The number of statuses that are written in parallel.
const WRITERS: usize = 8;
/// The maximum number of waiting announcements. Further ones are dropped, because the status contains the same facts.
const ANNOUNCEMENTS: usize = 256;
const LIMIT: Duration = Duration::from_secs(5);
/// The time for which an announcement is retried. Later announcements wait.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes until `messages` is closed and all messages are written. Reports each status that landed.
pub async fn run(
    sink: Sink,
    messages: mpsc::UnboundedReceiver<Message>,
    landings: mpsc::Sender<WrittenStatus>,
    metrics: Metrics,
) {
    let (announcements, announced) = mpsc::channel(ANNOUNCEMENTS);
    let (stores, stores_told) = mpsc::unbounded_channel();
    let (queue, budget) = (Queue::default(), Budget::default());
    let writer = Writer { sink: &sink, queue, budget, announcements, stores, landings, metrics };
    let write_stores = async {
        if let Sink::Cluster(sink) = &sink {
            stores::run(sink, stores_told).await;
        }
    };
    tokio::join!(writer.run(messages), announce(&sink, announced), write_stores);
}

async fn announce(sink: &Sink, mut announced: mpsc::Receiver<Announcement>) {
    let Sink::Cluster(sink) = sink else { return };
    while let Some(announcement) = announced.recv().await {
        if announcement.term.is_current(clock::since_boot())
            && let Err(error) = tell(sink, &announcement).await
        {
            let Announcement { key, reason, .. } = announcement;
            tracing::warn!(policy = %key, reason, error = %format!("{error:#}"), "an event was not written, despite retries");
        }
    }
}

/// Writes an announcement with retries for a limited time, because the next leader starts from the status and does not
/// repeat it.
async fn tell(sink: &ClusterSink, announcement: &Announcement) -> Result<(), SinkError> {
    let event = sink.event(announcement);
    let until = clock::now() + RETRY_TIMEOUT;
    let mut failures = 0;
    loop {
        let error = match timeout(LIMIT, sink.announce(&event)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => SinkError::Api(Box::new(error)),
            Err(_) => SinkError::Timeout,
        };
        let now = clock::now();
        if !error.may_pass() || now >= until || !announcement.term.is_current(clock::since_boot()) {
            return Err(error);
        }
        let share = rand::rng().random_range(0.5..=1.0);
        sleep_until(now + pause(failures, share)).await;
        failures += 1;
    }
}

struct Writer<'a> {
    sink: &'a Sink,
    queue: Queue,
    budget: Budget,
    announcements: mpsc::Sender<Announcement>,
    stores: mpsc::UnboundedSender<StoreReport>,
    landings: mpsc::Sender<WrittenStatus>,
    metrics: Metrics,
}

impl Writer<'_> {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        let sink = self.sink;
        let mut writing = FuturesUnordered::new();
        let mut open = true;
        while open || !self.queue.is_empty() {
            while writing.len() < WRITERS
                && let Some(report) = self.queue.take(clock::now())
            {
                if !report.term.is_current(clock::since_boot()) {
                    tracing::debug!(policy = %report.key, "not writing a status of a term that has ended");
                    self.leave(&report.key);
                    continue;
                }
                writing.push(async move {
                    let outcome = timeout(LIMIT, sink.write(&report)).await.unwrap_or(Err(SinkError::Timeout));
                    (report, outcome)
                });
            }
            let turn = self.queue.next_turn().filter(|_| writing.len() < WRITERS);
            tokio::select! {
                message = messages.recv(), if open => match message {
                    Some(message) => self.take_in(message),
                    None => open = false,
                },
                Some((report, outcome)) = writing.next() => self.end(report, outcome).await,
                () = sleep_until(turn.unwrap_or_else(clock::now)), if turn.is_some() => {}
            }
        }
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::Status(report) => self.queue.put(clock::now(), report),
            // Without a cluster, the channel has no receiver.
            Message::Store(report) => drop(self.stores.send(*report)),
            Message::Removed(key) => {
                self.budget.forget(&key);
                if self.queue.remove(&key) {
                    self.sink.removed(&key);
                }
            }
            Message::Announce(announcement) => match self.sink {
                Sink::Files(sink) => sink.announce(&announcement),
                Sink::Cluster(_) => self.announce(announcement),
            },
            Message::Notice(text) => self.sink.notice(&text),
        }
    }

    fn announce(&mut self, mut announcement: Announcement) {
        let Announcement { key, reason, note, .. } = &mut announcement;
        match self.budget.spend(clock::now(), key) {
            None => {
                return tracing::debug!(policy = %key, reason, note, "the policy's event budget is exhausted, dropping this event");
            }
            Some(0) => {}
            Some(dropped) => note.push_str(&format!(" (after {dropped} more events that were dropped)")),
        }
        if let Err(error) = self.announcements.try_send(announcement) {
            let Announcement { key, reason, .. } = error.into_inner();
            tracing::warn!(policy = %key, reason, "too many events wait, dropping this one");
        }
    }

    async fn end(&mut self, report: Box<Report>, outcome: Result<Stored, SinkError>) {
        let now = clock::now();
        let removed = match outcome {
            Ok(stored) => {
                self.metrics.status_written(true);
                let Report { key, uid, number, .. } = *report;
                let removed = self.queue.ended(now, &key);
                // The channel closes only when the process ends.
                let _ = self.landings.send(WrittenStatus { key: key.clone(), uid, number, stored }).await;
                removed.then_some(key)
            }
            Err(SinkError::Gone) => self.queue.ended(now, &report.key).then_some(report.key),
            Err(error) => {
                self.metrics.status_written(false);
                let key = report.key.clone();
                let report = match &error {
                    SinkError::Conflict { version } => Box::new(Report { version: version.clone(), ..*report }),
                    _ => report,
                };
                tracing::warn!(policy = %key, error = %format!("{error:#}"), "cannot write the status, retrying");
                self.queue.failed(now, report, rand::rng().random_range(0.5..=1.0)).then_some(key)
            }
        };
        if let Some(key) = removed {
            self.sink.removed(&key);
        }
    }

    /// Drops a status without writing it.
    fn leave(&mut self, key: &ObjectKey) {
        if self.queue.ended(clock::now(), key) {
            self.sink.removed(key);
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
