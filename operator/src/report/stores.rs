//! Writes the statuses of stores, one after the other. There are few stores, and only the newest status of each
//! matters.

use std::{collections::BTreeMap, time::Duration};

use rand::Rng;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{ClusterSink, SinkError, StoreReport, queue::pause};
use crate::{clock, world::ObjectKey};

const LIMIT: Duration = Duration::from_secs(5);

/// Writes until the channel is closed and every status is written or has failed once more.
pub(super) async fn run(sink: &ClusterSink, mut reports: mpsc::UnboundedReceiver<StoreReport>) {
    let mut waiting = BTreeMap::<ObjectKey, StoreReport>::new();
    let mut failures = 0;
    loop {
        if waiting.is_empty() {
            match reports.recv().await {
                Some(report) => drop(waiting.insert(report.key.clone(), report)),
                None => return,
            }
        }
        while let Ok(report) = reports.try_recv() {
            waiting.insert(report.key.clone(), report);
        }
        let Some((key, report)) = waiting.pop_first() else { continue };
        if !report.term.is_current(clock::since_boot()) {
            continue;
        }
        match timeout(LIMIT, sink.write_store(&report)).await.unwrap_or(Err(SinkError::Timeout)) {
            Ok(()) => failures = 0,
            Err(error) if error.may_pass() => {
                if reports.is_closed() && reports.is_empty() {
                    return;
                }
                tracing::debug!(store = %key, %error, "cannot write the status of a store, trying again");
                waiting.insert(key, report);
                let share = rand::rng().random_range(0.5..=1.0);
                sleep(pause(failures, share)).await;
                failures = failures.saturating_add(1);
            }
            Err(error) => tracing::warn!(store = %key, %error, "the status of a store was not written"),
        }
    }
}
