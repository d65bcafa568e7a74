//! Rolling updates with and without agents, side by side under the same load: what the agents cost.
//!
//! Both workloads have the same app. What fails without agents is the app's own: a client that reuses a connection that
//! its server is closing, or a node that still sends connections to a pod that is gone. With agents no more may fail.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::{try_join, try_join_all};
use serde_json::json;

use crate::{
    load::{Load, Running},
    namespace::Space,
    policy, report, workload,
};

const SOON: Duration = Duration::from_secs(120);
const LOADED: Duration = Duration::from_secs(30);
/// Requests a second of each load.
const RATE: u32 = 60;
const CONTROL: &str = "bare";
/// Of so many failed requests without agents and as many with them, the difference can be chance.
const CHANCE: f64 = 3.0;

/// How the app ends, and how long its answers take.
struct Setting {
    /// Seconds that the app's container sleeps before SIGTERM.
    pre_stop: u32,
    /// Seconds that the app goes on with requests in flight after SIGTERM. 0: it drops them.
    drain: u32,
    in_flight: Duration,
}

/// Seconds of `preStop`, seconds of drain, milliseconds in flight.
const SETTINGS: [(u32, u32, u64); 8] =
    [(5, 8, 100), (5, 8, 1_000), (5, 8, 5_000), (0, 8, 100), (0, 8, 1_000), (0, 8, 5_000), (0, 0, 100), (0, 0, 1_000)];

/// The clients of a workload.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("get", &[]),
    ("post", &["--method=POST"]),
    ("get-http2", &["--http2=8"]),
    ("post-http2", &["--http2=8", "--method=POST"]),
];

pub(crate) async fn run(space: &Space) -> Result<()> {
    policy::before_its_pods(space).await?;
    space.apply(&policy::bucket(100_000, 100_000)).await?;
    control(space).await?;
    let mut excess = Vec::new();
    for (pre_stop, drain, millis) in SETTINGS {
        let setting = Setting { pre_stop, drain, in_flight: Duration::from_millis(millis) };
        excess.extend(setting.measure(space).await?);
    }
    ensure!(excess.is_empty(), "more requests failed with agents than without: {}", excess.join("; "));
    Ok(())
}

impl Setting {
    /// Replaces the pods of both workloads at once. Returns where clearly more requests failed with agents.
    async fn measure(&self, space: &Space) -> Result<Vec<String>> {
        let name = format!("{}s-{}s-{}ms", self.pre_stop, self.drain, self.in_flight.as_millis());
        self.roll(space, &format!("{name}-before")).await?;
        policy::wait_enforced(space, policy::NAME, 2, SOON).await?;
        let started = CLIENTS.iter().flat_map(|client| [workload::NAME, CONTROL].map(|target| (target, client)));
        let loads = try_join_all(started.map(|(target, (client, args))| {
            let (name, in_flight) = (name.clone(), self.in_flight.as_millis());
            async move {
                let url = format!("http://{target}/slow?ms={in_flight}");
                let name = format!("{target}-{client}-{name}");
                let load = Load { name: &name, url: &url, addresses: 1, rate: RATE, duration: LOADED };
                let connections = RATE as u128 * (in_flight + 1_000) / 1_000;
                let connections = format!("--connections={}", connections.max(32));
                load.start_with(space, &[*args, &[&connections]].concat()).await
            }
        }))
        .await?;
        self.roll(space, &name).await?;
        for load in &loads {
            ensure!(load.is_running().await?, "the load ended before the update");
        }
        let ended = try_join_all(loads.into_iter().map(Running::ended)).await?;
        let mut excess = Vec::new();
        for ((client, _), both) in CLIENTS.iter().zip(ended.chunks(2)) {
            let [with, without] = both else { unreachable!("two workloads") };
            let failed = [with, without].map(|ended| ended.offered - ended.allowed);
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
                    report::note(format!("  {pods}: answers {:?}, no answer {:?}", ended.by_status, ended.by_cause));
                }
            }
            let [with, without] = failed.map(|count| count as f64);
            if with - without > CHANCE * (with + without).sqrt() {
                excess.push(what);
            }
        }
        Ok(excess)
    }

    /// Gives both workloads this setting, which replaces all their pods, and waits for the new ones.
    async fn roll(&self, space: &Space, round: &str) -> Result<()> {
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
        let one = async |name: &'static str| {
            space.kubectl(&["patch", "deployment", name, "--patch", &patch]).await?;
            space.kubectl(&["rollout", "status", "deployment", name, "--timeout=120s"]).await
        };
        try_join(one(workload::NAME), one(CONTROL)).await.map(drop)
    }
}

/// The same workload without agents, which no policy targets.
async fn control(space: &Space) -> Result<()> {
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
        .context("the control")
}
