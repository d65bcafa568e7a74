//! Tests an apiserver that is overloaded, fails, or reports conflicts. The operator retries with pauses, and applies
//! all changes when the apiserver works again.

use std::{collections::BTreeMap, convert::Infallible, sync::Mutex};

use http::{Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use kube::client::Body;

use super::{availability::Operator, *};

/// The Retry-After of a busy apiserver, in seconds.
const RETRY_AFTER: u64 = 2;

#[tokio::test]
async fn an_apiserver_that_struggles_is_left_alone_and_caught_up_with() -> Result<()> {
    let stage = Stage::set().await?;
    let gate = Gate::before(&stage).await?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let operator = Operator::with(&gate.kubeconfig, &LEASE, std::process::Stdio::inherit()).await?;
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;

    // The apiserver answers 429 with Retry-After.
    let refused = gate.refuse(Answer::Busy, |refused| refused.values().filter(|times| times.len() >= 3).count() >= 6);
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    for (what, times) in refused.await? {
        // The operator requests the Lease at the rate of its renewals, independent of Retry-After.
        let patience = if what.contains("/leases/") { 1.0 } else { RETRY_AFTER as f64 };
        let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        // After a closed connection, one immediate retry is allowed.
        let early = pauses.iter().filter(|pause| **pause < patience).count();
        ensure!(early <= 1, "{what} was requested again after {pauses:?} s");
    }
    ensure!(requests(&agent.in_force().await?) == Some(50), "the limit was lost with the apiserver");
    ensure!(operator.answers("/healthz").await? && operator.answers("/readyz").await?, "a restart would fix nothing");
    gate.open();
    agent.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "1/1").await?;

    // The apiserver fails with different errors.
    let refused = gate.refuse(Answer::Broken, |refused| refused.values().filter(|times| times.len() >= 6).count() >= 6);
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    for (what, times) in refused.await? {
        let took = (times[times.len() - 1] - times[0]).as_secs_f64();
        ensure!(times.len() as f64 <= 8.0 + took, "{what} was requested {} times in {took:.1} s", times.len());
    }
    gate.open();
    agent.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    stage.until("the change", |s| s.observed_generation == Some(3) && count(s) == "1/1").await?;

    // The apiserver answers every status write with a conflict. This must not affect agents.
    let is_status = |refused: &Refused| refused.iter().any(|(what, it)| what.contains("/status") && it.len() >= 3);
    let refused = gate.refuse(Answer::StatusConflict, is_status);
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(80)]}})).await?;
    agent.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(80)).await?;
    for (what, times) in refused.await? {
        let took = (times[times.len() - 1] - times[0]).as_secs_f64();
        ensure!(times.len() as f64 <= 8.0 + 2.0 * took, "{what} was tried {} times in {took:.1} s", times.len());
    }
    gate.open();
    stage.until("the change", |s| s.observed_generation == Some(4) && count(s) == "1/1").await?;
    Ok(())
}

/// The kinds of answers of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The gate forwards requests to the apiserver.
    Apiserver,
    /// The gate answers 429 with a Retry-After.
    Busy,
    /// The gate answers 500, 503, 504 and 429, one after another, without a Retry-After.
    Broken,
    /// The gate answers every status write with 409.
    StatusConflict,
}

/// The times of the refusals, by request.
type Refused = BTreeMap<String, Vec<Instant>>;

/// A proxy between the operator and the apiserver, like a load balancer. It serves plain HTTP and forwards as an
/// administrator.
struct Gate {
    kubeconfig: std::path::PathBuf,
    answer: watch::Sender<Answer>,
    refused: Arc<Mutex<Refused>>,
}

