//! An agent that does not answer any more, while its host does.

use futures::StreamExt as _;
use kube::{
    ResourceExt as _,
    api::{WatchEvent, WatchParams},
};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// How often a busy machine may take longer for two answers than an operator waits for one.
const ATTEMPTS: u32 = 10;

/// Its silence is known for sure only after a while. What the others acknowledge counts before that, and at once after it.
#[tokio::test]
async fn a_silent_pod_holds_up_no_acknowledgement_of_the_others() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let _others = (stage.pod("a").await?, stage.pod("b").await?);
    let silent = stage.pod("c").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("3/3", |status| count(status) == "3/3").await?;
    let mut limits = 60..;
    let mut generations = 2..;
    let mut seen = Vec::new();
    let (mut before, mut after) = (false, false);
    for attempt in 0..ATTEMPTS {
        silent.signal(Signal::STOP)?;
        let drifts = |reason| vec![("c".to_owned(), reason)];
        // Every status that is written, however short it holds: first until it is given up, then with it given up.
        for given_up in [false, true] {
            let policies: Api<RateLimitPolicy> = stage.api();
            let version = policies.get("checkout").await?.resource_version().context("every object has one")?;
            let mut written = policies.watch(&WatchParams::default(), &version).await?.boxed();
            let (limit, generation) = (limits.next(), generations.next());
            stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(limit.context("endless")?)]}})).await?;
            let mut is_first = true;
            loop {
                let event = timeout(PATIENCE, written.next()).await.context("the silence is noticed")?;
                let WatchEvent::Modified(policy) = event.context("the watch lasts for minutes")?? else { continue };
                let status = policy.status.unwrap_or_default();
                if status.observed_generation != generation {
                    continue;
                }
                let drifted = status.enforcement.as_ref().map_or(&[][..], |it| &it.drifted);
                let reasons: Vec<_> = drifted.iter().map(|it| (it.pod.clone(), it.reason)).collect();
                let two = count(&status) == "2/3";
                before |= !given_up && two && reasons == drifts(DriftReason::Outdated);
                after |= given_up && two && is_first;
                is_first = false;
                let is_over = two && reasons == drifts(DriftReason::Unreachable);
                seen.push((attempt, given_up, count(&status).to_owned(), reasons));
                if is_over {
                    break;
                }
            }
        }
        silent.signal(Signal::CONT)?;
        stage.until("3/3", |it| count(it) == "3/3").await?;
        if before && after {
            println!("two of three counted at once, seen at the {attempt}. look");
            return Ok(());
        }
    }
    anyhow::bail!("2/3 before the third was given up: {before}, at once after that: {after}; {seen:#?}")
}

impl Agent {
    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.program.0.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(kill_process(id.context("it has ended")?, signal)?)
    }
}
