//! The stages in their order, and the commands of each stage.

use anyhow::Context as _;
use clap::ValueEnum;

use super::{
    cluster, helm,
    results::{Count, Tally},
    runner::{Runner, Step},
};
use crate::{
    airgap,
    workspace::{DEBUG_BUILD, Workspace},
};

/// The package with the tests that need a control plane, and the feature that enables them.
const SCENARIOS: &str = "weir-e2e";
const CONTROL_PLANE: &str = "control-plane";
/// The example programs that run without arguments and end.
const EXAMPLES: [&str; 4] = ["axum", "tonic", "live", "managed"];

/// A part of `cargo xtask test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Stage {
    /// The formatting of the code, with the groups of imports
    Fmt,
    /// Generated files agree with their generators
    Generated,
    /// The dependency rules and the style rules
    Tidy,
    /// Licences, refused packages and sources with cargo-deny; the components of the images as CycloneDX
    Supply,
    /// Lints of clippy, without warnings
    Clippy,
    /// Unit, property and integration tests on loopback; the tests of agent processes run with both HTTP/1 paths
    Unit,
    /// Exact counts under contention, in release mode
    ReleaseExact,
    /// The examples in the documentation, and the documentation itself without warnings
    Doc,
    /// All interleavings of atomic operations, with loom
    Loom,
    /// Builds kube-apiserver, etcd, kubectl, helm and kind, if they are missing
    Tools,
    /// Tests with a real kube-apiserver and etcd, with a real Envoy, and with Valkey
    Integration,
    /// Links, policies and commands of the manual
    Manual,
    /// The charts: lint, and checks of the rendered objects
    Helm,
    /// The example programs of weir-tower and weir-enforce
    Examples,
    /// cargo xtask demo
    Demo,
    /// Every alert with promtool; every dashboard with Grafana's own panels and a Prometheus that scrapes the demo's
    /// programs
    Dashboards,
    /// Scenarios on a kind cluster of two nodes
    E2e,
}

impl Stage {
    /// The stages to run: all, or the chosen stages and the stages that they need.
    pub(super) fn plan(only: &[Self], e2e: bool) -> Vec<Self> {
        let asked = |stage: &Self| only.is_empty() || only.contains(stage);
        let kept = |stage: &Self| e2e || *stage != Self::E2e;
        let wanted: Vec<_> = Self::value_variants().iter().copied().filter(asked).filter(kept).collect();
        let needed = |stage: &Self| wanted.contains(stage) || wanted.iter().any(|other| other.needs().contains(stage));
        Self::value_variants().iter().copied().filter(needed).collect()
    }

    /// The stages that must run before this stage.
    pub(super) fn needs(self) -> &'static [Self] {
        match self {
            Self::Integration | Self::Helm | Self::E2e => &[Self::Tools],
            _ => &[],
        }
    }

    /// The name for `--only`.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(super) async fn run(self, runner: &Runner<'_>) -> Tally {
        let steps = match self {
            Self::E2e => {
                let scenarios = Step::new(runner.workspace.target().join("debug/weir-e2e"), &["run"]);
                return cluster::run(&self.name(), runner, scenarios.count(Count::Scenarios)).await;
            }
            _ => self.steps(runner.workspace),
        };
        match steps {
            Ok(steps) => runner.run(&self.name(), steps).await,
            Err(error) => {
                println!("{}: {error:#}", self.name());
                Tally::FAILURE
            }
        }
    }

    fn steps(self, workspace: &Workspace) -> anyhow::Result<Vec<Step>> {
        let tests = |args: &str| Step::cargo(args).count(Count::CargoTests);
        Ok(match self {
            Self::Fmt => vec![xtask(&["fmt", "--check"])?],
            Self::Generated => vec![xtask(&["crds", "--check"])?, xtask(&["dashboards", "--check"])?],
            Self::Tidy => vec![xtask(&["tidy"])?],
            Self::Supply => vec![xtask(&["deny"])?, xtask(&["sbom"])?],
            Self::Clippy => {
                vec![Step::cargo("clippy --locked --workspace --all-targets --all-features -- -D warnings")]
            }
            Self::Unit => vec![
                unit_tests("--lib --bins --tests"),
                // The tests of agent processes run a second time, with all HTTP/1 through hyper. Some tests are skipped:
                // those that compare both paths always run both, and `weir-agent rls` forwards nothing. The packages must
                // be the same as above, because otherwise cargo would build them with other features.
                waiting_tests(&format!(
                    "test --locked --workspace --test agent --no-fail-fast -- {SAME_ON_BOTH_PATHS}"
                ))
                .env("WEIR_TEST_IN_PLACE", "off"),
            ],
            Self::ReleaseExact => {
                vec![tests("test --locked --release -p weir-core --lib --tests --no-fail-fast")]
            }
            Self::Doc => vec![
                tests("test --locked --workspace --doc --no-fail-fast"),
                Step::cargo("doc --locked --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"),
            ],
            Self::Manual => vec![xtask(&["manual"])?],
            // Loom runs twice, because each variant finds faults that the other does not: see `sync/explored.rs` of
            // weir-core.
            Self::Loom => ["plain", "writes"]
                .map(|loads| {
                    tests("test --locked --release -p weir-core --test loom*")
                        .env("RUSTFLAGS", "--cfg loom")
                        .env("WEIR_LOOM_LOADS", loads)
                        // Loom uses a separate target folder, because other flags would discard the builds in the
                        // default folder.
                        .env("CARGO_TARGET_DIR", workspace.target().join("loom").display().to_string())
                })
                .into(),
            Self::Tools => vec![Step::new(airgap::folder(workspace).join("build.sh"), &["binaries"])],
            Self::Integration => vec![
                Step::new(workspace.root().join("e2e/kubeconform/build.sh"), &[])
                    .arg(compiled(workspace, "kubeconform")),
                Step::new(workspace.root().join("e2e/health/build.sh"), &[]).arg(compiled(workspace, "health")),
                xtask(&["envoy"])?.arg(compiled(workspace, "envoy")),
                with_control_plane(workspace)
                    .env("WEIR_KUBE_BIN", airgap::tools(workspace)?.display().to_string())
                    .env("WEIR_KUBECONFORM", compiled(workspace, "kubeconform"))
                    .env("WEIR_HEALTH", compiled(workspace, "health"))
                    .env("WEIR_ENVOY", compiled(workspace, "envoy")),
                xtask(&["valkey"])?.arg(compiled(workspace, "valkey-server")),
                // The tests of weir-store a second time, with Valkey in place of Redis. This Valkey is built without TLS.
                unit_tests(&format!("--lib -- {OF_REDIS} --skip connections_are_secured_by_tls"))
                    .env("WEIR_REDIS_SERVER", compiled(workspace, "valkey-server")),
            ],
            Self::Helm => helm::steps(workspace, &airgap::tools(workspace)?.join("helm"))?,
            Self::Examples => {
                let programs =
                    EXAMPLES.map(|example| Step::new(workspace.target().join("debug/examples").join(example), &[]));
                let build = format!("{DEBUG_BUILD} --example {}", EXAMPLES.join(" --example "));
                [Step::cargo(&build).count(Count::Nothing)].into_iter().chain(programs).collect()
            }
            Self::Demo => vec![xtask(&["demo", "--json"])?],
            Self::Dashboards => vec![xtask(&["dashboards", "--see"])?],
            Self::E2e => Vec::new(),
        })
    }
}

