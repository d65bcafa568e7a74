//! Tests combinations of versions: an operator with a newer wire version than its agents, and an operator with an older
//! CRD. The agents are real, and a proxy changes the wire version.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{availability::Operator, *};

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
    stage.until_healthy("refused", "Failed", "Degraded").await?;
    let message = status.enforcement.iter().flat_map(|it| &it.drifted).find_map(|it| it.message.clone());
    let told = "wireVersion: is 2, but this agent speaks 1: upgrade the older of the two";
    ensure!(message.as_ref().is_some_and(|message| message.contains(told)), "{message:?}");
    ensure!(requests(&old.in_force().await?) == Some(50), "the old agent lost its limit");
    stage.until_event("Drifted", "old is Refused").await?;

    // The next change is also in force in the current agent. After its upgrade, the old agent enforces it, too.
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    current.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    relay.be_newer(false);
    old.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    stage.until("2/2", |s| s.observed_generation == Some(3) && count(s) == "2/2").await?;
    Ok(())
}

/// If the charts are upgraded in the wrong order, only the fields that the old CRD does not contain are missing from
/// the status.
#[tokio::test]
async fn a_definition_that_is_too_old_costs_the_status_only_what_it_does_not_know() -> Result<()> {
    let stage = Stage::set().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client());
    let mut older = definitions.get("ratelimitpolicies.weir.dev").await?;
    let schema = older.spec.versions[0].schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
    let status = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("status")).context("no status")?;
    let newest = status.properties.as_mut().and_then(|fields| fields.remove("lastKnownGood"));
    ensure!(newest.is_some(), "the current CRD has no lastKnownGood");
    let mut traffic = status.properties.as_mut().and_then(|fields| fields.get_mut("traffic"));
    let newest = traffic.as_mut().and_then(|traffic| traffic.properties.as_mut()?.remove("waited"));
    ensure!(newest.is_some(), "the current CRD has no traffic.waited");
    definitions.replace("ratelimitpolicies.weir.dev", &PostParams::default(), &older).await?;
    // An older chart has no CRD of stores.
    definitions.delete("ratelimitstores.weir.dev", &DeleteParams::default()).await?;

    let _operator = Operator::start(&stage).await?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    // A status without lastKnownGood shows that the older CRD is in force.
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced") && status.last_known_good.is_none()).await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    let changed = |s: &RateLimitPolicyStatus| s.observed_generation == Some(2) && enforced(s) == ("True", "Enforced");
    stage.until("the change", changed).await?;
    ensure!(requests(&agent.in_force().await?) == Some(60), "an agent that does not enforce was counted");
    Ok(())
}
