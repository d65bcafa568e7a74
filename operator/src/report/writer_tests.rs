//! Tests the writer with an apiserver that fails on demand, over real sockets.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use weir_api::{
    Drift, DriftReason, Enforcement, Fleet, LastKnownGood, RateLimitPolicyStatus, RateLimitStoreStatus, Summary,
};

use super::{
    super::{ClusterSink, FileSink, StoreReport},
    *,
};
use crate::{leader::Term, tables::changed, world::ObjectKey};

const PATIENCE: Duration = Duration::from_secs(20);
const UID: &str = "1";

/// The result of a status write. The client in these tests itself retries 429, 503 and 504.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16),
    Plain404,
    Garbage,
}

/// The scripted responses to status writes, and the requests that arrived. After the script, all writes succeed.
#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// The policy's current UID.
    uid: String,
    writes: Vec<Value>,
    versions: Vec<Value>,
    /// The scripted responses to Events. After the script, there is no response.
    event_answers: VecDeque<u16>,
    events: Vec<Value>,
    /// The names of the stores whose status was written or refused.
    stores: Vec<String>,
    /// The fields of statuses that the definitions do not have, as paths without the entries of lists.
    undeclared: Vec<&'static str>,
}

type Shared = Arc<Mutex<Script>>;

async fn answer(State(script): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response {
    if uri.path().ends_with("/events") {
        let next = script.lock().unwrap().event(&body);
        return match next {
            Some(201) => (StatusCode::CREATED, body).into_response(),
            Some(code) => (StatusCode::from_u16(code).unwrap(), axum::Json(failure(code))).into_response(),
            None => std::future::pending().await,
        };
    }
    let mut script = script.lock().unwrap();
    if method == Method::GET {
        let metadata = json!({"name": "checkout", "namespace": "shop", "uid": script.uid, "resourceVersion": "42"});
        let items = json!([{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}]);
        let kind = "PartialObjectMetadataList";
        let body = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": {}, "items": items});
        return axum::Json(body).into_response();
    }
    if let Some((_, store)) = uri.path().split_once("/ratelimitstores/") {
        if let Some(refusal) = script.of_undeclared(&serde_json::from_slice(&body).unwrap()) {
            return refusal;
        }
        script.stores.push(store.to_owned());
        let code = StatusCode::UNPROCESSABLE_ENTITY;
        return match store.starts_with("refused") {
            true => (code, axum::Json(failure(code.as_u16()))).into_response(),
            false => axum::Json(serde_json::from_slice::<Value>(&body).unwrap()).into_response(),
        };
    }
    assert!(method == Method::PATCH && uri.path().ends_with("/ratelimitpolicies/checkout/status"), "{method} {uri}");
    let body: Value = serde_json::from_slice(&body).unwrap();
    script.writes.push(body["status"].clone());
    script.versions.push(body["metadata"]["resourceVersion"].clone());
    if let Some(refusal) = script.of_undeclared(&body) {
        return refusal;
    }
    match script.answers.pop_front() {
        None => axum::Json(body).into_response(),
        Some(Answer::Plain404) => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        Some(Answer::Garbage) => (StatusCode::OK, "<html>").into_response(),
        Some(Answer::Status(code)) => (StatusCode::from_u16(code).unwrap(), axum::Json(failure(code))).into_response(),
    }
}

/// Adds the apiserver's fault for each value at this path.
fn present(value: &Value, names: &[&str], path: &str, faults: &mut Vec<String>) {
    match (value, names) {
        (Value::Null, _) => {}
        (Value::Array(entries), _) => {
            entries.iter().for_each(|entry| present(entry, names, &format!("{path}[pod={}]", entry["pod"]), faults));
        }
        (_, []) => faults.push(format!("{path}: field not declared in schema")),
        (_, [name, rest @ ..]) => present(&value[*name], rest, &format!("{path}.{name}"), faults),
    }
}

fn failure(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "Other" };
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {},
        "message": "on demand", "reason": reason, "code": code})
}

