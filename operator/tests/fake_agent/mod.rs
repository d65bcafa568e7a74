//! An agent for tests. It serves the control API, enforces nothing, and misbehaves on demand.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use weir_wire::{
    ApplyReply, Fault, PolicyStatus, Rejection, RejectionKind, RuleStatus, Snapshot, SnapshotInForce, Status,
    WIRE_VERSION,
};

/// The way in which an agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Good,
    /// Accepts connections and requests, and never responds.
    Silent,
    /// Responds with 200 and a body that no agent sends.
    Garbage,
    /// Responds with an endless body.
    Endless,
    /// Starts a response and closes the connection.
    Closing,
    /// Responds byte by byte, without an end.
    Trickling,
    /// Acknowledges another revision than the pushed one, and applies nothing.
    Lying,
    /// Rejects every snapshot.
    Invalid,
    /// Delays each response by this time.
    Slow(Duration),
}

#[derive(Debug)]
struct Inner {
    manner: Manner,
    instance: u32,
    in_force: Option<Snapshot>,
    puts: usize,
    refused: usize,
    counts: (u64, u64),
}

/// The number of agents with a request in progress.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Crowd {
    /// Returns the maximum number of requests that were in progress at the same time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    fn enter(self: &Arc<Self>) -> Present {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        Present(self.clone())
    }
}

/// Counts a request in progress, even if its client disconnects.
struct Present(Arc<Crowd>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running agent.
pub(crate) struct FakeAgent {
    pub(crate) url: String,
    inner: Arc<Mutex<Inner>>,
    changed: Arc<watch::Sender<()>>,
    task: JoinHandle<()>,
}

type Shared = (Arc<Mutex<Inner>>, Arc<watch::Sender<()>>, Arc<Crowd>);

impl FakeAgent {
    pub(crate) async fn start(manner: Manner) -> Self {
        Self::start_in(manner, Arc::default()).await
    }

    /// Starts an agent that counts its requests in `crowd`.
    pub(crate) async fn start_in(manner: Manner, crowd: Arc<Crowd>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let inner = Inner { manner, instance: 1, in_force: None, puts: 0, refused: 0, counts: (0, 0) };
        let inner = Arc::new(Mutex::new(inner));
        let changed = Arc::new(watch::Sender::new(()));
        let router = Router::new().route("/v1/config", put(config)).route("/v1/status", get(status)).with_state((
            inner.clone(),
            changed.clone(),
            crowd,
        ));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner, changed, task }
    }

    pub(crate) fn set(&self, manner: Manner) {
        self.inner.lock().unwrap().manner = manner;
    }

    /// Acts like a new process at the same address: nothing in force, counters at zero.
    pub(crate) fn restart(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.instance += 1;
        inner.in_force = None;
        inner.counts = (0, 0);
    }

    /// Acts as if another client had pushed other content with this sequence.
    pub(crate) fn pretend(&self, sequence: u64) {
        let other = Snapshot {
            wire_version: WIRE_VERSION,
            sequence,
            revision: "other".to_owned(),
            policies: vec![],
            stores: vec![],
        };
        self.inner.lock().unwrap().in_force = Some(other);
    }

    pub(crate) fn count(&self, allowed: u64, limited: u64) {
        self.inner.lock().unwrap().counts = (allowed, limited);
    }

    pub(crate) fn puts(&self) -> usize {
        self.inner.lock().unwrap().puts
    }

    pub(crate) fn refused(&self) -> usize {
        self.inner.lock().unwrap().refused
    }

    pub(crate) fn in_force(&self) -> Option<Snapshot> {
        self.inner.lock().unwrap().in_force.clone()
    }

    /// Waits until the snapshot in force satisfies `wanted`; the caller limits the time.
    pub(crate) async fn until(&self, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(snapshot) = self.in_force().filter(&wanted) {
                return snapshot;
            }
            changed.changed().await.unwrap();
        }
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn misbehave(shared: &Shared) -> Option<Response> {
    let manner = shared.0.lock().unwrap().manner;
    match manner {
        Manner::Good | Manner::Invalid | Manner::Lying => None,
        Manner::Closing => {
            let broken = futures::stream::iter([Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("gone"))]);
            Some(axum::body::Body::from_stream(broken).into_response())
        }
        Manner::Silent => std::future::pending().await,
        Manner::Trickling => {
            let bytes = futures::stream::unfold((), async |()| {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
            });
            Some(axum::body::Body::from_stream(bytes).into_response())
        }
        Manner::Garbage => Some((StatusCode::OK, "<html>hello</html>").into_response()),
        Manner::Endless => Some((StatusCode::OK, vec![b' '; 8 * 1024 * 1024]).into_response()),
        Manner::Slow(delay) => {
            tokio::time::sleep(delay).await;
            None
        }
    }
}

