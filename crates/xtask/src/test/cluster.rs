//! Runs a program on a kind cluster, which needs Docker: the scenarios of a stage, or a benchmark. It builds the node image
//! and the component images, and creates a cluster with a unique name.
//!
//! It stops everything that it started, even after a failure or Ctrl-C. A dockerd that was already running keeps
//! running. It never reads or writes the user's kubeconfig: the kubeconfig of the cluster is below the target folder.

use tokio_util::sync::CancellationToken;

use super::{
    results::{Count, Tally},
    runner::{Log, Runner, Step},
};
use crate::{airgap, workspace::DEBUG_BUILD};

const WORKERS: &str = "1";
/// The images that e2e/images/build.sh builds for the scenarios.
const IMAGES: [&str; 5] = [
    "weir.test/operator:e2e", "weir.test/agent:e2e", "weir.test/testapp:e2e", "weir.test/redis:e2e",
    "weir.test/shop:e2e",
];

/// Runs `program` with the flag `--kubeconfig` of a new cluster.
pub(super) async fn run(stage: &str, runner: &Runner<'_>, program: Step) -> Tally {
    let mut tally = Tally::default();
    match Cluster::new(stage, runner) {
        Ok(mut cluster) => {
            let result = cluster.run(program).await;
            cluster.take_down().await;
            match result {
                Ok(counted) => tally += counted,
                Err(error) => {
                    println!("{stage}: {error:#}");
                    tally += Tally::FAILURE;
                }
            }
            tally += cluster.left_behind;
        }
        Err(error) => {
            println!("{stage}: {error:#}");
            tally += Tally::FAILURE;
        }
    }
    tally
}

struct Cluster<'a> {
    stage: &'a str,
    runner: &'a Runner<'a>,
    log: Log,
    name: String,
    kubeconfig: String,
    docker_state: String,
    /// The steps that undo the steps so far. The newest is the last one.
    undo: Vec<Step>,
    /// The clean-up steps that failed.
    left_behind: Tally,
}

impl<'a> Cluster<'a> {
    fn new(stage: &'a str, runner: &'a Runner<'a>) -> anyhow::Result<Self> {
        let scratch = runner.workspace.scratch();
        let name = format!("weir-e2e-{}", std::process::id());
        Ok(Self {
            stage,
            runner,
            log: runner.log(stage)?,
            kubeconfig: scratch.join(format!("{name}.kubeconfig")).display().to_string(),
            docker_state: scratch.join("docker").display().to_string(),
            name,
            undo: Vec::new(),
            left_behind: Tally::default(),
        })
    }

    /// Runs all steps. The first preparation that fails ends the stage.
    async fn run(&mut self, program: Step) -> anyhow::Result<Tally> {
        let scripts = airgap::folder(self.runner.workspace);
        let docker = scripts.join("docker.sh");
        let cluster = scripts.join("cluster.sh");
        let bin = airgap::tools(self.runner.workspace)?;
        let release = self.runner.workspace.target().join("release");

        // If a registry can be reached, users set WEIR_NODE_IMAGE to kind's node image. Then no node image is built.
        let node_image = if std::env::var_os("WEIR_NODE_IMAGE").is_some() { "binaries" } else { "node-image" };

        self.undo.push(Step::new("rm", &["-rf", &self.kubeconfig]));
        self.undo.push(Step::new(&docker, &["stop", &self.docker_state]));
        let delete = Step::new(&cluster, &["delete", &self.name, &self.kubeconfig]);
        let load = Step::new(&cluster, &["load", &self.name]);
        let preparations = [
            (Step::new(&docker, &["start", &self.docker_state]), None),
            (Step::new(scripts.join("build.sh"), &[node_image]), None),
            (Step::cargo("build --release --locked -p weir-agent -p weir-operator -p weir-testapp"), None),
            (Step::cargo(&format!("{DEBUG_BUILD} --bin weir-e2e --example shop")), None),
            (
                Step::new(self.runner.workspace.root().join("e2e/images/build.sh"), &["e2e"])
                    .env("BIN_DIR", release.display().to_string())
                    .env("SHOP", self.runner.workspace.target().join("debug/examples/shop").display().to_string()),
                None,
            ),
            (Step::new(&cluster, &["create", &self.name, WORKERS, &self.kubeconfig]), Some(delete)),
            (IMAGES.iter().fold(load, |load, image| load.arg(*image)), None),
        ];
        for (step, undo) in preparations {
            // The undo steps are recorded before the step runs, because an interrupted step can have done a part of its
            // work.
            self.undo.extend(undo);
            let tally = self.runner.step(self.stage, &mut self.log, &step.count(Count::Nothing)).await?;
            if tally.failed > 0 {
                return Ok(tally);
            }
        }
        let program = program
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("WEIR_KUBE_BIN", bin.display().to_string())
            .env("WEIR_HELM", bin.join("helm").display().to_string());
        self.runner.step(self.stage, &mut self.log, &program).await
    }

    async fn take_down(&mut self) {
        // A second Ctrl-C must not stop the clean-up.
        let never = CancellationToken::new();
        while let Some(step) = self.undo.pop() {
            let step = step.count(Count::Nothing);
            match self.runner.step_in_any_case(self.stage, &mut self.log, &step, &never).await {
                Ok(tally) => self.left_behind += tally,
                Err(error) => {
                    println!("{}: {error:#}", self.stage);
                    self.left_behind += Tally::FAILURE;
                }
            }
        }
    }
}
