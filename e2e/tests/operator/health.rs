//! Tests how Flux and Argo CD rate the health of a policy in each state that the operator writes.
//!
//! The program in `e2e/health` rates objects of a real apiserver with the library of Flux, and with the chart's Lua
//! script for Argo CD. The chart contains an object for each state, with the verdict of the script, in the layout of
//! Argo CD's tests. These objects must have the conditions that the operator writes.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Stdio};

use tokio::io::AsyncWriteExt as _;

use super::*;

/// The environment variable with the path of that program.
const PROGRAM: &str = "WEIR_HEALTH";

/// The verdict of Flux or of Argo CD.
#[derive(Debug, PartialEq, Eq, serde::Deserialize)]
struct Verdict {
    status: String,
    message: String,
}

/// The verdicts of Flux and Argo CD.
#[derive(Debug, serde::Deserialize)]
struct Verdicts {
    kstatus: Verdict,
    argocd: Verdict,
}

/// One case of `health_test.yaml`.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    health_status: Verdict,
    input_path: String,
}

fn shipped(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/weir/argo-cd")).join(file)
}

/// Reads the chart's object for a state.
fn example(state: &str) -> Result<Value> {
    let path = shipped("testdata").join(format!("{state}.yaml"));
    Ok(serde_yaml::from_str(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)?)
}

async fn rate_health(policy: &Value) -> Result<Verdicts> {
    let program = std::env::var_os(PROGRAM)
        .with_context(|| format!("{PROGRAM} is not set: cargo xtask test --only integration sets it"))?;
    let mut rate_health = Command::new(program);
    let rate_health = rate_health.arg(shipped("health.lua")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut rate_health = rate_health.spawn()?;
    rate_health.stdin.take().context("the input is not piped")?.write_all(policy.to_string().as_bytes()).await?;
    let output = timeout(PATIENCE, rate_health.wait_with_output()).await??;
    ensure!(output.status.success(), "the program for health ended with {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The conditions in order, without the fields that differ between clusters.
fn conditions(policy: &Value) -> Vec<[&str; 3]> {
    let conditions = policy["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut found: Vec<_> = conditions
        .iter()
        .map(|it| ["type", "status", "reason"].map(|field| it[field].as_str().unwrap_or_default()))
        .collect();
    found.sort_unstable();
    found
}

impl Stage {
    /// Waits until the policy is in this state. Then Flux and Argo CD must give these verdicts, and also for the
    /// chart's object.
    pub(crate) async fn until_healthy(&self, state: &str, kstatus: &str, argocd: &str) -> Result<()> {
        self.until_health_of("checkout", state, kstatus, argocd).await
    }

    pub(crate) async fn until_health_of(&self, name: &str, state: &str, kstatus: &str, argocd: &str) -> Result<()> {
        let example = example(state)?;
        let policy = found(async || {
            let policy: Value = serde_json::to_value(self.api::<RateLimitPolicy>().get(name).await?)?;
            let is_so = conditions(&policy) == conditions(&example);
            let message = || format!("waited for state {state} of {name}, the status is {:#}", policy["status"]);
            Ok(if is_so { Ok(policy) } else { Err(message()) })
        })
        .await?;
        for object in [&policy, &example] {
            let Verdicts { kstatus: flux, argocd: argo } = rate_health(object).await?;
            ensure!((&*flux.status, &*argo.status) == (kstatus, argocd), "{flux:?} and {argo:?} for {object:#}");
        }
        Ok(())
    }
}

/// The chart's objects have the verdicts of `health_test.yaml`. Argo CD tests its own scripts in the same way.
#[tokio::test]
async fn the_shipped_script_judges_the_shipped_states_as_the_chart_says() -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Cases {
        tests: Vec<Case>,
    }
    let Cases { tests } = serde_yaml::from_str(&fs::read_to_string(shipped("health_test.yaml"))?)?;
    let mut judged = BTreeSet::new();
    for Case { health_status, input_path } in tests {
        let object: Value = serde_yaml::from_str(&fs::read_to_string(shipped(&input_path))?)?;
        let verdict = rate_health(&object).await?.argocd;
        ensure!(verdict == health_status, "{input_path}: {verdict:?} instead of {health_status:?}");
        judged.insert(shipped(&input_path));
    }
    let there: BTreeSet<PathBuf> =
        fs::read_dir(shipped("testdata"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    ensure!(judged == there && !there.is_empty(), "{judged:?} have verdicts, but the objects are {there:?}");
    Ok(())
}

#[tokio::test]
async fn flux_and_argo_cd_see_the_health_of_every_state() -> Result<()> {
    let stage = Stage::set().await?;
    // No operator has read the policy, so it is in progress for both.
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until_healthy("unseen", "InProgress", "Progressing").await?;

    let operator = stage.operator()?;
    stage.until_healthy("no-pods", "Current", "Healthy").await?;
    let agent = stage.pod("a").await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;

    // A policy is in progress if a pod has no agent, has no address, or does not answer.
    let immediately = DeleteParams::default().grace_period(0);
    let bare = json!({"metadata": {"name": "bare", "labels": {"app": "web"}}, "spec": {"containers": [container()]}});
    stage.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(bare)?).await?;
    stage.until_healthy("drifted", "InProgress", "Progressing").await?;
    stage.api::<Pod>().delete("bare", &immediately).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;
    let early = json!({"metadata": {"name": "early", "labels": {"app": "web", "weir.dev/agent": "enabled"}},
        "spec": {"containers": [container()]}});
    stage.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(early)?).await?;
    stage.until_healthy("pending", "InProgress", "Progressing").await?;
    stage.api::<Pod>().delete("early", &immediately).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;
    let gone = stage.pod("gone").await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;
    gone.kill().await?;
    let is_gone = |status: &RateLimitPolicyStatus| {
        let mut drifted = status.enforcement.iter().flat_map(|it| &it.drifted);
        drifted.any(|it| it.pod == "gone" && it.reason == DriftReason::Unreachable)
    };
    stage.until("the silence", is_gone).await?;
    stage.until_healthy("unreachable", "InProgress", "Progressing").await?;
    stage.api::<Pod>().delete("gone", &immediately).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;

    // A policy becomes invalid, and then valid again. Then the conditions about the fault are removed.
    let mut bad = rule(80);
    bad["match"] = json!([{"pathRegexes": ["^/(v1"]}]);
    stage.patch_policy("checkout", &json!({"spec": {"rules": [bad]}})).await?;
    stage.until_healthy("invalid", "Failed", "Degraded").await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(90)]}})).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;

    // The target does not exist, but can be created later.
    let target = json!({"spec": {"selector": null, "targetRefs": [{"kind": "Deployment", "name": "web"}]}});
    stage.patch_policy("checkout", &target).await?;
    stage.until_healthy("target-not-found", "InProgress", "Progressing").await?;
    stage.patch_policy("checkout", &json!({"spec": {"targetRefs": null, "selector": selector()["selector"]}})).await?;
    stage.until_healthy("enforced", "Current", "Healthy").await?;

    // No operator has read the last change. The conditions of the previous generation do not count for it.
    operator.kill().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    stage.until_healthy("stale", "InProgress", "Progressing").await?;
    drop(agent);
    Ok(())
}
