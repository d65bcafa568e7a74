//! The open connections of a server, at most a fixed number.
//!
//! If the server has no capacity for another connection, it closes the oldest connection of the address that has the
//! most. So no single pod can keep others out. Connections that have proven who they are close last.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    opened: u64,
    /// The connections by their number, so the oldest is the first.
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    peer: IpAddr,
    is_proven: bool,
    close: CancellationToken,
}

/// An open connection. It makes space for another one when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    number: u64,
    peer: IpAddr,
    close: CancellationToken,
    connections: Arc<Connections>,
}

impl Connections {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, table: Mutex::default() })
    }

    /// Opens a connection, and closes another one if there are too many.
    pub(super) fn open(self: &Arc<Self>, peer: IpAddr) -> Connection {
        let mut table = self.table();
        while table.open.len() >= self.most
            && let Some(evicted) = table.evicted().and_then(|number| table.open.remove(&number))
        {
            evicted.close.cancel();
        }
        let number = table.opened;
        table.opened += 1;
        let close = CancellationToken::new();
        table.open.insert(number, Open { peer, is_proven: false, close: close.clone() });
        Connection { number, peer, close, connections: Arc::clone(self) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Returns the connection to close: the oldest one of the address that has the most.
    fn evicted(&self) -> Option<u64> {
        let all_proven = self.open.values().all(|open| open.is_proven);
        let candidates = || self.open.iter().filter(|(_, open)| all_proven || !open.is_proven);
        let mut counts = HashMap::<IpAddr, usize>::new();
        candidates().for_each(|(_, open)| *counts.entry(open.peer).or_default() += 1);
        let most = counts.values().copied().max()?;
        candidates().find(|(_, open)| counts[&open.peer] == most).map(|(number, _)| *number)
    }
}

impl Connection {
    /// Returns a connection of a server without others.
    #[cfg(test)]
    pub(crate) fn of(peer: IpAddr) -> Self {
        Connections::new(1).open(peer)
    }

    /// The address of the client.
    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Records that the client has proven who it is.
    pub(crate) fn set_proven(&self) {
        if let Some(open) = self.connections.table().open.get_mut(&self.number) {
            open.is_proven = true;
        }
    }

    /// Waits until the connection must close.
    pub(super) async fn evicted(&self) {
        self.close.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.table().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_open(connection: &Connection) -> bool {
        !connection.close.is_cancelled()
    }

    #[test]
    fn an_address_with_many_connections_keeps_no_other_out() {
        let connections = Connections::new(4);
        let victim = connections.open(peer(1));
        let many: Vec<_> = (0..100).map(|_| connections.open(peer(2))).collect();
        assert!(is_open(&victim));
        assert_eq!(many.iter().filter(|it| is_open(it)).count(), 3);
        assert!(many[97..].iter().all(is_open), "the oldest close first");
        let others: Vec<_> = (3..6).map(|last| connections.open(peer(last))).collect();
        assert!(others.iter().all(is_open));
        assert!(is_open(&many[99]) != is_open(&victim), "of equals, the oldest closes");
    }

    #[test]
    fn a_proven_connection_closes_last() {
        let connections = Connections::new(2);
        let proven = [connections.open(peer(1)), connections.open(peer(1))];
        proven[0].set_proven();
        let strangers: Vec<_> = (2..9).map(|last| connections.open(peer(last))).collect();
        assert_eq!((is_open(&proven[0]), is_open(&proven[1])), (true, false));
        assert_eq!(strangers.iter().filter(|it| is_open(it)).count(), 1);
        strangers[6].set_proven();
        let newest = connections.open(peer(9));
        assert_eq!([&proven[0], &strangers[6], &newest].map(is_open), [false, true, true]);
    }

    #[test]
    fn a_closed_connection_makes_space() {
        let connections = Connections::new(2);
        let kept = connections.open(peer(1));
        for _ in 0..10 {
            drop(connections.open(peer(1)));
        }
        let second = connections.open(peer(2));
        assert!(is_open(&kept) && is_open(&second));
    }
}
