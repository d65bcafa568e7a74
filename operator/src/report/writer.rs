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
    Announcement, ClusterSink, FileStores, Message, Pending, Report, Sink, SinkError, Target, WrittenStatus,
    budget::Budget,
    queue::{Queue, event_pause},
};
use crate::{clock, leader::Term, metrics::Metrics, status::announcer::Notice, world::StoredStatus};

/// The number of statuses that are written in parallel.
const WRITERS: usize = 8;
/// The maximum number of waiting announcements. Further ones are dropped, because the status contains the same facts.
const ANNOUNCEMENTS: usize = 256;
const LIMIT: Duration = Duration::from_secs(5);
/// The time for which an announcement is retried. Later announcements wait.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes until `messages` is closed and all messages are written. Reports each status that was written.
pub async fn run(
    sink: Sink,
    messages: mpsc::UnboundedReceiver<Message>,
    written: mpsc::Sender<WrittenStatus>,
    metrics: Metrics,
) {
    let (announcements, announced) = mpsc::channel(ANNOUNCEMENTS);
    let (queue, budget) = (Queue::default(), Budget::default());
    let writer = Writer { sink: &sink, queue, budget, announcements, written, metrics, open: true };
    tokio::join!(writer.run(messages), announce(&sink, announced));
}

async fn announce(sink: &Sink, mut announced: mpsc::Receiver<Announcement>) {
    let Sink::Cluster(sink) = sink else { return };
    while let Some(announcement) = announced.recv().await {
        if announcement.term.is_current(clock::since_boot())
            && let Err(error) = tell(sink, &announcement).await
        {
            let Announcement { key, notice, .. } = announcement;
            tracing::warn!(policy = %key, reason = notice.reason, error = %format!("{error:#}"), "an event was not written");
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
        sleep_until(now + event_pause(failures, share)).await;
        failures += 1;
    }
}

struct Writer<'a> {
    sink: &'a Sink,
    queue: Queue,
    budget: Budget,
    announcements: mpsc::Sender<Announcement>,
    written: mpsc::Sender<WrittenStatus>,
    metrics: Metrics,
    /// True until the channel of messages is closed.
    open: bool,
}

impl Writer<'_> {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        let sink = self.sink;
        let mut writing = FuturesUnordered::new();
        loop {
            while writing.len() < WRITERS
                && let Some(pending) = self.queue.take(clock::now())
            {
                if !pending.term().is_current(clock::since_boot()) {
                    let target = pending.target();
                    tracing::debug!(object = %target, "not writing a status of a term that has ended");
                    self.leave(&target);
                    continue;
                }
                writing.push(async move {
                    let outcome = timeout(LIMIT, sink.write(&pending)).await.unwrap_or(Err(SinkError::Timeout));
                    (pending, outcome)
                });
            }
            if !self.open && self.queue.is_empty() {
                return;
            }
            let turn = self.queue.next_turn().filter(|_| writing.len() < WRITERS);
            tokio::select! {
                message = messages.recv(), if self.open => match message {
                    Some(message) => self.take_in(message),
                    None => self.open = false,
                },
                Some((pending, outcome)) = writing.next() => self.end(pending, outcome).await,
                () = sleep_until(turn.unwrap_or_else(clock::now)), if turn.is_some() => {}
            }
        }
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::Status(report) => self.queue.put(clock::now(), Pending::Policy(report)),
            Message::Store(report) => self.queue.put(clock::now(), Pending::Store(report)),
            Message::Removed(key) => {
                self.budget.forget(&key);
                let target = Target::Policy(key);
                if self.queue.remove(&target) {
                    self.sink.removed(&target);
                }
            }
            Message::Announce(announcement) => match self.sink {
                Sink::Files(sink) => sink.announce(&announcement),
                Sink::Cluster(_) => self.announce(*announcement),
            },
            Message::Notice(text) => self.sink.notice(&text),
            Message::Stores(file, stores) => {
                let stores = FileStores { file, stores, term: Term::unbounded() };
                self.queue.put(clock::now(), Pending::File(Box::new(stores)));
            }
        }
    }

    fn announce(&mut self, mut announcement: Announcement) {
        let Announcement { key, notice: Notice { reason, note, .. }, .. } = &mut announcement;
        match self.budget.spend(clock::now(), key) {
            None => {
                return tracing::debug!(policy = %key, reason, note, "the policy's event budget is exhausted, dropping this event");
            }
            Some(0) => {}
            Some(dropped) => note.push_str(&format!(" (after {dropped} more events that were dropped)")),
        }
        if let Err(error) = self.announcements.try_send(announcement) {
            let Announcement { key, notice, .. } = error.into_inner();
            tracing::warn!(policy = %key, reason = notice.reason, "too many events wait, dropping this one");
        }
    }

    async fn end(&mut self, pending: Pending, outcome: Result<StoredStatus, SinkError>) {
        let (now, target) = (clock::now(), pending.target());
        let removed = match (outcome, pending) {
            (Ok(stored), Pending::Policy(report)) => {
                self.metrics.status_written(true);
                let Report { key, uid, number, .. } = *report;
                let removed = self.queue.ended(now, &target);
                // The channel closes only when the process ends.
                let _ = self.written.send(WrittenStatus { key, uid, number, stored }).await;
                removed
            }
            (Ok(_) | Err(SinkError::Gone), _) => self.queue.ended(now, &target),
            // The next leader computes the status again.
            (Err(_), Pending::Store(_)) if !self.open => self.queue.ended(now, &target),
            (Err(error), mut pending) => {
                if let Pending::Policy(report) = &mut pending {
                    self.metrics.status_written(false);
                    if let SinkError::Conflict { version } = &error {
                        report.version.clone_from(version);
                    }
                }
                tracing::warn!(object = %target, error = %format!("{error:#}"), "cannot write the status, retrying");
                self.queue.failed(now, pending, error.may_pass(), rand::rng().random_range(0.5..=1.0))
            }
        };
        if removed {
            self.sink.removed(&target);
        }
    }

    /// Drops a status without writing it.
    fn leave(&mut self, target: &Target) {
        if self.queue.ended(clock::now(), target) {
            self.sink.removed(target);
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
