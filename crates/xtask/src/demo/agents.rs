//! Reads the revisions in force from the agents' control API. So the demo does not rely on the operator's report.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

use crate::clock;

const ANSWER: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(2);

/// The addresses on which an agent listens, from its addresses file.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Agent {
    pub(crate) listen: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) telemetry: SocketAddr,
}

/// The enforcement as the agents report it.
pub(crate) struct Enforcement {
    pub(crate) enforcing: usize,
    pub(crate) agents: usize,
    pub(crate) revision: Option<String>,
}

/// The fields of an agent's status that the demo needs.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    policies: Vec<Policy>,
}

#[derive(Deserialize)]
struct Policy {
    name: String,
    revision: String,
}

impl Agent {
    /// The revision of the policy that this agent enforces. None if the agent does not have the policy.
    pub(crate) async fn revision(&self, policy: &str) -> anyhow::Result<Option<String>> {
        let body = get(self.control, "/v1/status").await?;
        let status: Status =
            serde_json::from_str(&body).with_context(|| format!("the response of {}: {body}", self.control))?;
        Ok(status.policies.into_iter().find(|known| known.name == policy).map(|known| known.revision))
    }

    /// Waits until the agent enforces a revision of the policy that `wanted` accepts. Returns the time of the agent's
    /// report.
    pub(crate) async fn acknowledged(&self, policy: &str, wanted: impl Fn(&str) -> bool) -> Instant {
        loop {
            // An agent that does not answer has not acknowledged yet.
            if let Ok(Some(revision)) = self.revision(policy).await
                && wanted(&revision)
            {
                return clock::now();
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Requests a path, and returns the body of the response. A status other than 200 is an error, unless the body is JSON,
/// which can contain the reason.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        // With HTTP/1.0, the body is not chunked, and ends with the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(ANSWER, exchange)
        .await
        .with_context(|| format!("no answer from {address}"))?
        .with_context(|| format!("ask {address}"))?;
    let (head, body) =
        answer.split_once("\r\n\r\n").with_context(|| format!("the response of {address} is not HTTP"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200" || body.starts_with('{'), "{address}{path}: {status}: {body}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Starts an agent that gives these responses, one for each connection.
    async fn agent(bodies: &'static [&'static str]) -> Agent {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let control = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            for body in bodies {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await.expect("a request");
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.expect("written");
            }
        });
        Agent { listen: control, control, telemetry: control }
    }

    #[tokio::test]
    async fn an_acknowledgement_is_a_revision_that_the_agent_says_itself() {
        let agent = agent(&[
            r#"{"wireVersion":1}"#,
            r#"{"policies":[{"name":"other","revision":"new"}]}"#,
            r#"{"policies":[{"name":"demo","revision":"old","rules":[]}]}"#,
            r#"{"policies":[{"name":"other","revision":"x"},{"name":"demo","revision":"new"}]}"#,
            r#"{"policies":[{"name":"demo","revision":"last"}]}"#,
        ])
        .await;
        agent.acknowledged("demo", |revision| revision != "old").await;
        assert_eq!(agent.revision("demo").await.expect("an answer"), Some("last".to_owned()));
    }

    #[tokio::test]
    async fn an_agent_that_is_gone_is_an_error() {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        assert!(get(socket.local_addr().expect("bound"), "/v1/status").await.is_err());
    }
}
