//! A client that sends the requests of a scenario to real agents, and measures each decision by its own clock.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use http::StatusCode;

use super::world::{Decision, Request, Run, Scenario, Traffic, Verdict, judge};
use crate::{clock, proxy::Connection, seeds::OpenLoopClient};

/// The time between two looks for the next request.
const TICK: Duration = Duration::from_millis(1);
/// The longest wait for the last responses.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait until an operator counts for all agents.
const COUNTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// The metric of an agent that says that an operator counts for it.
const COUNTS: &str = "weir_store_up{store=\"operator\"} 1";

/// A policy with a limit for all pods together.
pub(super) fn policy(limit: u64) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: limits}}\nspec:\n  \
         selector: {{matchLabels: {{app: web}}}}\n  rules:\n  - name: all\n    scope: Fleet\n    \
         limits: [{{name: second, requests: {limit}, per: 1s, strategy: TokenBucket, burst: {limit}}}]\n"
    )
}

/// The figures of a scenario.
pub(super) struct Found {
    pub(super) scenario: Scenario,
    pub(super) verdicts: Vec<Verdict>,
}

impl Found {
    /// Runs a scenario this often.
    pub(super) fn measure(
        scenario: Scenario,
        rounds: u64,
        mut run: impl FnMut(u64) -> anyhow::Result<(Traffic, Run)>,
    ) -> anyhow::Result<Self> {
        let mut all = Self { scenario, verdicts: Vec::new() };
        for round in 1..=rounds {
            let (traffic, run) = run(round).with_context(|| scenario.name)?;
            let verdict = judge(&traffic, &run);
            eprintln!("fleet-limits: {}: {:.1} % used, excess {}", scenario.name, verdict.used, verdict.excess);
            all.verdicts.push(verdict);
        }
        Ok(all)
    }
}

/// The time since the begin of a run, in microseconds.
#[derive(Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn micros(self) -> u64 {
        u64::try_from(clock::since(self.0).as_micros()).unwrap_or(u64::MAX)
    }

    /// The time that is left until this time.
    pub(super) fn until(self, at: u64) -> Duration {
        Duration::from_micros(at.saturating_sub(self.micros()))
    }
}

/// Sends the requests, each to the client that `choose` returns for its pod, while `happens` runs. Returns the requests
/// with the times at which they were really sent.
pub(super) async fn send(
    traffic: Traffic,
    choose: impl Fn(usize) -> anyhow::Result<OpenLoopClient>,
    happens: impl AsyncFnOnce(Clock) -> anyhow::Result<()>,
) -> anyhow::Result<(Traffic, Run)> {
    let decided: Arc<Mutex<Vec<(Decision, usize)>>> = Arc::default();
    let clock = Clock(clock::now());
    let sends = async {
        let mut responses = Vec::new();
        let mut rest = traffic.requests.as_slice();
        while let Some((request, later)) = rest.split_first() {
            if clock.micros() < request.at {
                tokio::time::sleep(TICK).await;
                continue;
            }
            rest = later;
            let (client, decided, pod) = (choose(request.pod)?, Arc::clone(&decided), request.pod);
            responses.push(tokio::spawn(async move {
                let begun = clock.micros();
                let status = client.get().await?;
                ensure!(matches!(status.as_u16(), 200 | 429), "the agent answered {status}");
                let is_admitted = status == StatusCode::OK;
                let decision = Decision { begun, ended: clock.micros(), is_admitted };
                decided.lock().unwrap_or_else(PoisonError::into_inner).push((decision, pod));
                anyhow::Ok(())
            }));
        }
        for response in responses {
            tokio::time::timeout(PATIENCE, response).await.context("a response is missing")???;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(sends, happens(clock))?;
    let mut decided = std::mem::take(&mut *decided.lock().unwrap_or_else(PoisonError::into_inner));
    ensure!(decided.len() == traffic.requests.len(), "a request has no decision");
    decided.sort_unstable_by_key(|(decision, _)| decision.begun);
    let requests = decided.iter().map(|(decision, pod)| Request { at: decision.begun, pod: *pod }).collect();
    let run = Run { decisions: decided.into_iter().map(|(decision, _)| decision).collect(), messages: 0 };
    Ok((Traffic { requests, ..traffic }, run))
}

/// Waits until an operator counts for the agents with these telemetry ports.
pub(super) async fn until_counted(agents: impl IntoIterator<Item = SocketAddr>) -> anyhow::Result<()> {
    let begun = clock::now();
    for telemetry in agents {
        loop {
            let request = b"GET /metrics HTTP/1.1\r\nhost: agent\r\n\r\n";
            let (_, metrics) = Connection::open(telemetry)?.exchange(request)?;
            if metrics.contains(COUNTS) {
                break;
            }
            ensure!(clock::since(begun) < COUNTS_WITHIN, "the operator does not count for the agent at {telemetry}");
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}