impl Gate {
    async fn before(stage: &Stage) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let kubeconfig = stage.files.path().join("gate");
        let server = format!("http://{}", listener.local_addr()?);
        let contents = json!({"apiVersion": "v1", "kind": "Config", "current-context": "gate",
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
            "clusters": [{"name": "gate", "cluster": {"server": server}}], "users": [{"name": "gate", "user": {}}]});
        std::fs::write(&kubeconfig, contents.to_string())?;
        let answer = watch::Sender::new(Answer::Apiserver);
        let refused = Arc::<Mutex<Refused>>::default();
        let (apiserver, answers, notes) = (stage.client(), answer.clone(), refused.clone());
        tokio::spawn(async move {
            while let Ok((operator, _)) = listener.accept().await {
                tokio::spawn(serve(operator, apiserver.clone(), answers.subscribe(), notes.clone()));
            }
        });
        Ok(Self { kubeconfig, answer, refused })
    }

    /// Answers all later requests in this way, and closes open watches. Returns the refusals when there are enough.
    fn refuse(&self, answer: Answer, enough: impl Fn(&Refused) -> bool) -> impl Future<Output = Result<Refused>> {
        self.refused.lock().expect("no thread panics while it holds the lock").clear();
        self.answer.send_replace(answer);
        async move {
            found(async || {
                let refused = self.refused.lock().expect("no thread panics while it holds the lock").clone();
                let gave_up = || format!("the operator gave up: it sent only {refused:#?}");
                Ok(if enough(&refused) { Ok(refused) } else { Err(gave_up()) })
            })
            .await
        }
    }

    fn open(&self) {
        self.answer.send_replace(Answer::Apiserver);
    }
}

/// Serves one connection. The connection is closed when the answer changes.
async fn serve(
    operator: TcpStream,
    apiserver: Client,
    mut answers: watch::Receiver<Answer>,
    notes: Arc<Mutex<Refused>>,
) {
    let answer = *answers.borrow_and_update();
    let service = service_fn(|request: Request<Incoming>| {
        let (apiserver, notes) = (apiserver.clone(), notes.clone());
        async move { Ok::<_, Infallible>(reply(answer, request, apiserver, &notes).await) }
    });
    tokio::select! {
        // An error of the connection is ignored, because the operator must open a new one.
        _ = http1::Builder::new().serve_connection(TokioIo::new(operator), service) => {}
        _ = answers.changed() => {}
    }
}

async fn reply(
    answer: Answer,
    request: Request<Incoming>,
    apiserver: Client,
    notes: &Mutex<Refused>,
) -> Response<Body> {
    let path = request.uri().path();
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
    let is_patch = request.method() == Method::PATCH;
    let passes = match answer {
        Answer::Apiserver => true,
        Answer::Busy | Answer::Broken => false,
        Answer::StatusConflict => !(is_patch && path.ends_with("/status")),
    };
    if passes {
        return pass(request, apiserver).await.unwrap_or_else(|error| {
            let response = Response::builder().status(StatusCode::BAD_GATEWAY);
            response.body(Body::from(format!("{error:#}").into_bytes())).expect("a response")
        });
    }
    let what = format!("{} {path}{}", request.method(), if is_watch { " (watch)" } else { "" });
    let times = {
        let mut refused = notes.lock().expect("no thread panics while it holds the lock");
        let times = refused.entry(what).or_default();
        times.push(Instant::now());
        times.len()
    };
    let code = match answer {
        Answer::Busy => StatusCode::TOO_MANY_REQUESTS,
        Answer::StatusConflict => StatusCode::CONFLICT,
        _ => [
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
            StatusCode::TOO_MANY_REQUESTS,
        ][times % 4],
    };
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": "on demand", "reason": if code == StatusCode::CONFLICT { "Conflict" } else { "InternalError" },
        "code": code.as_u16()});
    let response = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    let response = if answer == Answer::Busy { response.header(header::RETRY_AFTER, RETRY_AFTER) } else { response };
    response.body(Body::from(status.to_string().into_bytes())).expect("a response")
}

/// Forwards the request to the apiserver.
async fn pass(request: Request<Incoming>, apiserver: Client) -> Result<Response<Body>> {
    let (mut head, body) = request.into_parts();
    for name in [header::HOST, header::CONTENT_LENGTH, header::CONNECTION] {
        head.headers.remove(name);
    }
    let body = Body::from(body.collect().await?.to_bytes());
    Ok(apiserver.send(Request::from_parts(head, body)).await?)
}
