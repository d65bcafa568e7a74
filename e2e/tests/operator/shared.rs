//! Tests a policy with a rule of scope Shared, and its store, with a real apiserver and a real agent.

use super::*;

#[tokio::test]
async fn a_policy_waits_for_its_store_and_follows_it() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("1/1", |status| count(status) == "1/1").await?;

    // Without the store, the last good generation stays in force, and the status reports the missing store.
    let mut shared = rule(60);
    shared["scope"] = "Shared".into();
    shared["shared"] = json!({"storeRef": {"name": "limits"}, "clusters": 3});
    stage.patch_policy("checkout", &json!({"spec": {"rules": [shared]}})).await?;
    let status = stage.until("StoreNotFound", |status| accepted(status) == ("False", "StoreNotFound")).await?;
    let message = condition(&status, "Accepted").map(|it| it.message.clone()).unwrap_or_default();
    ensure!(message.contains("spec.rules[0].shared.storeRef.name") && message.contains("create it"), "{message}");
    ensure!(requests(&agent.in_force().await?) == Some(50), "the agent lost its limit");

    stage.create_store("limits").await?;
    agent.until("the store", |snapshot| names(snapshot, "redis:6379") && sharers(snapshot) == Some(3)).await?;
    let status = stage.until("Enforced", |status| enforced(status) == ("True", "Enforced")).await?;
    ensure!(condition(&status, "StoreReachable").is_some_and(|it| it.status == "True"), "{status:#?}");

    let stores: Api<RateLimitStore> = stage.api();
    let patch = json!({"spec": {"redis": {"endpoints": ["redis:6380"]}}});
    stores.patch("limits", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    agent.until("the other port", |snapshot| names(snapshot, "redis:6380")).await?;

    // With a second pod in each of three clusters, six pods share the limit.
    let second = stage.pod("b").await?;
    second.until("two pods", |snapshot| sharers(snapshot) == Some(6)).await?;
    agent.until("two pods", |snapshot| sharers(snapshot) == Some(6)).await?;

    // If the store is deleted, the limit stays in force.
    stores.delete("limits", &DeleteParams::default()).await?;
    stage.until("StoreNotFound", |status| accepted(status) == ("False", "StoreNotFound")).await?;
    ensure!(agent.in_force().await?.is_some_and(|snapshot| names(&snapshot, "redis:6380")), "the limit is lost");
    Ok(())
}

fn accepted(status: &RateLimitPolicyStatus) -> (&str, &str) {
    condition(status, "Accepted").map_or(("", ""), |condition| (&condition.status, &condition.reason))
}

fn names(snapshot: &Snapshot, endpoint: &str) -> bool {
    matches!(&snapshot.stores[..], [store] if store.name == "shop/limits" && format!("{store:?}").contains(endpoint))
}

fn sharers(snapshot: &Snapshot) -> Option<u32> {
    Some(snapshot.policies.first()?.rules.first()?.shared.as_ref()?.sharers)
}
