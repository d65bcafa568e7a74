//! Prints the state of the cluster after a failed scenario: policies, pods, the agents' reports, and the last lines of
//! the operator's log.
//!
//! This module only reads. If a part cannot be read, it prints the reason, and never hides the failure of the scenario.

use std::{fmt::Display, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::LogParams};

use crate::{agents, namespace::TestNamespace, operator, workload};

const LINES: i64 = 60;
/// The timeout for each part: a pod that does not answer must not delay the rest.
const PATIENCE: Duration = Duration::from_secs(20);

/// Prints the state of a namespace.
pub(crate) async fn print(space: &TestNamespace) {
    println!("---- {}", space.namespace);
    for what in ["ratelimitpolicies", "pods", "events"] {
        let format = if what == "ratelimitpolicies" { "--output=yaml" } else { "--output=wide" };
        let order = if what == "events" { "--sort-by=.lastTimestamp" } else { "--sort-by=.metadata.name" };
        section(what, space.kubectl(&["get", what, format, order])).await;
    }
    match workload::pods(space).await {
        Ok(pods) => {
            for pod in pods {
                let name = text(pod.metadata.name.clone());
                let status = async { agents::status(space, &name).await.map(|status| serde_json::json!(status)) };
                section(&format!("{name}: /v1/status"), status).await;
                for container in containers(&pod) {
                    let log = log(&space.cluster.client, &space.namespace, &name, Some(container));
                    section(&format!("{name}: {container}"), log).await;
                }
            }
        }
        Err(error) => println!("pods cannot be read: {error:#}"),
    }
    print_operator(&space.cluster.client).await;
    println!("----");
}

/// Prints the state of the operator.
pub(crate) async fn print_operator(client: &Client) {
    match operator::pods(client).await {
        Ok(pods) => {
            for pod in pods {
                println!("---- operator: {}", workload::describe(&pod));
                let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
                let waiting = containers.into_iter().filter_map(|container| container.state?.waiting);
                waiting.for_each(|why| println!("waiting: {}: {}", text(why.reason), text(why.message)));
                section("operator", log(client, operator::NAMESPACE, &text(pod.metadata.name), None)).await;
            }
        }
        Err(error) => println!("operators cannot be read: {error:#}"),
    }
}

/// The names of all containers of a pod: an agent is a container of the manifest or an injected one.
fn containers(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers)).map(|it| it.name.as_str())
}

async fn log(client: &Client, namespace: &str, pod: &str, container: Option<&str>) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let tail = LogParams { tail_lines: Some(LINES), container: container.map(str::to_owned), ..LogParams::default() };
    Ok(pods.logs(pod, &tail).await?)
}

async fn section<T: Display>(title: &str, content: impl Future<Output = Result<T>>) {
    println!("---- {title}");
    let content = tokio::time::timeout(PATIENCE, content).await.context("no answer in time");
    match content.flatten() {
        Ok(content) => println!("{content}"),
        Err(error) => println!("cannot be read: {error:#}"),
    }
}

fn text(part: Option<String>) -> String {
    part.unwrap_or_default()
}