/// The tests of agent processes to which the path of HTTP/1 makes no difference.
const SAME_ON_BOTH_PATHS: &str = "--skip differential:: --skip quotas:: --skip service:: --skip service_memory::";

/// The tests of weir-store that use a Redis server.
const OF_REDIS: &str = "tests::suite tests::faults tests::histories";

/// The tests of these targets. The feature enables the tests of the benchmarks that need the operator. No other package
/// depends on weir-bench, so other stages build nothing again.
fn unit_tests(targets: &str) -> Step {
    waiting_tests(&format!("test --locked --workspace --no-fail-fast --features weir-bench/fleet {targets}"))
}

/// Tests that mostly wait for processes, sockets and timers. Twice as many threads as cores keep the cores busy.
fn waiting_tests(args: &str) -> Step {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Step::cargo(args).count(Count::CargoTests).env("RUST_TEST_THREADS", (2 * cores).to_string())
}

/// The tests that need kube-apiserver and etcd, or Envoy. All packages are selected, for the reason of [`DEBUG_BUILD`].
fn with_control_plane(workspace: &Workspace) -> Step {
    let line = format!("test --locked --workspace --no-fail-fast --features {SCENARIOS}/{CONTROL_PLANE}");
    let step = waiting_tests(&line);
    let tests = workspace.tests_that_need(SCENARIOS, CONTROL_PLANE).into_iter();
    tests.fold(step, |step, test| step.arg("--test").arg(test))
}

/// The path to which a Go program is compiled, or an installed program is linked.
fn compiled(workspace: &Workspace, program: &str) -> String {
    workspace.scratch().join(program).display().to_string()
}

fn xtask(args: &[&str]) -> anyhow::Result<Step> {
    Ok(Step::new(std::env::current_exe().context("find this program")?, args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_runs_in_order_unless_something_else_is_asked_for() {
        let all = Stage::plan(&[], true);
        assert_eq!((all.len(), all.first(), all.last()), (17, Some(&Stage::Fmt), Some(&Stage::E2e)));
        assert_eq!(Stage::plan(&[], false), all[..16]);
    }

    #[test]
    fn what_is_asked_for_brings_what_it_needs_and_keeps_the_order() {
        assert_eq!(Stage::plan(&[Stage::Unit, Stage::Fmt], true), [Stage::Fmt, Stage::Unit]);
        assert_eq!(Stage::plan(&[Stage::Helm], true), [Stage::Tools, Stage::Helm]);
        assert_eq!(Stage::plan(&[Stage::E2e], false), []);
    }

    #[test]
    fn the_agent_is_tried_both_ways() {
        let workspace = Workspace::find().expect("the workspace");
        let [all, off] = &Stage::Unit.steps(&workspace).expect("commands")[..] else { panic!("two runs") };
        assert!(all.shown().contains("--workspace") && !all.shown().contains("WEIR_TEST_IN_PLACE"));
        assert!(off.shown().contains(" WEIR_TEST_IN_PLACE=off ") && off.shown().contains(" --test agent "));
    }

    #[test]
    fn the_tests_with_a_control_plane_are_those_of_the_manifest() {
        let workspace = Workspace::find().expect("the workspace");
        let shown = with_control_plane(&workspace).shown();
        let (_, tests) = shown.split_once(" --features weir-e2e/control-plane ").expect("the feature");
        let manifest = std::fs::read_to_string(workspace.root().join("e2e/Cargo.toml")).expect("a manifest");
        let needs = manifest.matches("required-features = [\"control-plane\"]").count();
        assert!(needs > 0 && tests.matches("--test ").count() == needs, "{tests}");
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!((Stage::ReleaseExact.name().as_str(), Stage::E2e.name().as_str()), ("release-exact", "e2e"));
    }
}
