//! Runs an open-loop load from a pod inside the cluster, and reads its counts.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, LogParams, PostParams},
};
use serde::Deserialize;

use crate::{
    conditions::{Seen, wait_for},
    namespace::TestNamespace,
    report,
    workload::parse,
};

/// The time allowed beyond the load's own duration, for scheduling, the start and the last responses.
const SLACK: Duration = Duration::from_secs(60);

/// A load: the requests to send.
pub(crate) struct Load<'a> {
    pub(crate) name: &'a str,
    pub(crate) url: &'a str,
    /// The number of addresses of the URL's host. The load starts when the name resolves to all of them.
    pub(crate) addresses: u32,
    /// The requests per second, to all pods together.
    pub(crate) rate: u32,
    pub(crate) duration: Duration,
}

/// A running load.
pub(crate) struct Running {
    pods: Api<Pod>,
    name: String,
    duration: Duration,
}

/// The summary that a load prints at its end.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) seconds: f64,
    pub(crate) offered: u64,
    pub(crate) unsent: u64,
    pub(crate) allowed: u64,
    pub(crate) limited: u64,
    pub(crate) errors: u64,
    pub(crate) by_status: BTreeMap<String, u64>,
    pub(crate) limited_without_retry_after: u64,
    pub(crate) retry_after_min: Option<u64>,
    pub(crate) retry_after_max: Option<u64>,
    #[serde(default)]
    pub(crate) first_error: Option<String>,
    #[serde(default)]
    pub(crate) by_cause: BTreeMap<String, u64>,
}

/// The counts of about one second of a load, which ends `t` seconds after the start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Second {
    pub(crate) t: f64,
    pub(crate) offered: u32,
    pub(crate) allowed: u32,
    pub(crate) limited: u32,
    pub(crate) errors: u32,
}

impl Load<'_> {
    /// Starts the load. Returns when its container runs.
    pub(crate) async fn start(&self, space: &TestNamespace) -> Result<Running> {
        self.start_with(space, &[]).await
    }

    /// Starts the load with more arguments. Returns when its container runs.
    pub(crate) async fn start_with(&self, space: &TestNamespace, more: &[&str]) -> Result<Running> {
        let mut pod: Pod = parse(include_str!("manifests/load.yaml"))?;
        pod.metadata.name = Some(self.name.to_owned());
        let spec = pod.spec.as_mut().context("the manifest has no spec")?;
        let mut args = vec![
            "load".to_owned(),
            format!("--url={}", self.url),
            format!("--rate={}", self.rate),
            format!("--duration={}", self.duration.as_secs_f64()),
            "--resolve-all".to_owned(),
            format!("--addresses={}", self.addresses),
            "--json".to_owned(),
        ];
        if !more.iter().any(|arg| arg.starts_with("--connections")) {
            // A Service balances connections, not requests. With many connections, each pod gets about the same number.
            args.push("--connections=192".to_owned());
        }
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        spec.containers[0].args = Some(args);
        let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
        pods.create(&PostParams::default(), &pod).await.context("create the load's pod")?;
        let running = Running { pods, name: self.name.to_owned(), duration: self.duration };
        wait_for("the load to start", SLACK, || async {
            let phase = running.phase().await?;
            Ok(Seen::when(matches!(&*phase, "Running" | "Succeeded" | "Failed"), phase))
        })
        .await?;
        Ok(running)
    }

    /// Runs the load, which is above a limit of all its addresses together, and checks that they admit this number.
    pub(crate) async fn admits(&self, space: &TestNamespace, wanted: u64) -> Result<()> {
        let report = self.run(space).await?;
        // An answer that is late on a busy machine can lose some of the limit, but no unit is admitted twice.
        let is_right = report.unsent == 0 && (wanted * 9 / 10..=wanted).contains(&report.allowed);
        ensure!(is_right, "{}: {wanted} requests should be admitted: {report:?}", self.name);
        let (allowed, offered) = (report.allowed, report.offered);
        report::note(format!("{}: {allowed} of {offered} requests to {} pods admitted", self.name, self.addresses));
        Ok(())
    }

    /// Starts the load, and waits until it ends.
    pub(crate) async fn run(&self, space: &TestNamespace) -> Result<Report> {
        self.start(space).await?.finish().await
    }
}

impl Running {
    /// Waits until the load ends. Fails if a request was not sent on time, or was not answered with 2xx or 429.
    pub(crate) async fn finish(self) -> Result<Report> {
        let report = self.ended().await?;
        ensure!(report.errors == 0, "requests of the load failed, the first with {:?}; {report:?}", report.first_error);
        ensure!(report.unsent == 0, "the load did not send all requests on time: {report:?}");
        ensure!(
            report.allowed + report.limited == report.offered,
            "responses other than 2xx and 429: {:?}",
            report.by_status
        );
        Ok(report)
    }

    /// Waits until the load ends. Failed requests are accepted.
    pub(crate) async fn ended(self) -> Result<Report> {
        wait_for("the load to end", self.duration + SLACK, || async {
            let phase = self.phase().await?;
            Ok(Seen::when(matches!(&*phase, "Succeeded" | "Failed"), phase))
        })
        .await?;
        let log = self.pods.logs(&self.name, &LogParams::default()).await?;
        summary(&log)
    }

    /// The counts of each second so far.
    pub(crate) async fn seconds(&self) -> Result<Vec<Second>> {
        let log = self.pods.logs(&self.name, &LogParams::default()).await?;
        log.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("the load has printed: {line}")))
            .collect()
    }

    /// Returns true if the load still runs.
    pub(crate) async fn is_running(&self) -> Result<bool> {
        Ok(self.phase().await? == "Running")
    }

    /// Stops the load before its end.
    pub(crate) async fn stop(self) -> Result<()> {
        self.pods.delete(&self.name, &DeleteParams::default()).await.context("delete the load's pod").map(drop)
    }

    async fn phase(&self) -> Result<String> {
        Ok(self.pods.get(&self.name).await?.status.and_then(|status| status.phase).unwrap_or_default())
    }
}

fn summary(log: &str) -> Result<Report> {
    let last = log.lines().next_back().context("the load has printed nothing")?;
    serde_json::from_str(last).with_context(|| format!("the last line of the load is not a summary: {last}"))
}
