//! Stands between the operator and an agent: leads elsewhere when told to, and speaks for a newer operator.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const OURS: &[u8] = b"{\"wireVersion\":1,";
const NEXT: &[u8] = b"{\"wireVersion\":2,";

/// An address that stays the same.
pub(super) struct Relay {
    pub(super) port: String,
    target: watch::Sender<String>,
    newer: Arc<AtomicBool>,
}

impl Relay {
    pub(super) async fn to(agent: &Agent) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port().to_string();
        let (target, newest) = watch::channel(agent.control.clone());
        let newer = Arc::new(AtomicBool::new(false));
        let is_newer = newer.clone();
        tokio::spawn(async move {
            while let Ok((operator, _)) = listener.accept().await {
                tokio::spawn(pass(operator, newest.clone(), is_newer.clone()));
            }
        });
        Ok(Self { port, target, newer })
    }

    /// Another agent takes the place, as when a container is started again.
    pub(super) fn lead_to(&self, agent: &Agent) {
        self.target.send_replace(agent.control.clone());
    }

    /// From now on the operator is of the next version of the wire, or of this one.
    pub(super) fn be_newer(&self, newer: bool) {
        self.newer.store(newer, Ordering::Relaxed);
    }
}

/// Passes on what both say, until one of them ends or there is another agent. A snapshot's first bytes come together.
async fn pass(operator: TcpStream, mut target: watch::Receiver<String>, newer: Arc<AtomicBool>) -> Result<()> {
    let address = target.borrow_and_update().clone();
    let agent = TcpStream::connect(address).await?;
    let (mut from_operator, mut to_operator) = operator.into_split();
    let (mut from_agent, mut to_agent) = agent.into_split();
    let requests = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let piece = match from_operator.read(&mut buffer).await? {
                0 => return anyhow::Ok(()),
                length => &mut buffer[..length],
            };
            let found = piece.windows(OURS.len()).position(|bytes| bytes == OURS);
            if let Some(at) = found.filter(|_| newer.load(Ordering::Relaxed)) {
                piece[at..at + NEXT.len()].copy_from_slice(NEXT);
            }
            to_agent.write_all(piece).await?;
        }
    };
    tokio::select! {
        done = requests => done,
        done = tokio::io::copy(&mut from_agent, &mut to_operator) => { done?; Ok(()) }
        _ = target.changed() => Ok(()),
    }
}
