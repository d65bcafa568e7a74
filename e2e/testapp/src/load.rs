//! An open-loop load: request number n is sent at `n / rate` seconds after the start, independent of the answers.
//!
//! Sometimes a request cannot be sent on time, because no connection is free or this process was paused. Then the
//! request is skipped and counted. It is never sent later, because late requests would form bursts that are not in the
//! schedule.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    clock,
    request::{Plan, RequestArgs},
    tally::{self, Counts, Tally},
};

/// The delay after which a request is skipped.
const TOO_LATE: Duration = Duration::from_secs(1);

/// The settings of a load.
#[derive(clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Requests per second, to all URLs together
    #[arg(long)]
    rate: f64,
    /// Duration in seconds
    #[arg(long, value_name = "SECONDS")]
    duration: f64,
    /// Maximum number of connections, per URL (or per address with --resolve-all); they are used round robin
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Milliseconds between two lines with counts
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    report_every: u64,
}

/// Runs the load, and prints its reports. Returns true if all requests were sent on schedule.
///
/// # Errors
/// The arguments are invalid, or a host cannot be resolved.
pub async fn run(args: LoadArgs) -> anyhow::Result<bool> {
    let schedule = Schedule::new(args.rate, args.duration)?;
    ensure!(args.report_every > 0, "--report-every: at least 1 ms");
    let as_json = args.request.json;
    let plan = Arc::new(args.request.plan(args.connections).await?);
    let tally = Arc::new(Mutex::new(Tally::default()));

    let start = clock::now();
    let mut sender = tokio::spawn(send(start, schedule, plan, Arc::clone(&tally)));
    let every = Duration::from_millis(args.report_every);
    let mut ticks = tokio::time::interval_at(start + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut reported = Counts::default();
    loop {
        let done = tokio::select! {
            biased;
            finished = &mut sender => finished.map(|()| true)?,
            _ = ticks.tick() => false,
        };
        let mut tally = tally.lock().expect("not poisoned");
        let counts = tally.counts;
        println!("{}", counts.since(reported).line(clock::since(start), as_json));
        reported = counts;
        if done {
            let kept = tally.unsent == 0;
            tally::print(&tally.summary(clock::since(start)), as_json);
            return Ok(kept);
        }
    }
}

#[derive(Clone, Copy)]
struct Schedule {
    rate: f64,
    requests: u64,
}

impl Schedule {
    fn new(rate: f64, seconds: f64) -> anyhow::Result<Self> {
        ensure!(rate.is_finite() && (0.001..=1e6).contains(&rate), "--rate: from 0.001 to 1000000 requests per second");
        ensure!(seconds > 0.0 && seconds <= 86_400.0, "--duration: more than 0 and at most 86400 seconds");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both factors were bounded above")]
        let requests = (rate * seconds).round() as u64;
        ensure!(requests > 0, "nothing to send: --rate times --duration is less than one request");
        Ok(Self { rate, requests })
    }

    /// The time from the start until request number `index`. It is not computed from the request before, so rounding
    /// errors do not add up.
    fn due(&self, index: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "at most 8.64e10 requests, exact in an f64")]
        Duration::from_secs_f64(index as f64 / self.rate)
    }
}

async fn send(start: Instant, schedule: Schedule, plan: Arc<Plan>, tally: Arc<Mutex<Tally>>) {
    let mut in_flight = JoinSet::new();
    for index in 0..schedule.requests {
        let due = start + schedule.due(index);
        if due > clock::now() {
            tokio::time::sleep_until(due).await;
        }
        while in_flight.try_join_next().is_some() {}
        let target = Arc::clone(plan.target(index));
        let slot = if clock::since(due) > TOO_LATE { None } else { target.take() };
        let Some(slot) = slot else {
            tally.lock().expect("not poisoned").unsent += 1;
            continue;
        };
        tally.lock().expect("not poisoned").counts.offered += 1;
        let (request, tally) = (plan.request(index), Arc::clone(&tally));
        in_flight.spawn(async move {
            let result = target.send(slot, request).await;
            let result =
                result.with_context(|| format!("scheduled {:.2} s after the start", schedule.due(index).as_secs_f64()));
            // The latency is measured from the scheduled time, because a client would also have waited during a late
            // start.
            tally.lock().expect("not poisoned").record(clock::since(due), result);
        });
    }
    while in_flight.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_has_no_drift() {
        let schedule = Schedule::new(300.0, 20.0).expect("in bounds");
        assert_eq!(schedule.requests, 6000);
        assert_eq!(schedule.due(0), Duration::ZERO);
        assert_eq!(schedule.due(3000), Duration::from_secs(10));
        assert_eq!(schedule.due(1), Duration::from_secs_f64(1.0 / 300.0));
    }

    #[test]
    fn a_schedule_without_requests_is_refused() {
        assert!(Schedule::new(0.0, 1.0).is_err());
        assert!(Schedule::new(f64::NAN, 1.0).is_err());
        assert!(Schedule::new(1.0, 0.1).is_err());
        assert!(Schedule::new(1.0, -1.0).is_err());
    }
}
