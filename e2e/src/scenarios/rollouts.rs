//! Compares rolling updates with and without agents, one after another under the same load.
//!
//! Both workloads have the same app. Some requests fail even without agents: a client reuses a connection that its
//! server is closing, or a node still sends connections to a deleted pod. With agents, no more requests may fail.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::{try_join, try_join_all};
use serde_json::json;

use crate::{
    load::{Load, Report, Running},
    namespace::TestNamespace,
    policy, report, workload,
};

const SOON: Duration = Duration::from_secs(120);
const LOADED: Duration = Duration::from_secs(30);
/// The requests per second of each load.
const RATE: u32 = 60;
const CONTROL: &str = "bare";
/// The difference that counts as chance, in standard deviations of the number of failed requests.
const CHANCE: f64 = 3.0;

/// The settings of the app: how it shuts down, and how long its responses take.
struct Setting {
    /// The seconds that the app's container sleeps before SIGTERM.
    pre_stop: u32,
    /// The seconds for which the app finishes requests in flight after SIGTERM. With 0, it drops them.
    drain: u32,
    in_flight: Duration,
}

/// The settings: seconds of `preStop`, seconds of drain, milliseconds in flight.
const SETTINGS: [(u32, u32, u64); 8] =
    [(5, 8, 100), (5, 8, 1_000), (5, 8, 5_000), (0, 8, 100), (0, 8, 1_000), (0, 8, 5_000), (0, 0, 100), (0, 0, 1_000)];

/// The clients of a workload: the name of a load, and its arguments.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("get", &[]),
    ("post", &["--method=POST"]),
    ("get-http2", &["--http2=8"]),
    ("post-http2", &["--http2=8", "--method=POST"]),
];

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    policy::before_its_pods(space).await?;
    space.apply(&policy::bucket(100_000, 100_000)).await?;
    control(space).await?;
    let mut excess = Vec::new();
    for (index, (pre_stop, drain, millis)) in SETTINGS.into_iter().enumerate() {
        let setting = Setting { pre_stop, drain, in_flight: Duration::from_millis(millis) };
        // The order alternates, so that slow changes of the machine affect both workloads equally.
        let order = if index % 2 == 0 { [workload::NAME, CONTROL] } else { [CONTROL, workload::NAME] };
        excess.extend(setting.measure(space, order).await?);
    }
    ensure!(excess.is_empty(), "more requests failed with agents than without: {}", excess.join("; "));
    Ok(())
}

impl Setting {
    /// Replaces the pods of one workload and then those of the other, each under load. Returns a line for each client
    /// with significantly more failed requests with agents.
    ///
    /// The two updates never run at the same time. A node syncs its rules for Services at most once per second. So two
    /// changes within a second would delay each other, and connections to deleted pods would fail for longer.
    async fn measure(&self, space: &TestNamespace, order: [&'static str; 2]) -> Result<Vec<String>> {
        let name = format!("{}s-{}s-{}ms", self.pre_stop, self.drain, self.in_flight.as_millis());
        let before = format!("{name}-before");
        try_join(self.roll(space, workload::NAME, &before), self.roll(space, CONTROL, &before)).await?;
        policy::wait_enforced(space, policy::NAME, 2, SOON).await?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for target in order {
            let ended = self.roll_under_load(space, target, &name).await?;
            if target == CONTROL { without = ended } else { with = ended }
        }
        let mut excess = Vec::new();
        for (((client, _), with), without) in CLIENTS.iter().zip(with).zip(without) {
            let failed = [&with, &without].map(|ended| ended.offered - ended.allowed);
            let what = format!(
                "preStop {} s, drain {} s, {} ms in flight, {client}: {} of {} failed with agents, {} of {} without",
                self.pre_stop,
                self.drain,
                self.in_flight.as_millis(),
                failed[0],
                with.offered,
                failed[1],
                without.offered
            );
            report::note(&what);
            for (pods, ended) in [("with agents", with), ("without", without)] {
                if !ended.by_cause.is_empty() || ended.by_status.len() > 1 {
                    report::note(format!(
                        "  {pods}: responses {:?}, no response {:?}",
                        ended.by_status, ended.by_cause
                    ));
                }
            }
            let [with, without] = failed.map(|count| count as f64);
            if with - without > CHANCE * (with + without).sqrt() {
                excess.push(what);
            }
        }
        Ok(excess)
    }

    /// Replaces the pods of this workload while all clients send requests to it. Returns the report of each client.
    async fn roll_under_load(&self, space: &TestNamespace, target: &'static str, round: &str) -> Result<Vec<Report>> {
        let in_flight = self.in_flight.as_millis();
        let loads = try_join_all(CLIENTS.iter().map(async |(client, args)| {
            let url = format!("http://{target}/slow?ms={in_flight}");
            let name = format!("{target}-{client}-{round}");
            let load = Load { name: &name, url: &url, addresses: 1, rate: RATE, duration: LOADED };
            let connections = u128::from(RATE) * (in_flight + 1_000) / 1_000;
            let connections = format!("--connections={}", connections.max(32));
            load.start_with(space, &[*args, &[&connections]].concat()).await
        }))
        .await?;
        self.roll(space, target, round).await?;
        for load in &loads {
            ensure!(load.is_running().await?, "the load ended before the update");
        }
        try_join_all(loads.into_iter().map(Running::ended)).await
    }

    /// Applies this setting to a workload, which replaces all its pods, and waits for the new pods.
    async fn roll(&self, space: &TestNamespace, target: &'static str, round: &str) -> Result<()> {
        let hook = (self.pre_stop > 0).then(|| json!({"preStop": {"sleep": {"seconds": self.pre_stop}}}));
        let patch = json!({"spec": {
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"annotations": {"round": round}},
                "spec": {
                    "terminationGracePeriodSeconds": 20,
                    "containers": [{"name": "app", "args": ["serve", "--listen=0.0.0.0:8080", format!("--drain={}", self.drain)], "lifecycle": hook}],
                },
            },
        }})
        .to_string();
        space.kubectl(&["patch", "deployment", target, "--patch", &patch]).await?;
        space.kubectl(&["rollout", "status", "deployment", target, "--timeout=120s"]).await.map(drop)
    }
}

/// Creates the same workload without agents. No policy targets it.
async fn control(space: &TestNamespace) -> Result<()> {
    let rename = |manifest: &str| {
        manifest
            .replace("name: web\n", "name: bare\n")
            .replace("app: web", "app: bare")
            .replace("weir.dev/inject: enabled", "weir.dev/inject: disabled")
    };
    space.apply(&rename(include_str!("../manifests/plain.yaml"))).await?;
    space.apply(&rename(include_str!("../manifests/service.yaml"))).await?;
    space
        .kubectl(&["rollout", "status", "deployment", CONTROL, "--timeout=120s"])
        .await
        .map(drop)
        .context("create the workload without agents")
}