impl Script {
    /// Returns the apiserver's answer to a status with undeclared fields.
    fn of_undeclared(&self, body: &Value) -> Option<Response> {
        let mut faults = Vec::new();
        for field in &self.undeclared {
            present(&body["status"], &field.split('.').collect::<Vec<_>>(), ".status", &mut faults);
        }
        let mut failure = failure(500);
        failure["message"] = json!(format!("failed to create typed patch object: errors:\n  {}", faults.join("\n  ")));
        let refusal = (StatusCode::INTERNAL_SERVER_ERROR, axum::Json(failure));
        (!faults.is_empty()).then(|| refusal.into_response())
    }

    /// Records an Event, and returns the scripted response.
    fn event(&mut self, event: &[u8]) -> Option<u16> {
        self.events.push(serde_json::from_slice(event).unwrap());
        self.event_answers.pop_front()
    }
}

struct Stage {
    script: Shared,
    metrics: Metrics,
    messages: mpsc::UnboundedSender<Message>,
    written: mpsc::Receiver<WrittenStatus>,
    writer: JoinHandle<()>,
    /// The address of the apiserver, even while it is not running.
    address: SocketAddr,
    apiserver: Option<JoinHandle<()>>,
}

impl Stage {
    async fn set(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stage = Self::without_apiserver(listener.local_addr().unwrap());
        stage.script.lock().unwrap().answers.extend(answers);
        stage.serve(listener);
        stage
    }

    fn without_apiserver(address: SocketAddr) -> Self {
        let script = Arc::new(Mutex::new(Script { uid: UID.to_owned(), ..Script::default() }));
        let client = Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let sink = Sink::Cluster(ClusterSink::new(client, "test".to_owned()));
        let (messages, outgoing) = mpsc::unbounded_channel();
        let (sender, written) = mpsc::channel(16);
        let metrics = Metrics::default();
        let writer = tokio::spawn(run(sink, outgoing, sender, metrics.clone()));
        Self { script, metrics, messages, written, writer, address, apiserver: None }
    }

