//! A proxy between operators and an agent. It counts statuses, and records the sequences of snapshots. It can switch to
//! another agent, change the wire version of snapshots, and withhold snapshots from the agent.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::*;

/// The place of the tag in a frame of the channel, and the tags of a status and of an unchanged one.
const TAG: usize = 4;
const STATUSES: [u8; 2] = [16, 17];

const OURS: &[u8] = b"{\"wireVersion\":1,";
const NEXT: &[u8] = b"{\"wireVersion\":2,";

/// A proxy whose address stays the same when its agent changes.
pub(super) struct Relay {
    pub(super) port: String,
    target: watch::Sender<String>,
    traffic: Arc<Traffic>,
}

/// The records of what operators and the agent have sent, and the settings for forwarding it.
#[derive(Default)]
struct Traffic {
    statuses: watch::Sender<u64>,
    sequences: Mutex<Vec<u64>>,
    newer: AtomicBool,
    withholds: AtomicBool,
}

impl Relay {
    pub(super) async fn to(agent: &Agent) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port().to_string();
        let (target, newest) = watch::channel(agent.control.clone());
        let traffic = Arc::<Traffic>::default();
        let notes = traffic.clone();
        tokio::spawn(async move {
            while let Ok((operator, _)) = listener.accept().await {
                tokio::spawn(pass(operator, newest.clone(), notes.clone()));
            }
        });
        Ok(Self { port, target, traffic })
    }

    /// Switches to another agent, as if the container had been restarted.
    pub(super) fn lead_to(&self, agent: &Agent) {
        self.target.send_replace(agent.control.clone());
    }

    /// Gives all later snapshots the next wire version, or the current one.
    pub(super) fn be_newer(&self, newer: bool) {
        self.traffic.newer.store(newer, Ordering::Relaxed);
    }

    /// Withholds all later snapshots from the agent, or forwards them again. The agent's status is forwarded in both
    /// cases.
    pub(super) fn withhold(&self, withholds: bool) {
        self.traffic.withholds.store(withholds, Ordering::Relaxed);
    }

    /// The sequences of all snapshots so far.
    pub(super) fn sequences(&self) -> Vec<u64> {
        self.traffic.sequences.lock().expect("no thread panics while it holds the lock").clone()
    }

    /// Waits until the agent has sent its status this many more times.
    pub(super) async fn told(&self, times: u64) -> Result<()> {
        let mut statuses = self.traffic.statuses.subscribe();
        let wanted = *statuses.borrow_and_update() + times;
        timeout(PATIENCE, statuses.wait_for(|count| *count >= wanted)).await.context("the agent sends no status")??;
        Ok(())
    }
}

impl Traffic {
    /// Records a message of an operator before it is forwarded. The first bytes of a snapshot arrive in one piece. Returns
    /// true for a snapshot.
    fn note(&self, piece: &mut [u8]) -> Result<bool> {
        let text = String::from_utf8_lossy(piece);
        let snapshot = text.split_once("\"sequence\":");
        if let Some((_, rest)) = snapshot {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            self.sequences.lock().expect("no thread panics while it holds the lock").push(digits.parse()?);
        }
        let is_snapshot = snapshot.is_some();
        let found = piece.windows(OURS.len()).position(|bytes| bytes == OURS);
        if let Some(at) = found.filter(|_| self.newer.load(Ordering::Relaxed)) {
            piece[at..at + NEXT.len()].copy_from_slice(NEXT);
        }
        Ok(is_snapshot)
    }
}

/// Forwards in both directions, until one side closes or the agent is switched.
async fn pass(operator: TcpStream, mut target: watch::Receiver<String>, traffic: Arc<Traffic>) -> Result<()> {
    let address = target.borrow_and_update().clone();
    let agent = TcpStream::connect(address).await?;
    let (mut from_operator, mut to_operator) = operator.into_split();
    let (mut from_agent, mut to_agent) = agent.into_split();
    let requests = async {
        let mut buffer = vec![0; 64 * 1024];
        let mut is_cut = false;
        loop {
            let piece = match from_operator.read(&mut buffer).await? {
                0 => return anyhow::Ok(()),
                length => &mut buffer[..length],
            };
            // After a withheld snapshot, nothing is forwarded, because the agent could not parse a partial stream.
            is_cut |= traffic.note(piece)? && traffic.withholds.load(Ordering::Relaxed);
            if !is_cut {
                to_agent.write_all(piece).await?;
            }
        }
    };
    let statuses = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let piece = match from_agent.read(&mut buffer).await? {
                0 => return anyhow::Ok(()),
                length => &buffer[..length],
            };
            // The agent writes each message at once, so its first bytes are the head of a frame.
            if piece.get(TAG).is_some_and(|tag| STATUSES.contains(tag)) {
                traffic.statuses.send_modify(|count| *count += 1);
            }
            to_operator.write_all(piece).await?;
        }
    };
    tokio::select! {
        done = requests => done,
        done = statuses => done,
        _ = target.changed() => Ok(()),
    }
}
