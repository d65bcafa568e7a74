//! Tests agents that do not answer although their machines do.

use rustix::process::Signal;

use super::*;

/// One agent gets no snapshot, but still sends its status. So the operator keeps the connection and waits. Meanwhile,
/// the other acknowledgements count.
#[tokio::test]
async fn acknowledgements_count_while_another_pod_owes_its_own() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let others = [stage.pod("a").await?, stage.pod("b").await?];
    let silent = Agent::start(&stage.files.path().join("c")).await?;
    let relay = Relay::to(&silent).await?;
    stage.pod_object("c", &relay.port).await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("3/3", |status| count(status) == "3/3").await?;

    relay.withhold(true);
    for (generation, limit) in [(2, 60), (3, 70)] {
        stage.change(generation, limit, DriftReason::Outdated).await?;
        for agent in &others {
            ensure!(requests(&agent.in_force().await?) == Some(limit.into()), "a pod without this limit was counted");
        }
        ensure!(requests(&silent.in_force().await?) == Some(50), "the relay forwarded a snapshot");
    }
    relay.withhold(false);
    stage.until("3/3 of the last change", |it| count(it) == "3/3" && it.observed_generation == Some(3)).await?;
    Ok(())
}

/// A stopped agent does not answer, so the operator closes its connection. The other agents count before and after
/// that.
#[tokio::test]
async fn acknowledgements_count_while_another_pod_is_given_up() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let others = [stage.pod("a").await?, stage.pod("b").await?];
    let silent = stage.pod("c").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("3/3", |status| count(status) == "3/3").await?;

    silent.program.signal(Signal::STOP)?;
    for (generation, limit) in [(2, 60), (3, 70)] {
        stage.change(generation, limit, DriftReason::Unreachable).await?;
        for agent in &others {
            ensure!(requests(&agent.in_force().await?) == Some(limit.into()), "a pod without this limit was counted");
        }
    }
    silent.program.signal(Signal::CONT)?;
    stage.until("3/3 of the last change", |it| count(it) == "3/3" && it.observed_generation == Some(3)).await?;
    Ok(())
}

impl Stage {
    /// Changes the limit, and waits until two of three pods count as enforcing. Pod `c` must be drifted with this
    /// reason.
    async fn change(&self, generation: i64, limit: u32, reason: DriftReason) -> Result<()> {
        let before = Instant::now();
        self.patch_policy("checkout", &json!({"spec": {"rules": [rule(limit)]}})).await?;
        let is_told = |status: &RateLimitPolicyStatus| {
            let drifted = status.enforcement.as_ref().map_or(&[][..], |it| &it.drifted);
            let drifted: Vec<_> = drifted.iter().map(|it| (&*it.pod, it.reason)).collect();
            status.observed_generation == Some(generation) && count(status) == "2/3" && drifted == [("c", reason)]
        };
        self.until("2/3 without c", is_told).await?;
        ensure!(before.elapsed() < PROMPTLY, "took {:?}", before.elapsed());
        Ok(())
    }
}
