//! Finds the app: at its configured address, or on the other loopback address.
//!
//! For some apps `localhost` is `127.0.0.1`, for others `[::1]`, and for most both. The agent cannot find out which one
//! an app uses without connecting. So it first tries the loopback address on which it last found the app. It tries the
//! other address only if nothing listens on the first. It must never connect to itself.
//!
//! An app that stops closes its port and its idle connections, which its clients detect. The agent's clients cannot
//! detect this, so the agent closes their connections, too. It checks the app as soon as the app closes an idle
//! connection or refuses a new one, without polling. `weir-agent leave` cannot replace this check: without a `preStop`
//! hook in the app's container, the app gets SIGTERM before the agent learns of the deletion.

use std::{
    convert::Infallible,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{net::TcpStream, sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::connect::{ConnectError, connect};

/// The minimum pause between two checks of the app. A check costs one connection over loopback.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// The app's address, shared by all workers.
#[derive(Debug)]
pub(crate) struct AppAddress {
    named: SocketAddr,
    /// The same port on the other loopback address.
    other: Option<SocketAddr>,
    /// The app was last found on the other address.
    on_other: AtomicBool,
    /// Notified when the app may be about to stop.
    suspected: Notify,
    drain: CancellationToken,
    up: ArcSwap<CancellationToken>,
}

impl AppAddress {
    /// `named` is the configured address, `listen` the agent's own.
    pub(crate) fn new(named: SocketAddr, listen: SocketAddr, drain: &CancellationToken) -> Self {
        let other = match named.ip() {
            IpAddr::V4(Ipv4Addr::LOCALHOST) => Some(Ipv6Addr::LOCALHOST.into()),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(Ipv4Addr::LOCALHOST.into()),
            _ => None,
        };
        let other = other.map(|ip| SocketAddr::new(ip, named.port()));
        let agent = |other: &SocketAddr| {
            other.port() == listen.port() && (other.ip() == listen.ip().to_canonical() || listen.ip().is_unspecified())
        };
        let other = other.filter(|other| !agent(other));
        let (on_other, suspected) = Default::default();
        let up = ArcSwap::from_pointee(drain.child_token());
        Self { named, other, on_other, suspected, drain: drain.clone(), up }
    }

    /// The configured address.
    pub(in super::super) fn named(&self) -> SocketAddr {
        self.named
    }

    /// Whether the app refuses connections.
    pub(crate) async fn is_down(&self) -> bool {
        matches!(self.reach().await, Err(ConnectError::Refused(_, error)) if error.kind() == ErrorKind::ConnectionRefused)
    }

    /// Returns once the app refuses connections.
    pub(crate) async fn gone(&self) {
        while !self.is_down().await {
            sleep(CHECK_PAUSE).await;
        }
    }

    /// A token that is cancelled when the app refuses connections, or when the drain begins. Call this function again
    /// after a cancellation, because the app may accept connections again.
    pub(in super::super) fn up(&self) -> CancellationToken {
        CancellationToken::clone(&self.up.load())
    }

    /// Reports that the app closed an idle connection, so the app may be about to stop.
    pub(in super::super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    #[cfg(test)]
    pub(in super::super) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// Checks the app whenever `suspect` was called.
    pub(crate) async fn follow(&self) -> Infallible {
        loop {
            self.suspected.notified().await;
            if self.is_down().await {
                tracing::info!("the app refuses connections: closing idle client connections");
                self.up.load().cancel();
                while self.is_down().await {
                    sleep(CHECK_PAUSE).await;
                }
                tracing::info!("the app accepts connections again");
                self.up.store(Arc::new(self.drain.child_token()));
            }
            sleep(CHECK_PAUSE).await;
        }
    }

    /// Opens a connection to the app.
    pub(in super::super) async fn connect(&self) -> Result<TcpStream, ConnectError> {
        let reached = self.reach().await;
        if matches!(reached, Err(ConnectError::Refused(..))) {
            self.suspect();
        }
        reached
    }

    async fn reach(&self) -> Result<TcpStream, ConnectError> {
        let Some(other) = self.other else { return connect(self.named).await };
        let on_other = self.on_other.load(Relaxed);
        let (first, second) = if on_other { (other, self.named) } else { (self.named, other) };
        match connect(first).await {
            Err(refused @ ConnectError::Refused(..)) => match connect(second).await {
                Ok(stream) => {
                    self.on_other.store(!on_other, Relaxed);
                    Ok(stream)
                }
                // Nothing listens on either address. The log names the address that worked last.
                Err(_) => Err(refused),
            },
            connected => connected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_has_another_address_and_never_the_agents_own() {
        for (named, listen, other) in [
            ("127.0.0.1:80", "[::]:8480", Some("[::1]:80")),
            ("[::1]:80", "[::]:8480", Some("127.0.0.1:80")),
            ("127.0.0.2:80", "[::]:8480", None),
            ("10.0.0.1:80", "[::]:8480", None),
            ("[2001:db8::1]:80", "[::]:8480", None),
            ("127.0.0.1:80", "[::1]:80", None),
            ("[::1]:80", "127.0.0.1:80", None),
            ("[::1]:80", "[::ffff:127.0.0.1]:80", None),
            ("[::1]:80", "0.0.0.0:80", None),
            ("127.0.0.1:80", "10.0.0.1:80", Some("[::1]:80")),
        ] {
            let address = AppAddress::new(
                named.parse().expect("valid"),
                listen.parse().expect("valid"),
                &CancellationToken::new(),
            );
            assert_eq!(address.other, other.map(|other| other.parse().expect("valid")), "{named} behind {listen}");
        }
    }
}
