//! An operator of the next wire version among agents of this one: real agents, and the version changed on the way.

use super::*;

#[tokio::test]
async fn agents_that_are_too_old_keep_what_they_have_and_are_named() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let current = stage.pod("current").await?;
    let old = Agent::start(&stage.files.path().join("old")).await?;
    let relay = Relay::to(&old).await?;
    stage.pod_object("old", &relay.port).await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;

    relay.be_newer(true);
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    current.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    let refused = |status: &RateLimitPolicyStatus| {
        let mut drifted = status.enforcement.iter().flat_map(|enforcement| &enforcement.drifted);
        drifted.any(|it| it.pod == "old" && it.reason == DriftReason::Refused)
    };
    let status = stage.until("the refusal", refused).await?;
    ensure!((count(&status), enforced(&status)) == ("1/2", ("False", "Drifted")), "{status:#?}");
    let message = status.enforcement.iter().flat_map(|it| &it.drifted).find_map(|it| it.message.clone());
    let told = "wireVersion: is 2, but this agent speaks 1: upgrade the older of the two";
    ensure!(message.as_ref().is_some_and(|message| message.contains(told)), "{message:?}");
    ensure!(requests(&old.in_force().await?) == Some(50), "it does not hold what it had");
    stage.until_event("Drifted", "old is Refused").await?;

    // The next change is none of the current one's troubles either, and a pod with a newer agent is in.
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    current.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    relay.be_newer(false);
    old.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    stage.until("2/2", |s| s.observed_generation == Some(3) && count(s) == "2/2").await?;
    Ok(())
}
