//! What a failed scenario leaves in the log: the policies, the pods, the agents' word, the operator's last lines.
//!
//! It only reads, and whatever cannot be read is said so: it must never hide the failure that it explains.

use std::fmt::Display;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::LogParams};

use crate::{agents, namespace::Space, operator, workload};

const LINES: i64 = 60;

/// Prints all that is known about a namespace.
pub(crate) async fn print(space: &Space) {
    println!("---- {}", space.namespace);
    for what in ["ratelimitpolicies", "pods", "events"] {
        let format = if what == "ratelimitpolicies" { "--output=yaml" } else { "--output=wide" };
        let order = if what == "events" { "--sort-by=.lastTimestamp" } else { "--sort-by=.metadata.name" };
        section(what, space.kubectl(&["get", what, format, order]).await);
    }
    match workload::pods(space).await {
        Ok(pods) => {
            for pod in pods.iter().filter_map(|pod| pod.metadata.name.as_deref()) {
                let status = agents::status(space, pod).await;
                section(&format!("{pod}: /v1/status"), status.map(|status| serde_json::json!(status)));
                section(&format!("{pod}: agent"), log(space, &space.namespace, pod, Some("agent")).await);
            }
        }
        Err(error) => section("pods", Err::<&str, _>(error)),
    }
    match operator::pods(&space.cluster.client).await {
        Ok(pods) => {
            for pod in pods {
                println!("---- operator: {}", workload::describe(&pod));
                let name = pod.metadata.name.unwrap_or_default();
                section("operator", log(space, operator::NAMESPACE, &name, None).await);
            }
        }
        Err(error) => section("operator", Err::<&str, _>(error)),
    }
    println!("----");
}

async fn log(space: &Space, namespace: &str, pod: &str, container: Option<&str>) -> kube::Result<String> {
    let pods: Api<Pod> = Api::namespaced(space.client(), namespace);
    let tail = LogParams { tail_lines: Some(LINES), container: container.map(str::to_owned), ..LogParams::default() };
    pods.logs(pod, &tail).await
}

fn section<T: Display, E: Display>(title: &str, content: Result<T, E>) {
    println!("---- {title}");
    match content {
        Ok(content) => println!("{content}"),
        Err(error) => println!("cannot be read: {error:#}"),
    }
}
