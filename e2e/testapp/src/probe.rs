//! A closed-loop load for exact checks. It sends an exact number of requests as fast as the answers arrive.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use anyhow::ensure;
use tokio::task::JoinSet;

use crate::{
    clock,
    request::RequestArgs,
    tally::{self, Tally},
};

/// The settings of a probe.
#[derive(clap::Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Number of requests to send
    #[arg(long)]
    count: u64,
    /// Number of requests that are sent concurrently, each on a separate connection
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
}

/// Sends the requests, and prints the summary.
///
/// # Errors
/// The arguments are invalid, or a host cannot be resolved.
pub async fn run(args: ProbeArgs) -> anyhow::Result<()> {
    ensure!((1..=10_000).contains(&args.concurrency), "--concurrency: from 1 to 10000");
    let as_json = args.request.json;
    let plan = Arc::new(args.request.plan(args.concurrency).await?);
    let tally = Arc::new(Mutex::new(Tally::default()));
    let next = Arc::new(AtomicU64::new(0));
    let start = clock::now();
    let mut workers = JoinSet::new();
    for _ in 0..args.concurrency {
        let (plan, tally, next) = (Arc::clone(&plan), Arc::clone(&tally), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= args.count {
                    return;
                }
                let target = plan.target(index);
                let slot = target.take().expect("a target has as many slots as there are workers");
                tally.lock().expect("not poisoned").counts.offered += 1;
                let sent = clock::now();
                let result = target.send(slot, plan.request(index)).await;
                tally.lock().expect("not poisoned").record(plan.variant(index), clock::since(sent), result);
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker?;
    }
    let summary = tally.lock().expect("not poisoned").summary(clock::since(start));
    tally::print(&summary, as_json);
    Ok(())
}
