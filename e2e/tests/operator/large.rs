//! Tests more policies for the same pods than fit in a snapshot.

use std::collections::BTreeSet;

use super::*;

const POLICIES: usize = 150;
/// The maximum size of a snapshot in bytes, as in the manual.
const MOST: usize = 1 << 20;

#[tokio::test]
async fn of_policies_beyond_a_snapshot_the_oldest_hold_and_the_others_say_why_not() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let _early = stage.pod("early").await?;
    let paths: Vec<String> = (0..16).map(|number| format!("/{number}{}", "x".repeat(200))).collect();
    let mut large = rule(1000);
    large["match"] = json!([{"paths": paths}, {"paths": paths}, {"paths": paths}]);
    let mut spec = selector();
    spec["rules"] = json!([large]);
    let policies: Api<RateLimitPolicy> = stage.api();
    let names: Vec<String> = (0..POLICIES).map(|number| format!("checkout-{number:03}")).collect();
    for name in &names {
        let policy = RateLimitPolicy::new(name, serde_json::from_value(spec.clone())?);
        policies.create(&PostParams::default(), &policy).await?;
    }

    // New pods get the policies that fit, and begin to serve with them.
    let addresses = stage.files.path().join("late");
    let late = Agent::with(&addresses, &["--wait-for-config"]).await?;
    stage.pod_object("late", late.port()?).await?;
    let (accepted, refused) = found(async || {
        let found = policies.list(&ListParams::default()).await?.items;
        let named = |so: fn(&RateLimitPolicyStatus) -> bool| -> BTreeSet<String> {
            let those = found.iter().filter(|it| it.status.as_ref().is_some_and(so));
            those.filter_map(|it| it.metadata.name.clone()).collect()
        };
        let holds = named(|it| count(it) == "2/2" && enforced(it) == ("True", "Enforced"));
        let too_large = named(|it| enforced(it) == ("False", "SnapshotTooLarge"));
        if holds.len() + too_large.len() == POLICIES && !holds.is_empty() {
            return Ok(Ok((holds, too_large)));
        }
        Ok(Err(format!("{} fit and {} are too large, of {POLICIES}", holds.len(), too_large.len())))
    })
    .await?;
    // The policies can have the same age in seconds, so the operator orders them by name.
    let oldest: BTreeSet<String> = names.iter().take(accepted.len()).cloned().collect();
    ensure!(accepted == oldest && !refused.is_empty(), "{accepted:?} are accepted, {refused:?} are not");
    let status = policies.get(&names[POLICIES - 1]).await?.status.context("the policy has no status")?;
    let said = condition(&status, "Accepted").context("Accepted")?;
    ensure!((&*said.status, &*said.reason) == ("False", "SnapshotTooLarge"), "{said:?}");
    stage.until_health_of(&names[POLICIES - 1], "snapshot-too-large", "Failed", "Degraded").await?;

    let in_force = late.in_force().await?.context("no snapshot is in force")?;
    let has: BTreeSet<String> = in_force.policies.iter().map(|it| it.name.clone()).collect();
    ensure!(has == accepted, "the pod has {has:?}, but the status accepts {accepted:?}");
    let length = serde_json::to_vec(&in_force)?.len();
    ensure!(length <= MOST, "{length} bytes");
    let one_more = length + length / accepted.len();
    ensure!(one_more > MOST, "{length} bytes, and another policy would fit");
    println!("{} of {POLICIES} policies fit into {length} bytes", accepted.len());
    let bound: Value = serde_json::from_slice(&std::fs::read(&addresses)?)?;
    let mut probe = TcpStream::connect(bound["telemetry"].as_str().context("no address")?).await?;
    probe.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
    let mut said = String::new();
    timeout(PATIENCE, probe.read_to_string(&mut said)).await??;
    ensure!(said.starts_with("HTTP/1.1 200 "), "{said}");
    Ok(())
}
