//! How Flux and Argo CD rate a policy's health in each state that the operator writes.
//!
//! Flux's own library and the chart's Lua script judge the objects of a real apiserver (`e2e/health`).

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;

use super::*;

/// The variable with the path of the judge.
const JUDGE: &str = "WEIR_HEALTH";

/// The verdicts of both.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    kstatus: String,
    argocd: String,
}

impl Stage {
    /// The verdicts of both on the current policy.
    async fn health(&self, name: &str) -> Result<Verdict> {
        let program = std::env::var_os(JUDGE)
            .with_context(|| format!("{JUDGE} names no program: cargo xtask test --only integration makes one"))?;
        let lua = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/weir/argo-cd/health.lua");
        let policy: Value = serde_json::to_value(self.api::<RateLimitPolicy>().get(name).await?)?;
        let mut judge = Command::new(program).arg(lua).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        judge.stdin.take().context("it is piped")?.write_all(policy.to_string().as_bytes()).await?;
        let output = timeout(PATIENCE, judge.wait_with_output()).await??;
        ensure!(output.status.success(), "the judge ended with {}", output.status);
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let word = |judge: &str| said[judge]["status"].as_str().unwrap_or_default().to_owned();
        Ok(Verdict { kstatus: word("kstatus"), argocd: word("argocd") })
    }

    /// Waits until `Ready` has this status and reason; both must rate it accordingly at once.
    pub(crate) async fn until_healthy(&self, status: &str, reason: &str, kstatus: &str, argocd: &str) -> Result<()> {
        let seen = self
            .until(&format!("Ready={status} for {reason}"), |seen| {
                condition(seen, "Ready").is_some_and(|ready| ready.status == status && ready.reason == reason)
            })
            .await?;
        let expected = Verdict { kstatus: kstatus.to_owned(), argocd: argocd.to_owned() };
        let verdict = self.health("checkout").await?;
        ensure!(verdict == expected, "{verdict:?} instead of {expected:?} for {seen:#?}");
        Ok(())
    }
}

#[tokio::test]
async fn flux_and_argo_cd_see_the_health_of_every_state() -> Result<()> {
    let stage = Stage::set().await?;
    // No operator has read it: not done, for either judge.
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until_healthy("Unknown", "Pending", "InProgress", "Progressing").await?;

    let operator = stage.operator()?;
    stage.until_healthy("True", "NoPods", "Current", "Healthy").await?;
    let agent = stage.pod("a").await?;
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;
    let status = stage.until("Programmed", |status| condition(status, "Programmed").is_some()).await?;
    ensure!(condition(&status, "Programmed").is_some_and(|it| it.status == "True"), "{status:#?}");

    // One without an agent, and one without an address: in progress.
    let bare = json!({"metadata": {"name": "bare", "labels": {"app": "web"}}, "spec": {"containers": [container()]}});
    stage.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(bare)?).await?;
    stage.until_healthy("False", "Drifted", "InProgress", "Progressing").await?;
    stage.api::<Pod>().delete("bare", &DeleteParams::default().grace_period(0)).await?;
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;
    let early = json!({"metadata": {"name": "early", "labels": {"app": "web", "weir.dev/agent": "enabled"}},
        "spec": {"containers": [container()]}});
    stage.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(early)?).await?;
    stage.until_healthy("False", "Pending", "InProgress", "Progressing").await?;
    stage.api::<Pod>().delete("early", &DeleteParams::default().grace_period(0)).await?;
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;

    // Invalid, and valid again: the conditions are gone with their cause.
    let mut bad = rule(80);
    bad["match"] = json!([{"pathRegexes": ["^/(v1"]}]);
    stage.patch_policy("checkout", &json!({"spec": {"rules": [bad]}})).await?;
    stage.until_healthy("False", "Invalid", "Failed", "Degraded").await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(90)]}})).await?;
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;
    let status = stage.until("the end of Stalled", |status| condition(status, "Stalled").is_none()).await?;
    ensure!(condition(&status, "Reconciling").is_none(), "{status:#?}");

    // A target that may be created later.
    let target = json!({"spec": {"selector": null, "targetRefs": [{"kind": "Deployment", "name": "web"}]}});
    stage.patch_policy("checkout", &target).await?;
    stage.until_healthy("False", "TargetNotFound", "InProgress", "Progressing").await?;
    stage.patch_policy("checkout", &json!({"spec": {"targetRefs": null, "selector": selector()["selector"]}})).await?;
    stage.until_healthy("True", "Enforced", "Current", "Healthy").await?;

    // A change that no operator has seen: the conditions of the last generation do not count for it.
    operator.kill().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    stage.until_healthy("True", "Enforced", "InProgress", "Progressing").await?;
    drop(agent);
    Ok(())
}
