//! Serves the one listener of all agents: the channel over mutual TLS, like real agents.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use rand::Rng;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream},
    time::sleep_until,
};
use tokio_rustls::TlsAcceptor;
use weir_channel::{Channel, Outgoing, ToAgent, tag};
use weir_wire::{LevelsSent, Question};

use super::{agents::Agents, identities::Identities};
use crate::clock;

/// The maximum number of pending connections. A starting operator opens thousands at the same time.
const BACKLOG: u32 = 8192;
/// The longest time for writing a message to the operator.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A tenth of a second in nanoseconds. Statuses are sent at its start.
const TENTH: u32 = 100_000_000;

/// Listens on a free port. Returns the listener and the port.
pub(crate) fn listen() -> anyhow::Result<(TcpListener, u16)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let listener = socket.listen(BACKLOG).context("listen for the agents")?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Serves all agents, and never ends.
pub(crate) async fn serve(listener: TcpListener, agents: Arc<Agents>, identities: Arc<Identities>) -> Infallible {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                eprintln!("fleet: cannot accept a connection: {error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        // Other machines can also reach this port, but at an address that belongs to no agent.
        let number = match stream.local_addr().map(|address| address.ip()) {
            Ok(IpAddr::V4(address)) => agents.number(address),
            _ => None,
        };
        if let Some(number) = number
            && stream.set_nodelay(true).is_ok()
        {
            let (agents, identities) = (agents.clone(), identities.clone());
            tokio::spawn(converse(number, agents, identities, stream));
        }
    }
}

/// Serves one connection. Errors are ignored, because the operator connects again.
async fn converse(number: usize, agents: Arc<Agents>, identities: Arc<Identities>, stream: TcpStream) {
    let Some(server) = identities.server(number) else { return };
    let Ok(stream) = TlsAcceptor::from(server).accept(stream).await else { return };
    let _ = talk(number, &agents, Box::new(stream)).await;
}

/// Answers over the channel, until the channel ends.
async fn talk(
    number: usize,
    agents: &Agents,
    stream: impl AsyncRead + AsyncWrite + Unpin,
) -> anyhow::Result<Infallible> {
    let mut channel = Channel::new(stream);
    let mut asking = agents.asking().open(number);
    let mut last_sent = None;
    let (mut every, mut next_at) = (None, clock::timer_now());
    loop {
        if last_sent.is_none() || every.is_some() && next_at <= clock::timer_now() {
            let status = agents.status(number, &mut last_sent);
            let tag = if status.is_some() { tag::STATUS } else { tag::UNCHANGED };
            send(&mut channel, tag, status.unwrap_or_default().as_bytes()).await?;
            next_at = clock::timer_now() + every.map_or(Duration::ZERO, until_next);
        }
        tokio::select! {
            frame = channel.next() => match ToAgent::parse(frame?)? {
                ToAgent::Snapshot(body) => match agents.take(number, &body) {
                    Err(rejection) => send(&mut channel, tag::REJECTION, rejection.as_bytes()).await?,
                    Ok(acknowledgement) => {
                        send(&mut channel, tag::ACKNOWLEDGEMENT, acknowledgement.given().as_bytes()).await?;
                        if let Some(levels) = asking.joins() {
                            report(&mut channel, levels, 0).await?;
                        }
                    }
                },
                ToAgent::StatusRequest(request) => {
                    let interval = Duration::from_millis(request.every_millis);
                    every = Some(interval);
                    // Like real agents, not all agents send at the same time.
                    next_at = clock::timer_now() + until_next(interval.mul_f64(rand::rng().random_range(0.0..=1.0)));
                }
                ToAgent::Answers(answers) => {
                    if let Some(releases) = asking.answered(answers) {
                        report(&mut channel, Vec::new(), releases).await?;
                    }
                }
                ToAgent::Hello | ToAgent::Unknown(_) => {}
            },
            question = asking.question() => {
                send(&mut channel, tag::QUESTIONS, &serde_json::to_vec(&[question])?).await?;
            }
            () = sleep_until(next_at), if every.is_some() => {}
        }
    }
}

/// Sends questions that need no answer, and then the message that no more will follow.
async fn report<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    questions: Vec<Question>,
    releases: u64,
) -> anyhow::Result<()> {
    if !questions.is_empty() {
        send(channel, tag::QUESTIONS, &serde_json::to_vec(&questions)?).await?;
    }
    let sent = LevelsSent { is_complete: true, time: None, releases };
    send(channel, tag::LEVELS_SENT, &serde_json::to_vec(&sent)?).await
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    tag: u8,
    payload: &[u8],
) -> anyhow::Result<()> {
    let frame = Outgoing::new(tag, payload).context("a message is too large for a frame")?;
    Ok(channel.send(frame, WRITE_TIMEOUT).await?)
}

/// The time until the next status. Like real agents, it ends at the start of a tenth of a second.
fn until_next(every: Duration) -> Duration {
    let since_1970 = clock::since_1970();
    every - every.min(Duration::from_nanos(u64::from(since_1970.subsec_nanos() % TENTH)))
}
