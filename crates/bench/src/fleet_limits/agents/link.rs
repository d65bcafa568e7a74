//! A proxy between the operator and one agent, which can hold all bytes.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// The largest piece that is forwarded in one step.
const PIECE: usize = 16 * 1024;

/// The proxy of one agent. It ends when this value is dropped.
pub(super) struct Link {
    pub(super) address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Link {
    pub(super) async fn start(agent: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (is_cut, state) = watch::channel(false);
        tokio::spawn(accept(listener, agent, state));
        Ok(Self { address, is_cut })
    }

    /// Holds all bytes from now on, or forwards them again.
    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

async fn accept(listener: TcpListener, agent: SocketAddr, mut state: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender is gone.
            _ = until_dropped(state.clone()) => return,
        };
        let Ok((operator, _)) = accepted else { continue };
        if state.wait_for(|is_cut| !is_cut).await.is_err() {
            return;
        }
        let Ok(agent) = TcpStream::connect(agent).await else { continue };
        let _ = (operator.set_nodelay(true), agent.set_nodelay(true));
        let ((from_operator, to_operator), (from_agent, to_agent)) = (operator.into_split(), agent.into_split());
        tokio::spawn(forward(from_operator, to_agent, state.clone()));
        tokio::spawn(forward(from_agent, to_operator, state.clone()));
    }
}

async fn until_dropped(mut state: watch::Receiver<bool>) {
    while state.changed().await.is_ok() {}
}

/// Forwards until the connection ends.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<bool>) {
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece).await.unwrap_or(0);
        if state.wait_for(|is_cut| !is_cut).await.is_err() || count == 0 || to.write_all(&piece[..count]).await.is_err()
        {
            // Dropping the halves closes the connection.
            return;
        }
    }
}
