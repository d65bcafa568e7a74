//! An agent for tests. It serves the operator's channel without TLS, enforces nothing, and misbehaves on demand.

use std::{
    sync::{Arc, Mutex},
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
use weir_wire::{ApplyReply, PolicyStatus, RuleStatus, Snapshot, SnapshotInForce, Status, WIRE_VERSION};

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
    /// Delays each message by this time.
    Slow(Duration),
}

#[derive(Debug)]
struct Inner {
    manner: Manner,
    in_force: Option<Snapshot>,
    puts: usize,
}

/// A running agent.
pub(crate) struct FakeAgent {
    pub(crate) url: String,
    inner: Arc<Mutex<Inner>>,
    changed: Arc<watch::Sender<()>>,
    task: JoinHandle<()>,
}

type Shared = (Arc<Mutex<Inner>>, Arc<watch::Sender<()>>);

impl FakeAgent {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let inner = Arc::new(Mutex::new(Inner { manner: Manner::Good, in_force: None, puts: 0 }));
        let changed = Arc::new(watch::Sender::new(()));
        let shared = (inner.clone(), changed.clone());
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

    pub(crate) fn puts(&self) -> usize {
        self.inner.lock().unwrap().puts
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
        shared.0.lock().unwrap().puts += usize::from(snapshot.is_some());
        let manner = shared.0.lock().unwrap().manner;
        match manner {
            Manner::Good => {}
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
    let reply = ApplyReply { in_force: in_force(&snapshot) };
    shared.0.lock().unwrap().in_force = Some(snapshot);
    shared.1.send_replace(());
    ToOperator::Acknowledgement(reply)
}

fn status(shared: &Shared) -> ToOperator {
    let inner = shared.0.lock().unwrap();
    let policies = inner.in_force.iter().flat_map(|snapshot| &snapshot.policies);
    let rule = |rule: &weir_wire::Rule| RuleStatus { name: rule.name.clone(), ..RuleStatus::default() };
    let status = Status {
        wire_version: WIRE_VERSION,
        instance: "1".to_owned(),
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
        ..Status::default()
    };
    ToOperator::Status(Box::new(status))
}

fn in_force(snapshot: &Snapshot) -> SnapshotInForce {
    SnapshotInForce { sequence: snapshot.sequence, revision: snapshot.revision.clone(), since_unix_millis: 0 }
}
