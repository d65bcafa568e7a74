//! Tests that the last good generation of an invalid policy stays in force when the operators are replaced, for
//! existing pods and for new pods.

use super::{availability::Operator, *};

#[tokio::test]
async fn what_was_good_outlives_every_operator_that_has_seen_it() -> Result<()> {
    let stage = Stage::set().await?;
    let first = Operator::start(&stage).await?;
    let old = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let good = stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;
    let kept = good.last_known_good.clone().context("the status has no lastKnownGood")?;
    ensure!(kept.generation == 1 && kept.spec.contains("\"requests\":50"), "{kept:?}");

    // The policy becomes invalid while no operator runs.
    first.program.kill().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [unparsable(80)]}})).await?;
    let second = Operator::start(&stage).await?;
    let new = stage.pod("b").await?;
    new.until("the limit", |snapshot| requests(&Some(snapshot.clone())) == Some(50)).await?;
    let invalid = |pods: &'static str| {
        move |status: &RateLimitPolicyStatus| enforced(status) == ("False", "Invalid") && count(status) == pods
    };
    let status = stage.until("Invalid", invalid("2/2")).await?;
    ensure!(requests(&old.in_force().await?) == Some(50), "the limit was lost with the operator");
    ensure!(status.revision == good.revision && status.last_known_good == good.last_known_good, "{status:#?}");
    let message = &condition(&status, "Enforced").context("Enforced")?.message;
    ensure!(message.contains("generation 2 is invalid, 1 stays in force"), "{message}");

    // A user who is only allowed to write policies cannot change the status, with any kind of request.
    let policies: Api<RateLimitPolicy> = stage.api();
    let forged = json!({"generation": 1, "spec": kept.spec.replace("50", "9000")});
    stage.patch_policy("checkout", &json!({"status": {"lastKnownGood": forged}})).await?;
    let stored = policies.get("checkout").await?.status.and_then(|status| status.last_known_good);
    ensure!(stored == Some(kept.clone()), "{stored:?}");
    // The operator overwrites changes that others make to the status.
    stage.edit_status(&json!({"lastKnownGood": forged})).await?;
    stage.until("the repaired status", |status| status.last_known_good.as_ref() == Some(&kept)).await?;

    // A last good generation that is written while no operator runs is checked like a policy.
    second.program.kill().await?;
    let refused = json!({"generation": 1, "spec": kept.spec.replace("50", "0")});
    stage.edit_status(&json!({"lastKnownGood": refused})).await?;
    let _third = Operator::start(&stage).await?;
    let status = stage.until("both faults", |s| enforced(s) == ("False", "Invalid") && count(s) == "0/0").await?;
    let message = &condition(&status, "Accepted").context("Accepted")?.message;
    for part in ["spec.rules[0].match[0].pathRegexes[0]", "status.lastKnownGood: is not valid either: spec.rules[0]"] {
        ensure!(message.contains(part), "{part:?} is not in {message:?}");
    }
    for agent in [&old, &new] {
        ensure!(requests(&agent.in_force().await?) == Some(50), "an agent lost a limit that its operator cannot read");
    }
    // After the policy is corrected, its limits are in force again.
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    let fixed = stage.until("2/2", |s| enforced(s) == ("True", "Enforced") && count(s) == "2/2").await?;
    ensure!(fixed.last_known_good.as_ref().is_some_and(|kept| kept.spec.contains("\"requests\":60")), "{fixed:#?}");
    for agent in [&old, &new] {
        ensure!(requests(&agent.in_force().await?) == Some(60), "an agent that does not enforce was counted");
    }
    Ok(())
}

/// A rule that the apiserver accepts, and the operator refuses.
fn unparsable(requests: u32) -> Value {
    let mut rule = rule(requests);
    rule["match"] = json!([{"pathRegexes": ["^/(v1"]}]);
    rule
}
