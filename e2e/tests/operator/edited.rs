//! Tests manual changes of pods and policies: afterwards the status is correct, and the right limits are in force.

use super::*;

#[tokio::test]
async fn what_is_done_to_pods_by_hand_shows_and_is_made_up_for() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let first = stage.pod("a").await?;
    let second = Agent::start(&stage.files.path().join("b")).await?;
    let relay = Relay::to(&second).await?;
    stage.pod_object("b", &relay.port).await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // A pod that the policy no longer targets loses its limit, and a pod that returns gets it again.
    stage.label("a", &json!({"app": null})).await?;
    first.until("emptiness", |snapshot| snapshot.policies.is_empty()).await?;
    stage.until("1/1", |status| count(status) == "1/1").await?;
    stage.label("a", &json!({"app": "web"})).await?;
    first.until("the limit", |snapshot| snapshot.policies.len() == 1).await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // Without the label, the operator does not know that the pod has an agent. The agent keeps its limits, but the pod
    // does not count as enforcing.
    stage.label("b", &json!({"weir.dev/agent": null})).await?;
    let seen = stage.until("1/2", |status| count(status) == "1/2").await?;
    let drifted = &seen.enforcement.as_ref().context("drift")?.drifted;
    ensure!(drifted.len() == 1 && drifted[0].pod == "b" && drifted[0].reason == DriftReason::NoAgent, "{drifted:?}");
    ensure!(requests(&second.in_force().await?) == Some(50), "the agent lost its limit with the label");
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "1/2").await?;
    stage.label("b", &json!({"weir.dev/agent": "enabled"})).await?;
    second.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // A restarted agent has no snapshot. No change of an object shows the restart.
    let restarted = Agent::start(&stage.files.path().join("again")).await?;
    ensure!(restarted.in_force().await?.is_none(), "the restarted agent has a snapshot");
    relay.lead_to(&restarted);
    second.kill().await?;
    restarted.until("the limit", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // Another pod with the same name, as a StatefulSet creates it.
    let successor = Agent::start(&stage.files.path().join("successor")).await?;
    stage.api::<Pod>().delete("a", &DeleteParams::default().grace_period(0)).await?;
    stage.pod_object("a", successor.port()?).await?;
    successor.until("the limit", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    stage.until("2/2", |status| enforced(status) == ("True", "Enforced") && count(status) == "2/2").await?;
    Ok(())
}

#[tokio::test]
async fn a_policy_that_is_made_again_by_the_same_name_is_another_one() -> Result<()> {
    let stage = Stage::set().await?;
    let operator = stage.operator()?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("1/1", |status| count(status) == "1/1").await?;
    let before = agent.in_force().await?.context("something is in force")?.policies[0].uid.clone();

    let policies = stage.api::<RateLimitPolicy>();
    policies.delete("checkout", &DeleteParams::default()).await?;
    stage.create_policy("checkout", &selector(), 60).await?;
    agent.until("the second one", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    let status = stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;
    ensure!(count(&status) == "1/1" && status.observed_generation == Some(1), "{status:#?}");
    let second = agent.in_force().await?.context("something is in force")?.policies[0].uid.clone();
    ensure!(second != before, "the new policy continues the counters of the old one");

    // The policy is replaced while no operator runs. The new policy gets a copy of the old status.
    operator.kill().await?;
    policies.delete("checkout", &DeleteParams::default()).await?;
    stage.create_policy("checkout", &selector(), 70).await?;
    stage.edit_status(&serde_json::to_value(&status)?).await?;
    ensure!(requests(&agent.in_force().await?) == Some(60), "the limit was lost with the operator");
    let _operator = stage.operator()?;
    agent.until("the third one", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    let third = agent.in_force().await?.context("something is in force")?.policies[0].revision.clone();
    let seen = stage.until("the third one", |status| status.revision.as_ref() == Some(&third)).await?;
    ensure!(count(&seen) == "1/1" && enforced(&seen) == ("True", "Enforced"), "{seen:#?}");
    Ok(())
}

impl Stage {
    async fn label(&self, pod: &str, labels: &Value) -> Result<()> {
        let patch = json!({"metadata": {"labels": labels}});
        self.api::<Pod>().patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }
}
