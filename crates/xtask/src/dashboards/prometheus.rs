//! Starts a Prometheus that scrapes the demo's programs, and sends queries to it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::{
    demo::{Cast, get},
    workspace::Workspace,
};

/// The candidates for ports. They are below the kernel's range of ephemeral ports, so that no connection takes the port
/// before Prometheus listens.
const PORTS: std::ops::Range<u16> = 19490..19590;

/// Finds a free port on loopback.
pub(super) fn free_port() -> anyhow::Result<SocketAddr> {
    let candidates = PORTS.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    candidates
        .into_iter()
        .find(|address| TcpListener::bind(address).is_ok())
        .with_context(|| format!("every port from {} to {} is taken", PORTS.start, PORTS.end - 1))
}

/// A span of Unix time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: f64,
    pub(super) end: f64,
}

pub(super) struct Prometheus {
    address: SocketAddr,
}

/// A series of a result: its labels, and its values with their Unix times.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Series {
    pub(super) metric: std::collections::BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<(f64, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<(f64, String)>,
}

impl Series {
    /// The values with their Unix times.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (f64, f64)> {
        self.values.iter().map(|(at, value)| (*at, value.parse().unwrap_or(f64::NAN)))
    }
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Answer {
    Success { data: Data },
    Error { error: String },
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

impl Prometheus {
    /// Starts Prometheus as a process of the cast. It scrapes these agents and the operator, with the labels that a
    /// PodMonitor sets. Each agent has the name of its pod.
    pub(super) fn start(
        workspace: &Workspace,
        cast: &mut Cast,
        operator: SocketAddr,
        agents: &[(SocketAddr, &str)],
    ) -> anyhow::Result<Self> {
        let address = free_port()?;
        let agents = agents.iter().map(|(telemetry, pod)| {
            format!(
                "  - targets: ['{telemetry}']\n    labels: {{cluster: demo, namespace: default, pod: {pod}, container: weir-agent}}\n"
            )
        });
        let rules = workspace.root().join("charts/weir/alerts/weir.yaml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n\
             - job_name: agents\n  metric_relabel_configs:\n  - {{action: labeldrop, regex: exported_namespace}}\n  \
             static_configs:\n{}\
             - job_name: operator\n  honor_labels: true\n  static_configs:\n  - targets: ['{operator}']\n    \
             labels: {{cluster: demo, namespace: weir-system, pod: weir-6b7c8d9f5-k7l8m, container: operator}}\n",
            rules.display(),
            agents.collect::<String>(),
        );
        let file = cast.folder().join("prometheus.yml");
        fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", cast.folder().join("tsdb").display()))
            .arg(format!("--web.listen-address={address}"));
        cast.join("prometheus", &mut command)?;
        Ok(Self { address })
    }

    pub(super) async fn is_ready(&self) -> bool {
        get(self.address, "/-/ready").await.is_ok()
    }

    /// Queries the current value of each series.
    pub(super) async fn query(&self, expr: &str) -> anyhow::Result<Vec<Series>> {
        self.result(&format!("/api/v1/query?query={}", encode(expr))).await
    }

    /// Queries the current time of the server.
    pub(super) async fn now(&self) -> anyhow::Result<f64> {
        let now = self.query("vector(1)").await?;
        let now = now.first().and_then(|series| Some(series.value.as_ref()?.0));
        now.context("Prometheus does not report the time")
    }

    /// Queries the values of each series in a span of Unix time, one value for each step in seconds.
    pub(super) async fn range(&self, expr: &str, span: &Span, step: u32) -> anyhow::Result<Vec<Series>> {
        let Span { start, end } = span;
        let path = format!("/api/v1/query_range?query={}&start={start}&end={end}&step={step}", encode(expr));
        self.result(&path).await
    }

    async fn result(&self, path: &str) -> anyhow::Result<Vec<Series>> {
        let body = get(self.address, path).await?;
        match serde_json::from_str(&body).with_context(|| format!("the response of Prometheus: {body}"))? {
            Answer::Success { data } => Ok(data.result),
            Answer::Error { error } => bail!("{error}"),
        }
    }
}

/// Encodes a query's value (RFC 3986 section 2.1).
fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string cannot fail");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_survive_the_address_line() {
        assert_eq!(encode("a{b=\"ü\"}"), "a%7Bb%3D%22%C3%BC%22%7D");
    }

    #[test]
    fn answers_are_read_as_prometheus_writes_them() {
        let text = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"rule":"a"},"value":[1.5,"NaN"]}]}}"#;
        let Answer::Success { data } = serde_json::from_str(text).expect("an answer") else { panic!("a success") };
        assert_eq!(
            (data.result[0].metric["rule"].as_str(), data.result[0].value.clone()),
            ("a", Some((1.5, "NaN".into())))
        );
        let text = r#"{"status":"error","errorType":"bad_data","error":"no such function"}"#;
        assert!(matches!(serde_json::from_str(text), Ok(Answer::Error { error }) if error == "no such function"));
    }
}
