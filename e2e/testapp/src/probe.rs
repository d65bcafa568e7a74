//! A closed loop: an exact number of requests, as fast as the answers come. For checks that count every request.

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

/// How many requests to send, and how many at a time.
#[derive(clap::Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// How many requests to send
    #[arg(long)]
    count: u64,
    /// How many of them at the same time, each on its own connection
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
}

/// Sends the requests and prints the summary.
///
/// # Errors
/// If the arguments are invalid or a host cannot be resolved.
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
                tally.lock().expect("no holder panics").counts.offered += 1;
                let sent = clock::now();
                let result = target.send(slot, plan.request(index)).await;
                tally.lock().expect("no holder panics").record(plan.variant(index), clock::since(sent), result);
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker?;
    }
    let summary = tally.lock().expect("no holder panics").summary(clock::since(start));
    tally::print(&summary, as_json);
    Ok(())
}
