//! `weir-operator pulled`: checks that nodes can pull the agent's image. `helm test` runs it.
//!
//! The command runs in one pod with a container of that image, and reads that container's state from the apiserver. If
//! the image cannot be pulled, the error names it with the reason and the fix. The pods that wait for the image would
//! only report that they wait.

use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, Client};

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// The waiting reasons that do not end by themselves, or that follow a failed first attempt.
const PERMANENT_FAILURES: [&str; 3] = ["ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];

/// The container to check.
#[derive(Debug, clap::Args)]
pub struct Pulled {
    /// Name of the container in this pod that runs the image and exits by itself
    #[arg(long, value_name = "NAME")]
    container: String,
    /// Name of this pod
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod: String,
    /// Time limit for pulling the image, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "45")]
    within: u64,
}

impl Pulled {
    /// Waits until the container has run. Returns a summary in one sentence.
    ///
    /// # Errors
    ///
    /// The image cannot be pulled or does not run. The message gives the reason and the fix.
    pub async fn run(self, client: Client) -> anyhow::Result<String> {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let mut last = "the container's state is not known yet".to_owned();
        let seen = async {
            loop {
                let pod = pods.get(&self.pod).await.with_context(|| format!("cannot read pod {}", self.pod))?;
                match judge(&pod, &self.container)? {
                    Seen::Ran(sentence) => return anyhow::Ok(sentence),
                    Seen::Waits(why) => last = why,
                }
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(self.within), seen).await {
            Ok(seen) => seen,
            Err(_) => bail!("{last} after {} s: {FIX}", self.within),
        }
    }
}

/// The state of the container.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Ran(String),
    Waits(String),
}

const FIX: &str = "set images.registry and images.tag of the chart, or injection.agent.image, to its location, and give \
                   pods that need credentials for it their imagePullSecrets; without a registry, load it into every node";

fn judge(pod: &Pod, container: &str) -> anyhow::Result<Seen> {
    let spec = pod.spec.as_ref().and_then(|spec| spec.containers.iter().find(|it| it.name == container));
    let spec = spec.with_context(|| format!("the pod has no container {container}"))?;
    let image = spec.image.as_deref().unwrap_or_default();
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let status = statuses.iter().find(|status| status.name == container);
    let state = status.and_then(|ContainerStatus { state, .. }| state.as_ref());
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        if ended.exit_code == 0 {
            return Ok(Seen::Ran(format!("image {image} was pulled, and runs")));
        }
        let why = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or_default();
        bail!("image {image} was pulled, and ended with exit code {} ({why}): {FIX}", ended.exit_code);
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or("ContainerCreating");
    let message = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or("no reason given");
    let sentence = format!("image {image} has not run ({reason}: {message})");
    if PERMANENT_FAILURES.contains(&reason) {
        bail!("image {image} cannot be pulled ({reason}: {message}): {FIX}");
    }
    Ok(Seen::Waits(sentence))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(state: &Value) -> Pod {
        let status =
            json!({"name": "agent", "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let containers = json!([{"name": "look", "image": "op:1"}, {"name": "agent", "image": "weir.dev/agent:0.1.0"}]);
        let pod = json!({"spec": {"containers": containers}, "status": {"containerStatuses": [status]}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn an_image_that_cannot_be_pulled_is_named_with_the_fix() {
        for reason in PERMANENT_FAILURES {
            let state = json!({"waiting": {"reason": reason, "message": "no such host"}});
            let error = judge(&pod(&state), "agent").unwrap_err().to_string();
            let expected =
                format!("image weir.dev/agent:0.1.0 cannot be pulled ({reason}: no such host): set images.registry");
            assert!(error.starts_with(&expected), "{error}");
        }
        let broken = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
        let error = judge(&pod(&broken), "agent").unwrap_err().to_string();
        assert!(
            error.starts_with("image weir.dev/agent:0.1.0 was pulled, and ended with exit code 1 (Error)"),
            "{error}"
        );
        assert!(judge(&pod(&json!({})), "agents").unwrap_err().to_string().contains("no container agents"));
    }

    #[test]
    fn a_running_image_passes_and_a_pending_one_is_waited_for() {
        let ran = judge(&pod(&json!({"terminated": {"exitCode": 0}})), "agent").unwrap();
        assert_eq!(ran, Seen::Ran("image weir.dev/agent:0.1.0 was pulled, and runs".to_owned()));
        // A registry can fail for a while, and the kubelet tries again.
        for state in [json!({}), json!({"running": {}}), json!({"waiting": {"reason": "ErrImagePull", "message": "m"}})]
        {
            let Seen::Waits(why) = judge(&pod(&state), "agent").unwrap() else { panic!("{state}") };
            assert!(why.starts_with("image weir.dev/agent:0.1.0 has not run ("), "{why}");
        }
    }
}
