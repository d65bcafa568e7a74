//! A run: installs the charts, runs the scenarios in order, and removes everything.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum as _;
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};

use crate::{
    clock,
    cluster::Cluster,
    diagnostics,
    kubectl::Helm,
    namespace::{self, TestNamespace, all_gone},
    operator::{self, Release},
    report,
    scenarios::{Scenario, recorded},
};

/// Runs scenarios against a cluster that has the images weir.test/{operator,agent,testapp}:e2e
#[derive(clap::Args)]
pub struct RunArgs {
    /// The kubeconfig of the cluster; no other kubeconfig is read
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Run only these scenarios
    #[arg(long, value_enum)]
    only: Vec<Scenario>,
    /// Run no scenario: record how `kubectl get rlp --watch` shows a change under load, and write it to this SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    record: Option<PathBuf>,
    /// The folder that contains the charts `weir-crds` and `weir`
    #[arg(long, default_value = "charts")]
    charts: PathBuf,
    /// The helm program
    #[arg(long, default_value = "helm", env = "WEIR_HELM")]
    helm: PathBuf,
    /// The kubectl program; by default kubectl in the folder WEIR_KUBE_BIN, or, without that folder, kubectl on the
    /// PATH
    #[arg(long)]
    kubectl: Option<PathBuf>,
    /// Do not remove the operator and the namespaces of failed scenarios
    #[arg(long)]
    keep: bool,
}

/// Runs the chosen scenarios. Returns true if all of them passed.
///
/// # Errors
/// The cluster cannot be reached, or Weir cannot be installed or removed.
pub async fn run(args: RunArgs) -> Result<bool> {
    let start = clock::now();
    let kubectl = args.kubectl.unwrap_or_else(|| match std::env::var_os("WEIR_KUBE_BIN") {
        Some(folder) => Path::new(&folder).join("kubectl"),
        None => PathBuf::from("kubectl"),
    });
    let cluster = Cluster::connect(&args.kubeconfig, kubectl).await?;
    let home = tempfile::tempdir()?;
    let helm = Helm { binary: args.helm, kubeconfig: args.kubeconfig, home: home.path().to_owned() };

    let installing = clock::now();
    let release = Release { helm, charts: args.charts };
    if let Err(error) = release.install(&cluster.client).await {
        diagnostics::print_operator(&cluster.client).await;
        return Err(error).context("install the charts");
    }
    println!("charts installed, {:.1} s", clock::since(installing).as_secs_f64());

    if let Some(file) = &args.record {
        let recorded =
            with_temp_ns(&cluster, "recorded", args.keep, async |space| recorded::run(space, file).await).await;
        clean_up(&cluster, &release).await?;
        return recorded.map(|()| true);
    }

    let wanted = |scenario: &Scenario| match &*args.only {
        [] => !scenario.is_campaign(),
        only => only.contains(scenario),
    };
    let scenarios: Vec<_> = Scenario::value_variants().iter().copied().filter(wanted).collect();
    let (mut ok, mut failed) = (0, 0);
    for scenario in &scenarios {
        let name = scenario.name();
        let started = clock::now();
        let result = with_temp_ns(&cluster, &name, args.keep, async |space| scenario.run(space, &release).await).await;
        report::ended(&name, clock::since(started), &result);
        match result {
            Ok(()) => ok += 1,
            Err(error) => {
                failed += 1;
                if error.is::<Interrupted>() {
                    break;
                }
                // A scenario that failed while the operator was down must not make the next scenarios fail.
                if let Err(error) = operator::bring_back(&cluster.client).await {
                    println!("     the operator cannot be started again: {error:#}");
                }
            }
        }
    }
    // The summary is printed even if the clean-up fails.
    let cleaned = if args.keep { Ok(()) } else { clean_up(&cluster, &release).await };
    report::summary(ok, failed, scenarios.len() - ok - failed, clock::since(start));
    cleaned.map(|()| ok == scenarios.len())
}

/// Runs `scenario` in a new namespace, and deletes it afterwards, unless the scenario failed and `keep` is set.
///
/// # Errors
/// Errors and panics of the scenario, and an interrupt from the keyboard.
async fn with_temp_ns(
    cluster: &Cluster,
    name: &str,
    keep: bool,
    scenario: impl AsyncFnOnce(&TestNamespace) -> Result<()>,
) -> Result<()> {
    let space = namespace::create(cluster, name).await?;
    let result = tokio::select! {
        result = AssertUnwindSafe(scenario(&space)).catch_unwind() => result.unwrap_or_else(|panic| Err(describe(&*panic))),
        _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    };
    if result.is_err() {
        diagnostics::print(&space).await;
        if keep {
            println!("     kept: namespace {}", space.namespace);
            return result;
        }
    }
    let namespaces: Api<Namespace> = Api::all(space.client());
    namespaces.delete(&space.namespace, &DeleteParams::background()).await.context("delete the namespace")?;
    result
}

fn describe(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow!("panicked: {}", words.unwrap_or("without a message"))
}

/// The error of a run that the user has interrupted with Ctrl-C. The run then only cleans up.
#[derive(Debug)]
struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

async fn clean_up(cluster: &Cluster, release: &Release) -> Result<()> {
    all_gone(&cluster.client).await?;
    release.remove(&cluster.client).await.context("uninstall the charts")
}
