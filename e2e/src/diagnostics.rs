//! What a failed scenario leaves in the log: the policies, the pods, the agents' word, the operator's last lines.
//!
//! It only reads, and whatever cannot be read is said so: it must never hide the failure that it explains.

use std::fmt::Display;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::LogParams};

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
                section(
                    &format!("{pod}: agent"),
                    log(&space.cluster.client, &space.namespace, pod, Some("agent")).await,
                );
            }
        }
        Err(error) => section("pods", Err::<&str, _>(error)),
    }
    print_operator(&space.cluster.client).await;
    println!("----");
}

/// Prints what is known about the operator.
pub(crate) async fn print_operator(client: &Client) {
    match operator::pods(client).await {
        Ok(pods) => {
            for pod in pods {
                println!("---- operator: {}", workload::describe(&pod));
                let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
                let waiting = containers.into_iter().filter_map(|container| container.state?.waiting);
                waiting.for_each(|why| println!("waiting: {}: {}", text(why.reason), text(why.message)));
                section("operator", log(client, operator::NAMESPACE, &text(pod.metadata.name), None).await);
            }
        }
        Err(error) => section("operator", Err::<&str, _>(error)),
    }
}

async fn log(client: &Client, namespace: &str, pod: &str, container: Option<&str>) -> kube::Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
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

fn text(part: Option<String>) -> String {
    part.unwrap_or_default()
}
