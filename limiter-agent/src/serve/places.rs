//! The connections of one port: so many, and always room for one more.
//!
//! Whoever opens connections and says nothing must not keep probes out, nor snapshots. So where all places are taken, the newcomer
//! gets that of somebody who needs it least: first of those who have asked nothing yet, then of those who ask nothing now, then of
//! those who read, and of those who write last; among these, of the one that was longest in that state. No address has more than half of
//! the places, so that a crowd behind one costs only each other.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// How many connections there are at most.
pub(super) const MOST: usize = 256;

/// From one address.
const MOST_OF_ONE: usize = MOST / 2;

/// All that are taken.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// Counts what happens, so that it is known what was before what.
    moment: u64,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    peer: IpAddr,
    state: State,
    since: u64,
    asking: usize,
    writing: usize,
    evicted: CancellationToken,
}

/// In the order in which they give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Silent,
    Idle,
    Reading,
    Writing,
}

/// One that is taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    id: u64,
    /// Cancelled when somebody else has it.
    pub(super) evicted: CancellationToken,
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
pub(super) struct Asking {
    place: Arc<Place>,
    writes: bool,
}

impl Places {
    /// A place for a connection from there.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Arc<Place> {
        let mut taken = self.lock();
        let of_one = taken.connections.iter().filter(|connection| connection.peer == peer).count();
        if of_one >= MOST_OF_ONE {
            taken.evict(|connection| connection.peer == peer);
        } else if taken.connections.len() >= MOST {
            taken.evict(|_| true);
        }
        let id = taken.next();
        let evicted = CancellationToken::new();
        taken.connections.push(Connection {
            id,
            peer,
            state: State::Silent,
            since: id,
            asking: 0,
            writing: 0,
            evicted: evicted.clone(),
        });
        Arc::new(Place { places: Arc::clone(self), id, evicted })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that is done under it can be left half-done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn next(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn evict(&mut self, among: impl Fn(&Connection) -> bool) {
        let candidates = self.connections.iter().enumerate().filter(|(_, connection)| among(connection));
        let least = candidates.min_by_key(|(_, connection)| (connection.state, connection.since));
        if let Some((at, _)) = least {
            self.connections.swap_remove(at).evicted.cancel();
        }
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut Connection)) {
        let now = self.next();
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) {
            change(connection);
            connection.since = now;
            connection.state = match (connection.asking, connection.writing) {
                (0, _) => State::Idle,
                (_, 0) => State::Reading,
                _ => State::Writing,
            };
        }
    }
}

impl Place {
    /// For each request of a client that may ask. `writes` is for one that changes something.
    pub(super) fn asked(self: &Arc<Self>, writes: bool) -> Asking {
        self.places.lock().change(self.id, |connection| {
            connection.asking += 1;
            connection.writing += usize::from(writes);
        });
        Asking { place: Arc::clone(self), writes }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.place.places.lock().change(self.place.id, |connection| {
            connection.asking -= 1;
            connection.writing -= usize::from(self.writes);
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().connections.retain(|connection| connection.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: usize) -> IpAddr {
        Ipv4Addr::from(u32::try_from(number).unwrap()).into()
    }

    #[test]
    fn who_needs_its_place_least_gives_it_away() {
        let places = Arc::new(Places::default());
        let mut held: Vec<_> = (0..MOST).map(|number| places.take(peer(number))).collect();
        // The first writes, the second reads, the third is idle, the others have asked nothing.
        let writing = held[0].asked(true);
        let reading = held[1].asked(false);
        drop(held[2].asked(false));
        let gone = |held: &[Arc<Place>]| -> Vec<usize> {
            (0..MOST).filter(|number| held[*number].evicted.is_cancelled()).collect()
        };
        for number in 3..MOST {
            let newcomer = places.take(peer(MOST + number));
            assert!(held[number].evicted.is_cancelled());
            drop(newcomer.asked(false));
            held.push(newcomer);
        }
        assert_eq!(gone(&held), (3..MOST).collect::<Vec<_>>());
        held.push(places.take(peer(0)));
        assert!(held[2].evicted.is_cancelled() && !held[1].evicted.is_cancelled());
        drop((reading, writing));
    }

    #[test]
    fn a_crowd_behind_one_address_costs_only_each_other() {
        let places = Arc::new(Places::default());
        let other = places.take(peer(1));
        let crowd: Vec<_> = (0..2 * MOST).map(|_| places.take(peer(2))).collect();
        assert!(!other.evicted.is_cancelled());
        let left = crowd.iter().filter(|place| !place.evicted.is_cancelled()).count();
        assert_eq!((left, places.lock().connections.len()), (MOST_OF_ONE, MOST_OF_ONE + 1));
        drop((other, crowd));
        assert!(places.lock().connections.is_empty());
    }
}