    fn serve(&mut self, listener: TcpListener) {
        let router = Router::new().fallback(answer).with_state(self.script.clone());
        self.apiserver = Some(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }));
    }

    fn write(&self, number: u64) {
        self.write_in(number, Term::unbounded());
    }

    fn write_in(&self, number: u64, term: Term) {
        self.write_status(number, status(number), term);
    }

    fn write_status(&self, number: u64, status: RateLimitPolicyStatus, term: Term) {
        let key = ObjectKey::new("shop", "checkout");
        let version = Some(number.to_string());
        let report = Report { key, uid: UID.to_owned(), file: None, changed: None, number, status, version, term };
        self.messages.send(Message::Status(Box::new(report))).unwrap();
    }

    async fn is_written(&mut self, number: u64) {
        let written = timeout(PATIENCE, self.written.recv())
            .await
            .expect("the status must be written in time")
            .expect("the writer must report the write");
        assert_eq!((written.number, written.stored.status), (number, Some(Box::new(status(number)))));
    }

    /// Checks that the writer ends without any further write.
    async fn ends(self) -> usize {
        drop(self.messages);
        timeout(PATIENCE, self.writer).await.expect("the writer must end").unwrap();
        self.apiserver.inspect(JoinHandle::abort);
        self.script.lock().unwrap().writes.len()
    }

    fn count(&self, result: &str) -> u64 {
        let name = format!("weir_operator_status_writes_total{{result=\"{result}\"}} ");
        self.metrics.render(Duration::ZERO).lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let all = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn status(number: u64) -> RateLimitPolicyStatus {
    let summary = Summary { rules: 1, enforced: format!("{number}/9"), limited: "0.0%".to_owned() };
    RateLimitPolicyStatus { summary: Some(summary), ..RateLimitPolicyStatus::default() }
}

#[tokio::test]
async fn a_failed_write_is_retried_until_it_succeeds() {
    let failures = [Answer::Status(500), Answer::Status(409), Answer::Plain404, Answer::Garbage, Answer::Status(500)];
    let mut stage = Stage::set(&failures).await;
    stage.write(1);
    stage.is_written(1).await;
    assert_eq!((stage.count("error"), stage.count("ok")), (failures.len() as u64, 1));
    stage.write(2);
    stage.is_written(2).await;
    assert_eq!(stage.ends().await, failures.len() + 2);
}

#[tokio::test]
async fn a_conflict_is_retried_with_the_new_version() {
    let mut stage = Stage::set(&[Answer::Status(409)]).await;
    stage.write(1);
    stage.is_written(1).await;
    assert_eq!(stage.script.lock().unwrap().versions, ["1", "42"]);
}

#[tokio::test]
async fn a_status_is_written_without_the_fields_that_the_crd_does_not_have() {
    let drift =
        |pod: &str| Drift { pod: pod.to_owned(), reason: DriftReason::Refused, message: Some("why".to_owned()) };
    let enforcement =
        Enforcement { pods_targeted: 2, pods_enforcing: 0, drifted: vec![drift("web.1"), drift("web-2")] };
    for (undeclared, changes) in [
        (vec![], "{}"),
        (vec!["fleet"], "{fleet: null}"),
        (vec!["lastKnownGood", "fleet"], "{lastKnownGood: null, fleet: null}"),
        (
            vec!["enforcement.drifted.message"],
            "{enforcement: {drifted: [{pod: web.1, reason: Refused}, {pod: web-2, reason: Refused}]}}",
        ),
    ] {
        let mut stage = Stage::set(&[]).await;
        stage.script.lock().unwrap().undeclared.clone_from(&undeclared);
        let whole = RateLimitPolicyStatus {
            fleet: Some(Fleet { pods_with_share: 0, by_rule: Vec::new() }),
            last_known_good: Some(LastKnownGood { generation: 1, spec: "{}".to_owned() }),
            enforcement: Some(enforcement.clone()),
            ..status(1)
        };
        stage.write_status(1, whole.clone(), Term::unbounded());
        let written = timeout(PATIENCE, stage.written.recv()).await.expect("the status must be written in time");
        let expected = changed(&serde_json::to_value(whole).unwrap(), changes);
        assert_eq!(json!(written.unwrap().stored.status), expected, "{undeclared:?}");
        assert_eq!(stage.ends().await, if undeclared.is_empty() { 1 } else { 2 }, "{undeclared:?}");
    }
}

#[tokio::test]
async fn nothing_is_written_outside_of_its_term() {
    let stage = Stage::set(&[]).await;
    stage.write_in(1, Term::over());
    assert_eq!(stage.ends().await, 0);
}

/// The write of the first status fails while the operator stops, and the term of the next one has ended.
#[tokio::test(start_paused = true)]
async fn the_writer_ends_when_the_last_status_is_of_a_term_that_has_ended() {
    let stage = Stage::without_apiserver(([127, 0, 0, 1], 1).into());
    stage.write(1);
    stage.write_in(2, Term::over());
    assert_eq!(stage.ends().await, 0);
}

#[tokio::test]
async fn a_newer_status_is_written_instead_of_one_that_failed() {
    let mut stage = Stage::set(&[Answer::Status(500); 3]).await;
    stage.write(1);
    until("the first write fails", || stage.count("error") > 0).await;
    stage.write(2);
    stage.is_written(2).await;
    let writes = stage.script.lock().unwrap().writes.clone();
    assert_eq!(writes.last(), Some(&serde_json::to_value(status(2)).unwrap()));
    assert_eq!(stage.ends().await, 4);
}

#[tokio::test]
async fn writes_to_a_deleted_or_replaced_policy_are_dropped() {
    let stage = Stage::set(&[Answer::Status(404)]).await;
    stage.write(1);
    assert_eq!(stage.ends().await, 1);

    let stage = Stage::set(&[Answer::Status(409)]).await;
    stage.script.lock().unwrap().uid = "2".to_owned();
    stage.write(1);
    assert_eq!(stage.ends().await, 1);
}

#[tokio::test]
async fn a_status_is_written_when_the_apiserver_returns() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut stage = Stage::without_apiserver(free);
    stage.write(1);
    until("the apiserver is not running", || stage.count("error") >= 2).await;
    let listener = TcpListener::bind(stage.address).await.unwrap();
    stage.serve(listener);
    stage.is_written(1).await;
    assert_eq!(stage.count("ok"), 1);
}

fn announcement(policy: &str, note: &str) -> Message {
    let key = ObjectKey::new("shop", policy);
    let (reason, note) = ("Drifted", note.to_owned());
    let notice = Notice { warning: true, reason, note, took: None };
    Message::Announce(Box::new(Announcement { key, uid: UID.to_owned(), notice, term: Term::unbounded() }))
}