async fn config(State(shared): State<Shared>, body: Bytes) -> Response {
    let _present = shared.2.enter();
    shared.0.lock().unwrap().puts += 1;
    if let Some(response) = misbehave(&shared).await {
        return response;
    }
    let snapshot: Snapshot = serde_json::from_slice(&body).expect("the operator sends snapshots");
    let mut inner = shared.0.lock().unwrap();
    let refuse = |inner: &mut Inner, code, error, message: &str, faults| {
        inner.refused += 1;
        let in_force = inner.in_force.as_ref().map(in_force);
        (code, Json(Rejection { error, message: message.to_owned(), faults, in_force })).into_response()
    };
    if inner.manner == Manner::Invalid {
        let fault = Fault { path: "policies[0].rules[0]".to_owned(), message: "no".to_owned() };
        let code = StatusCode::UNPROCESSABLE_ENTITY;
        return refuse(&mut inner, code, RejectionKind::Invalid, "cannot enforce this", vec![fault]);
    }
    if inner.manner == Manner::Lying {
        let mut told = in_force(&snapshot);
        told.revision = "another".to_owned();
        return Json(ApplyReply { in_force: told }).into_response();
    }
    let stale = inner.in_force.as_ref().is_some_and(|now| {
        snapshot.sequence < now.sequence || (snapshot.sequence == now.sequence && snapshot.revision != now.revision)
    });
    if stale {
        return refuse(
            &mut inner,
            StatusCode::CONFLICT,
            RejectionKind::Stale,
            "older than the snapshot in force",
            vec![],
        );
    }
    let reply = ApplyReply { in_force: in_force(&snapshot) };
    inner.in_force = Some(snapshot);
    drop(inner);
    shared.1.send_replace(());
    Json(reply).into_response()
}

async fn status(State(shared): State<Shared>) -> Response {
    if let Some(response) = misbehave(&shared).await {
        return response;
    }
    let inner = shared.0.lock().unwrap();
    let policies = inner.in_force.iter().flat_map(|snapshot| &snapshot.policies);
    let (allowed, limited) = inner.counts;
    let rule = |rule: &weir_wire::Rule| RuleStatus {
        name: rule.name.clone(),
        allowed,
        limited,
        shadow_limited: 0,
        waited: 0,
        keys: None,
    };
    let status = Status {
        wire_version: WIRE_VERSION,
        instance: inner.instance.to_string(),
        agent_version: "fake".to_owned(),
        uptime_millis: 1000,
        in_force: inner.in_force.as_ref().map(in_force),
        policies: policies
            .map(|policy| PolicyStatus {
                uid: policy.uid.clone(),
                namespace: policy.namespace.clone(),
                name: policy.name.clone(),
                revision: policy.revision.clone(),
                rules: policy.rules.iter().map(rule).collect(),
            })
            .collect(),
        stores: Vec::new(),
    };
    Json(status).into_response()
}

fn in_force(snapshot: &Snapshot) -> SnapshotInForce {
    SnapshotInForce { sequence: snapshot.sequence, revision: snapshot.revision.clone(), since_unix_millis: 0 }
}
