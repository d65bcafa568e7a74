//! An agent for tests. It serves the operator's channel without TLS, enforces nothing, and misbehaves on demand.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use weir_channel::{Channel, ChannelError, Outgoing, ToAgent, ToOperator, tag};
use weir_wire::{
    ApplyReply, Fault, PolicyStatus, Rejection, RejectionKind, RuleStatus, Snapshot, SnapshotInForce, Status,
    WIRE_VERSION,
};

/// The timeout for sending a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The way in which an agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Good,
    /// Accepts connections and messages, and never responds.
    Silent,
    /// Sends a status that no agent sends.
    Garbage,
    /// Sends messages without an end.
    Endless,
    /// Sends a part of a message and closes the connection.
    Closing,
    /// Sends a message byte by byte, without an end.
    Trickling,
    /// Acknowledges another revision than the pushed one, and applies nothing.
    Lying,
    /// Rejects every snapshot.
    Invalid,
    /// Delays each message by this time.
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

/// The number of agents that handle a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Crowd {
    /// Returns the maximum number of snapshots that were in progress at the same time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    fn enter(self: &Arc<Self>) -> Present {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        Present(self.clone())
    }
}

/// Counts a snapshot in progress, even if the operator disconnects.
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

    /// Starts an agent that counts its snapshots in `crowd`.
    pub(crate) async fn start_in(manner: Manner, crowd: Arc<Crowd>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let inner = Inner { manner, instance: 1, in_force: None, puts: 0, refused: 0, counts: (0, 0) };
        let inner = Arc::new(Mutex::new(inner));
        let changed = Arc::new(watch::Sender::new(()));
        let shared = (inner.clone(), changed.clone(), crowd);
        let task = tokio::spawn(async move {
            // Dropping this set closes the connections.
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                connections.spawn(async move { drop(serve(stream, &shared).await) });
            }
        });
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

/// Serves the operator until the channel ends.
async fn serve(mut stream: TcpStream, shared: &Shared) -> Result<(), ChannelError> {
    let mut channel = Channel::new(&mut stream);
    let mut every = None;
    // The first message is a status.
    let mut snapshot = None;
    loop {
        let present = snapshot.as_ref().map(|_| shared.2.enter());
        shared.0.lock().unwrap().puts += usize::from(snapshot.is_some());
        let manner = shared.0.lock().unwrap().manner;
        match manner {
            Manner::Good | Manner::Invalid | Manner::Lying => {}
            Manner::Silent => std::future::pending().await,
            Manner::Garbage => send(&mut channel, Outgoing::new(tag::STATUS, b"<html>hello</html>")).await?,
            Manner::Endless => loop {
                send(&mut channel, ToOperator::Unknown(99).frame()).await?;
            },
            Manner::Closing => return Ok(stream.write_all(&[0, 0, 0, 9, tag::STATUS, b'{']).await?),
            Manner::Trickling => {
                stream.write_all(&[0, 1, 0, 0, tag::STATUS]).await?;
                loop {
                    stream.write_all(b" ").await?;
                    sleep(Duration::from_millis(50)).await;
                }
            }
            Manner::Slow(delay) => sleep(delay).await,
        }
        let message = snapshot.take().map_or_else(|| status(shared), |snapshot| apply(shared, snapshot));
        drop(present);
        send(&mut channel, message.frame()).await?;
        snapshot = next(&mut channel, &mut every).await?;
    }
}

/// Returns the next snapshot, or `None` when the next status is due.
async fn next(
    channel: &mut Channel<&mut TcpStream>,
    every: &mut Option<Duration>,
) -> Result<Option<Snapshot>, ChannelError> {
    loop {
        tokio::select! {
            frame = channel.next() => match ToAgent::parse(frame?)? {
                ToAgent::Snapshot(body) => {
                    return Ok(Some(serde_json::from_slice(&body).expect("the operator sends snapshots")));
                }
                ToAgent::StatusRequest(request) => *every = Some(Duration::from_millis(request.every_millis)),
                ToAgent::Hello | ToAgent::Answers(_) | ToAgent::Unknown(_) => {}
            },
            () = sleep(every.unwrap_or_default()), if every.is_some() => return Ok(None),
        }
    }
}

async fn send(channel: &mut Channel<&mut TcpStream>, frame: Option<Outgoing>) -> Result<(), ChannelError> {
    channel.send(frame.unwrap(), WRITE_TIMEOUT).await
}

fn apply(shared: &Shared, snapshot: Snapshot) -> ToOperator {
    let mut inner = shared.0.lock().unwrap();
    let refuse = |inner: &mut Inner, error, message: &str, faults| {
        inner.refused += 1;
        let in_force = inner.in_force.as_ref().map(in_force);
        ToOperator::Rejection(Box::new(Rejection { error, message: message.to_owned(), faults, in_force }))
    };
    if inner.manner == Manner::Invalid {
        let fault = Fault { path: "policies[0].rules[0]".to_owned(), message: "no".to_owned() };
        return refuse(&mut inner, RejectionKind::Invalid, "cannot enforce this", vec![fault]);
    }
    if inner.manner == Manner::Lying {
        let mut told = in_force(&snapshot);
        told.revision = "another".to_owned();
        return ToOperator::Acknowledgement(ApplyReply { in_force: told });
    }
    let stale = inner.in_force.as_ref().is_some_and(|now| {
        snapshot.sequence < now.sequence || (snapshot.sequence == now.sequence && snapshot.revision != now.revision)
    });
    if stale {
        return refuse(&mut inner, RejectionKind::Stale, "older than the snapshot in force", vec![]);
    }
    let reply = ApplyReply { in_force: in_force(&snapshot) };
    inner.in_force = Some(snapshot);
    drop(inner);
    shared.1.send_replace(());
    ToOperator::Acknowledgement(reply)
}

fn status(shared: &Shared) -> ToOperator {
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
    ToOperator::Status(Box::new(status))
}

fn in_force(snapshot: &Snapshot) -> SnapshotInForce {
    SnapshotInForce { sequence: snapshot.sequence, revision: snapshot.revision.clone(), since_unix_millis: 0 }
}