#[tokio::test]
async fn hanging_events_do_not_delay_statuses() {
    let mut stage = Stage::set(&[]).await;
    for number in 1..=3 {
        for policy in 0..ANNOUNCEMENTS {
            stage.messages.send(announcement(&format!("checkout-{policy}"), "")).unwrap();
        }
        stage.write(number);
        stage.is_written(number).await;
    }
}

#[tokio::test]
async fn a_retried_event_is_written_once() {
    for (answers, tries) in [([500, 500, 201], 3), ([500, 409, 201], 2), ([403, 201, 201], 1)] {
        let stage = Stage::set(&[]).await;
        let script = stage.script.clone();
        script.lock().unwrap().event_answers.extend(answers);
        stage.messages.send(announcement("checkout", "a is Unreachable")).unwrap();
        stage.ends().await;
        let events = script.lock().unwrap().events.clone();
        assert!(events.iter().all(|event| *event == events[0]), "{events:#?}");
        assert_eq!(events.len(), tries, "{answers:?}");
    }
}

/// Each Event announces a separate fact, about another pod.
#[tokio::test]
async fn pods_that_flap_do_not_flood_the_events_of_their_policy() {
    let stage = Stage::set(&[]).await;
    let script = stage.script.clone();
    script.lock().unwrap().event_answers.extend([201; 100]);
    for pod in 0..100 {
        stage.messages.send(announcement("checkout", &format!("web-{pod} is Unreachable"))).unwrap();
    }
    stage.messages.send(announcement("other", "a is Unreachable")).unwrap();
    stage.ends().await;
    let events = script.lock().unwrap().events.clone();
    assert_eq!(events.len(), 26, "{events:#?}");
    assert_eq!(events[25]["regarding"]["name"], "other");
}

/// The apiserver refuses the statuses of some stores again and again.
#[tokio::test]
async fn a_refused_status_of_a_store_does_not_hold_back_others() {
    let mut stage = Stage::set(&[]).await;
    // The definition of stores is older than the operator.
    stage.script.lock().unwrap().undeclared.push("podsUsing");
    let write = |name: String| {
        let (key, status) = (ObjectKey::new("shop", name), RateLimitStoreStatus::default());
        let report = StoreReport { key, uid: UID.to_owned(), status, term: Term::unbounded() };
        stage.messages.send(Message::Store(Box::new(report))).unwrap();
    };
    (0..2 * WRITERS).for_each(|number| write(format!("refused-{number}")));
    write("well".to_owned());
    let has_last = || stage.script.lock().unwrap().stores.contains(&"well/status".to_owned());
    until("the apiserver gets the status of the last store", has_last).await;
    stage.write(1);
    stage.is_written(1).await;
    let script = stage.script.clone();
    stage.ends().await;
    let stores = script.lock().unwrap().stores.clone();
    assert_eq!(stores.iter().filter(|store| *store == "well/status").count(), 1, "{stores:?}");
}

/// A folder has the name of the temporary file, so the status file cannot be written.
#[tokio::test(start_paused = true)]
async fn the_stores_of_a_file_are_written_after_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let (obstacle, status) = (directory.path().join(".a.status.yaml.tmp"), directory.path().join("a.status.yaml"));
    std::fs::create_dir(&obstacle).unwrap();
    let sink = Sink::Files(Arc::new(FileSink::new(directory.path().to_owned())));
    let ((messages, outgoing), (written, _unused)) = (mpsc::unbounded_channel(), mpsc::channel(1));
    tokio::spawn(run(sink, outgoing, written, Metrics::default()));
    let text = "apiVersion: weir.dev/v1alpha1\nkind: RateLimitStore\nmetadata: {name: s, namespace: shop}\n\
                spec: {redis: {endpoints: [\"r:1\"]}}\n";
    let stores = crate::documents::read(text).stores;
    assert_eq!(stores.len(), 1);
    messages.send(Message::Stores("a.yaml".into(), stores)).unwrap();
    // The time of the test passes only while nothing runs, not even a write.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!status.exists());
    std::fs::remove_dir(&obstacle).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(std::fs::read_to_string(&status).is_ok_and(|text| text.contains("RateLimitStore")));
}
