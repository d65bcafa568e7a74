//! `weir-operator prove`: checks that a policy is enforced in front of this pod's app. `helm test` runs it.
//!
//! The command acts as the app: it answers on loopback behind the pod's agent, and counts requests. It waits until the
//! policy's status reports that every targeted pod enforces the policy. Then it sends requests through the agent, and
//! compares the number that reached the app with the number that the limit admits. So it does not rely only on the
//! operator's report. It changes nothing.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use axum::Router;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use kube::{Api, Client};
use tokio::net::{TcpListener, TcpStream};
use weir_api::{RateLimitPolicy, condition_types::ENFORCED};

const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
const ANSWER: Duration = Duration::from_secs(5);

/// The arguments of a proof.
#[derive(Debug, clap::Args)]
pub struct Prove {
    /// Name of the policy that targets this pod, in the pod's namespace
    #[arg(long, value_name = "NAME")]
    policy: String,
    /// Address of this pod's app: this program listens there
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    app: SocketAddr,
    /// Address of this pod's agent
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8480")]
    agent: SocketAddr,
    /// Number of requests that the policy admits at first; it must admit no more while this program runs
    #[arg(long, value_name = "COUNT")]
    admits: u32,
    /// Number of requests to send
    #[arg(long, value_name = "COUNT", default_value = "20")]
    requests: u32,
    /// Time to wait until the policy is enforced, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    within: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    admitted: u32,
    refused: u32,
    without_retry_after: u32,
}

impl Prove {
    /// Checks that the arguments can prove enforcement.
    ///
    /// # Errors
    ///
    /// The limit would refuse no request.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.requests > self.admits, "--requests must be more than --admits, otherwise no request is refused");
        Ok(())
    }

    /// Waits, sends and compares. Returns a summary in one sentence.
    ///
    /// # Errors
    ///
    /// The results differ from the policy. The message describes the difference.
    pub async fn run(self, client: Client) -> anyhow::Result<String> {
        let listener = TcpListener::bind(self.app).await.with_context(|| format!("cannot listen on {}", self.app))?;
        let reached = serve(listener);
        let policies: Api<RateLimitPolicy> = Api::default_namespaced(client);
        let enforced = self.until_enforced(&policies).await?;
        let counts = send_requests(self.agent, self.requests).await?;
        judge(counts, reached.load(Ordering::Relaxed), self.admits)?;
        let Counts { admitted, refused, .. } = counts;
        let sent = self.requests;
        Ok(format!("{enforced}; of {sent} requests {admitted} reached the app and {refused} were refused with 429"))
    }

    /// Waits until the status reports that the policy is enforced. Returns the status's message.
    async fn until_enforced(&self, policies: &Api<RateLimitPolicy>) -> anyhow::Result<String> {
        let mut seen = "the policy has no status: does an operator lead?".to_owned();
        let enforced = async {
            loop {
                match policies.get(&self.policy).await {
                    Ok(policy) => {
                        let status = policy.status.unwrap_or_default();
                        let condition = status.conditions.into_iter().find(|condition| condition.type_ == ENFORCED);
                        if let Some(condition) = condition {
                            if condition.status == "True" && condition.observed_generation == policy.metadata.generation
                            {
                                return condition.message;
                            }
                            seen = format!("{}: {}", condition.reason, condition.message);
                        }
                    }
                    Err(error) => seen = error.to_string(),
                }
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(self.within), enforced).await {
            Ok(message) => Ok(message),
            Err(_) => {
                bail!("policy {} is not enforced after {} s; last seen: {seen}", self.policy, self.within)
            }
        }
    }
}

/// Runs the app, which answers and counts every request.
fn serve(listener: TcpListener) -> Arc<AtomicU32> {
    let reached = Arc::new(AtomicU32::new(0));
    let counter = reached.clone();
    let app = Router::new().fallback(move || async move {
        counter.fetch_add(1, Ordering::Relaxed);
        "ok\n"
    });
    // The server runs until the program exits.
    tokio::spawn(async move { axum::serve(listener, app).await });
    reached
}

async fn send_requests(agent: SocketAddr, requests: u32) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    for _ in 0..requests {
        let answer = tokio::time::timeout(ANSWER, send(agent)).await;
        let answer = answer.with_context(|| format!("the agent at {agent} does not answer"))??;
        match answer.status() {
            StatusCode::OK => counts.admitted += 1,
            StatusCode::TOO_MANY_REQUESTS => {
                counts.refused += 1;
                counts.without_retry_after += u32::from(!answer.headers().contains_key(header::RETRY_AFTER));
            }
            other => bail!("the agent at {agent} answered {other}"),
        }
    }
    Ok(counts)
}

async fn send(agent: SocketAddr) -> anyhow::Result<http::Response<hyper::body::Incoming>> {
    let reached = TcpStream::connect(agent).await;
    let stream = reached.with_context(|| format!("no agent listens on {agent}: does this pod have one?"))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/").header(header::HOST, "prove").body(Empty::<Bytes>::new())?;
    Ok(sender.send_request(request).await?)
}

fn judge(counts: Counts, reached: u32, admits: u32) -> anyhow::Result<()> {
    let Counts { admitted, refused, without_retry_after } = counts;
    ensure!(
        admitted == admits,
        "{admitted} requests were admitted and {refused} refused, where the limit admits {admits}"
    );
    ensure!(reached == admitted, "{admitted} requests were admitted, but {reached} reached the app");
    ensure!(without_retry_after == 0, "{without_retry_after} refusals have no Retry-After");
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    /// Starts an agent that admits `admits` requests and then answers with `refusal`.
    async fn agent(admits: u32, refusal: StatusCode) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let answer = move || {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            let refused = (refusal, [(header::RETRY_AFTER, "1")]).into_response();
            std::future::ready(if number < admits { "ok".into_response() } else { refused })
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        address
    }

    #[tokio::test]
    async fn the_client_counts_responses() {
        let counts = send_requests(agent(5, StatusCode::TOO_MANY_REQUESTS).await, 20).await.unwrap();
        assert_eq!(counts, Counts { admitted: 5, refused: 15, without_retry_after: 0 });
        let error = send_requests(agent(5, StatusCode::BAD_GATEWAY).await, 20).await.unwrap_err();
        assert!(error.to_string().contains("502"), "{error}");
    }

    #[tokio::test]
    async fn without_an_agent_there_is_an_error() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let error = send_requests(socket.local_addr().unwrap(), 1).await.unwrap_err();
        assert!(error.to_string().contains("does this pod have one?"), "{error}");
    }

    #[tokio::test]
    async fn the_app_counts_what_reaches_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reached = serve(listener);
        assert_eq!(send_requests(address, 3).await.unwrap().admitted, 3);
        assert_eq!(reached.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_counts_must_match_the_limit() {
        let good = Counts { admitted: 5, refused: 15, without_retry_after: 0 };
        judge(good, 5, 5).unwrap();
        for (counts, reached, admits) in
            [(good, 5, 4), (good, 5, 6), (good, 20, 5), (Counts { without_retry_after: 1, ..good }, 5, 5)]
        {
            assert!(judge(counts, reached, admits).is_err(), "{counts:?} {reached} {admits}");
        }
    }
}
