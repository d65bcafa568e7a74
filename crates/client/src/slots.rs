//! Admits the connections of one port. Their number is bounded, and a new connection can evict an idle one.
//!
//! Idle connections must not keep others out. When all slots are taken, a new connection evicts the one that needs its
//! slot least: a connection of the lowest [`Rank`], and of these the one that has had this rank for the longest time. A
//! busy connection is never evicted.
//!
//! While the process lacks file descriptors, the port has only as many slots as it has connections
//! ([`ConnectionSlots::shrink`]). So new connections evict idle ones then, too.
//!
//! A port can count the bytes that its connections hold in memory. Above its bound, the connection with the most bytes is
//! evicted, busy or not ([`ConnectionSlot::is_over`]).
//!
//! The cost for a connection is one word, which it writes when its rank changes. Only a new connection that finds no
//! free slot reads all words. The candidates that it finds are stored for later connections.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use tokio::sync::Notify;
use weir_core::Time;
use weir_tower::MonotonicClock;

/// The number of bits in a connection's word for the time at which it entered its rank.
const TIME_BITS: u32 = 62;

/// Values of a connection's word that contain no rank.
const BUSY: u64 = u64::MAX - 2;
const EVICTED: u64 = u64::MAX - 1;
const EVICTED_AT_ONCE: u64 = u64::MAX;

/// The number of candidates for eviction that one search collects.
const MAX_CANDIDATES: usize = 64;

/// The activity of a connection. Connections with a lower rank are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// No whole head of a request has arrived. Only ports that evict such connections first use this rank.
    Silent,
    /// No request is in progress.
    Idle,
    /// A request that only reads is in progress.
    Reading,
    /// A request that changes something is in progress.
    Writing,
}

/// Whether a connection was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The connection has its slot.
    No,
    /// The connection was evicted, and is allowed to close gracefully.
    Graceful,
    /// The connection was evicted, and must close immediately, because too many others are closing gracefully.
    AtOnce,
}

/// The slots of one port: one for each connection that it can serve at the same time.
#[derive(Debug)]
pub struct ConnectionSlots {
    most: usize,
    /// The number of slots now: at most `most`.
    most_now: AtomicUsize,
    /// The maximum number of slots for one client address.
    most_of_one: usize,
    table: Mutex<Table>,
    /// The number of new connections that wait for a slot.
    wanted: AtomicUsize,
    freed: Notify,
    evictions: AtomicU64,
    /// The number of bytes that all connections hold, also those that were evicted and have not ended yet.
    held: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    taken: HashMap<u64, Arc<Entry>>,
    /// The next candidates for eviction in their order, each with the word that it had when the search found it. A
    /// candidate whose word changed since then is not evicted. Connections outside of this list come after those in it.
    /// New connections that arrive before the last one are added.
    found: VecDeque<(u64, u64, Arc<Entry>)>,
    /// The number of evicted connections that are still closing gracefully. Their slots belong to other connections.
    leaving: usize,
}

/// The table's entry for a connection.
#[derive(Debug)]
struct Entry {
    word: AtomicU64,
    peer: IpAddr,
    gone: Notify,
    /// The number of bytes that the connection holds.
    held: AtomicUsize,
}

/// A taken slot. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: u64,
    entry: Arc<Entry>,
}

fn word(rank: Rank, since: Time) -> u64 {
    ((rank as u64) << TIME_BITS | (since.as_nanos() & ((1 << TIME_BITS) - 1))).min(BUSY - 1)
}

impl ConnectionSlots {
    /// At most `most` connections in total, and `most_of_one` from one address.
    pub fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        let (table, wanted, evictions, held) = Default::default();
        let most_now = most.into();
        Arc::new(Self { most, most_now, most_of_one, table, wanted, freed: Notify::new(), evictions, held })
    }

    /// Keeps only the slots that are taken, because the system allows no more connections.
    pub fn shrink(&self) {
        let taken = self.lock().taken.len();
        self.most_now.fetch_min(taken.max(1), Relaxed);
    }

    /// Ends the effect of [`Self::shrink`]. If the reason for it has not ended, call `shrink` again.
    pub fn grow(&self) {
        if self.most_now.swap(self.most, Relaxed) < self.most && self.wanted.load(SeqCst) > 0 {
            self.freed.notify_one();
        }
    }

    /// Evicts a connection of at most this rank without a new one. It closes immediately. Returns false if there is
    /// none.
    pub fn make_room(&self, highest: Rank) -> bool {
        self.evict(&mut self.lock(), highest, false)
    }

    /// Evicts a connection if those with a slot hold more than `most` bytes together. It closes immediately. Of the address
    /// with the most bytes, it is the connection with the most bytes.
    fn evict_heaviest(&self, most: usize) {
        let mut table = self.lock();
        let held = |entry: &Entry| entry.held.load(Relaxed);
        let mut peers = HashMap::<IpAddr, usize>::new();
        for entry in table.taken.values() {
            *peers.entry(entry.peer).or_default() += held(entry);
        }
        if peers.values().sum::<usize>() <= most {
            // The other bytes are those of evicted connections.
            return;
        }
        let heaviest = table.taken.iter().max_by_key(|(_, entry)| (peers[&entry.peer], held(entry)));
        if let Some(entry) = heaviest.map(|(id, _)| *id).and_then(|id| table.taken.remove(&id)) {
            entry.word.store(EVICTED_AT_ONCE, SeqCst);
            self.evictions.fetch_add(1, Relaxed);
            entry.gone.notify_one();
        }
    }

    /// The number of evicted connections so far.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    /// Takes a slot for a connection from `peer`. Returns `None` while all connections are busy.
    pub fn try_take(self: &Arc<Self>, peer: IpAddr, rank: Rank, now: Time) -> Option<ConnectionSlot> {
        let mut table = self.lock();
        let is_peer = |entry: &Entry| entry.peer == peer;
        // Only ports with few slots count connections per address.
        let full_of_one = self.most_of_one < self.most
            && table.taken.values().filter(|entry| is_peer(entry)).count() >= self.most_of_one;
        let evicted = if full_of_one {
            table.found.clear();
            table.find(is_peer);
            let evicted = self.evict_found(&mut table, Rank::Writing, true);
            table.found.clear();
            evicted
        } else {
            table.taken.len() < self.most_now.load(Relaxed) || self.evict(&mut table, Rank::Writing, true)
        };
        if !evicted {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let word = word(rank, now);
        let entry = Arc::new(Entry { word: word.into(), peer, gone: Notify::new(), held: AtomicUsize::default() });
        table.taken.insert(id, Arc::clone(&entry));
        // A new connection without a request comes before idle ones.
        table.offer(word, id, &entry);
        Some(ConnectionSlot { slots: Arc::clone(self), id, entry })
    }

    /// Takes a slot for a connection from `peer`; waits until there is one.
    pub async fn take(self: &Arc<Self>, peer: IpAddr, rank: Rank, clock: MonotonicClock) -> ConnectionSlot {
        let _wanting = WaitingCount::new(&self.wanted);
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(slot) = self.try_take(peer, rank, clock.now()) {
                return slot;
            }
            freed.await;
        }
    }

    fn evict(&self, table: &mut Table, highest: Rank, polite: bool) -> bool {
        let evicted = self.evict_found(table, highest, polite) || {
            table.found.clear();
            table.find(|_| true);
            self.evict_found(table, highest, polite)
        };
        if !evicted {
            // A connection can become idle before the next search, and then comes before these candidates.
            table.found.clear();
        }
        evicted
    }

    fn evict_found(&self, table: &mut Table, highest: Rank, polite: bool) -> bool {
        let may_go = |(word, ..): &mut (u64, u64, Arc<Entry>)| *word >> TIME_BITS <= highest as u64;
        while let Some((found, id, entry)) = table.found.pop_front_if(may_go) {
            let polite = polite && table.leaving <= self.most_now.load(Relaxed) / 8;
            let evicted = if polite { EVICTED } else { EVICTED_AT_ONCE };
            // The connection may have closed since the search.
            let is_there = table.taken.contains_key(&id);
            if is_there && entry.word.compare_exchange(found, evicted, SeqCst, SeqCst).is_ok() {
                table.taken.remove(&id);
                table.leaving += usize::from(polite);
                self.evictions.fetch_add(1, Relaxed);
                entry.gone.notify_one();
                return true;
            }
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No operation under this lock can panic and leave an inconsistent table.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Adds a candidate that must be evicted before the last one of the list.
    fn offer(&mut self, word: u64, id: u64, entry: &Arc<Entry>) {
        if self.found.len() > 2 * MAX_CANDIDATES {
            // The words of most candidates have changed. The next search finds the others again.
            self.found.clear();
        }
        if self.found.back().is_some_and(|(last, ..)| word < *last) {
            let place = self.found.partition_point(|(found, ..)| *found <= word);
            self.found.insert(place, (word, id, Arc::clone(entry)));
        }
    }

    /// Collects the connections to evict first.
    fn find(&mut self, among: impl Fn(&Entry) -> bool) {
        let words =
            self.taken.iter().filter(|(_, entry)| among(entry)).map(|(id, entry)| (entry.word.load(SeqCst), *id));
        let mut candidates: Vec<_> = words.filter(|(word, _)| *word < BUSY).collect();
        if candidates.len() > MAX_CANDIDATES {
            candidates.select_nth_unstable(MAX_CANDIDATES);
            candidates.truncate(MAX_CANDIDATES);
        }
        candidates.sort_unstable();
        // A connection of a higher rank can become idle, and is then the next candidate.
        if let Some(rank) = candidates.first().map(|(word, _)| word >> TIME_BITS) {
            let most = if rank > Rank::Idle as u64 { 1 } else { MAX_CANDIDATES };
            candidates.truncate(candidates.partition_point(|(word, _)| word >> TIME_BITS == rank).min(most));
        }
        let found = candidates.into_iter().filter_map(|(word, id)| Some((word, id, Arc::clone(self.taken.get(&id)?))));
        self.found.extend(found);
    }
}

impl ConnectionSlot {
    /// Sets the connection's rank, and lets it be evicted. A connection that is idle already stays idle since then.
    pub fn rest(&self, rank: Rank, now: Time) {
        // Its time stays, but another connection can wait for a slot.
        let is_again = rank == Rank::Idle && self.is_idle();
        let word = if is_again { self.entry.word.load(Relaxed) } else { word(rank, now) };
        let is_entered = self.enter(word);
        if is_entered && rank == Rank::Silent {
            self.slots.lock().offer(word, self.id, &self.entry);
        }
        if is_entered && self.slots.wanted.load(SeqCst) > 0 {
            let mut table = self.slots.lock();
            if table.found.is_empty() {
                table.found.push_back((word, self.id, Arc::clone(&self.entry)));
            }
            drop(table);
            self.slots.freed.notify_one();
        }
    }

    /// Protects the connection from eviction. Returns false if it was evicted and must close immediately. An evicted
    /// connection that is allowed to close gracefully answers the request first.
    pub fn work(&self) -> bool {
        self.enter(BUSY) || self.eviction() != Eviction::AtOnce
    }

    /// Whether the connection was evicted.
    pub fn eviction(&self) -> Eviction {
        match self.entry.word.load(Relaxed) {
            EVICTED => Eviction::Graceful,
            EVICTED_AT_ONCE => Eviction::AtOnce,
            _ => Eviction::No,
        }
    }

    /// Returns once the connection was evicted. Only one task is allowed to wait for this.
    pub async fn gone(&self) {
        while self.eviction() == Eviction::No {
            self.entry.gone.notified().await;
        }
    }

    /// Counts bytes that the connection holds in memory.
    pub fn hold(&self, bytes: usize) {
        self.entry.held.fetch_add(bytes, Relaxed);
        self.slots.held.fetch_add(bytes, Relaxed);
    }

    /// The connection holds these bytes no longer.
    pub fn release(&self, bytes: usize) {
        self.entry.held.fetch_sub(bytes, Relaxed);
        self.slots.held.fetch_sub(bytes, Relaxed);
    }

    /// Whether all connections of the port hold more than `most` bytes. If those that were not evicted yet do, the
    /// heaviest one is evicted.
    pub fn is_over(&self, most: usize) -> bool {
        let is_over = self.slots.held.load(Relaxed) > most;
        if is_over {
            self.slots.evict_heaviest(most);
        }
        is_over
    }

    fn is_idle(&self) -> bool {
        self.entry.word.load(Relaxed) >> TIME_BITS == Rank::Idle as u64
    }

    /// Writes the word. Returns false if the connection was evicted. Only an eviction writes the word from another
    /// task.
    fn enter(&self, word: u64) -> bool {
        let before = self.entry.word.load(Relaxed);
        before < EVICTED && self.entry.word.compare_exchange(before, word, SeqCst, Relaxed).is_ok()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        if table.taken.remove(&self.id).is_none() && self.eviction() == Eviction::Graceful {
            table.leaving -= 1;
        }
        drop(table);
        if self.slots.wanted.load(SeqCst) > 0 {
            self.slots.freed.notify_one();
        }
    }
}

/// Counts a new connection as waiting, until this value is dropped.
struct WaitingCount<'a>(&'a AtomicUsize);

impl<'a> WaitingCount<'a> {
    fn new(wanted: &'a AtomicUsize) -> Self {
        wanted.fetch_add(1, SeqCst);
        Self(wanted)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 200;

    fn peer(number: usize) -> IpAddr {
        Ipv4Addr::from(u32::try_from(number).unwrap()).into()
    }

    fn at(moment: usize) -> Time {
        Time::from_nanos(1_800_000_000_000_000_000 + moment as u64)
    }

    fn take(slots: &Arc<ConnectionSlots>, rank: Rank, moment: usize) -> Option<ConnectionSlot> {
        slots.try_take(peer(moment), rank, at(moment))
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.eviction() != Eviction::No
    }

    #[test]
    fn the_connection_of_the_lowest_rank_is_evicted_first() {
        let slots = ConnectionSlots::new(MOST, MOST);
        let mut held: Vec<_> = (0..MOST).map(|moment| take(&slots, Rank::Silent, moment).unwrap()).collect();
        held[0].rest(Rank::Writing, at(MOST));
        held[1].rest(Rank::Reading, at(MOST + 1));
        held[2].rest(Rank::Idle, at(MOST + 2));
        assert!(held[3].work());
        for number in 4..MOST {
            held.push(take(&slots, Rank::Writing, MOST + number).unwrap());
            let gone: Vec<_> = (0..held.len()).filter(|number| is_evicted(&held[*number])).collect();
            assert_eq!(gone, (4..=number).collect::<Vec<_>>());
        }
        for number in [2, 1, 0] {
            held.push(take(&slots, Rank::Writing, 2 * MOST + number).unwrap());
            assert!(is_evicted(&held[number]), "{number}");
        }
        assert!(!is_evicted(&held[3]) && slots.evictions() == MOST as u64 - 1);
        assert_eq!(slots.lock().taken.len(), MOST);
        drop(held);
        let table = slots.lock();
        assert_eq!((table.taken.len(), table.leaving), (0, 0));
    }

    #[test]
    fn only_a_bounded_number_of_evicted_connections_closes_politely() {
        let slots = ConnectionSlots::new(MOST, MOST);
        let held: Vec<_> = (0..2 * MOST).map(|moment| take(&slots, Rank::Idle, moment).unwrap()).collect();
        let count = |eviction| held.iter().filter(|slot| slot.eviction() == eviction).count();
        let polite = MOST / 8 + 1;
        assert_eq!((count(Eviction::Graceful), count(Eviction::AtOnce)), (polite, MOST - polite));
        assert!(held[0].work() && !held[MOST - 1].work() && held[MOST].work());
        assert!(is_evicted(&held[0]), "a later request does not bring its slot back");
    }

    #[test]
    fn without_descriptors_a_connection_evicts_another_one_although_slots_are_free() {
        let slots = ConnectionSlots::new(MOST, MOST);
        let held: Vec<_> = (0..4).map(|moment| take(&slots, Rank::Idle, moment).unwrap()).collect();
        slots.shrink();
        let newcomer = take(&slots, Rank::Idle, 4).unwrap();
        assert!(is_evicted(&held[0]) && !is_evicted(&held[1]));
        assert!(slots.make_room(Rank::Idle) && held[1].eviction() == Eviction::AtOnce);
        assert!([&held[2], &held[3], &newcomer].iter().all(|slot| slot.work()));
        assert!(!slots.make_room(Rank::Idle), "all are busy");
        held[2].rest(Rank::Reading, at(5));
        assert!(!slots.make_room(Rank::Idle));
        // The result of the search above is outdated now: the idle connection must be evicted.
        held[3].rest(Rank::Idle, at(6));
        slots.evict(&mut slots.lock(), Rank::Writing, false);
        assert!(is_evicted(&held[3]) && held[2].work());
        let more = (7..9).map(|moment| take(&slots, Rank::Idle, moment).expect("the slot of an evicted connection"));
        let more: Vec<_> = more.collect();
        assert!(more.iter().all(ConnectionSlot::work) && take(&slots, Rank::Idle, 9).is_none());
        slots.grow();
        assert!(take(&slots, Rank::Idle, 7).is_some());
    }

    #[test]
    fn connections_of_one_address_evict_only_each_other() {
        let slots = ConnectionSlots::new(MOST, MOST / 2);
        let other = slots.try_take(peer(1), Rank::Silent, at(0)).unwrap();
        let crowd: Vec<_> =
            (0..2 * MOST).map(|moment| slots.try_take(peer(2), Rank::Silent, at(1 + moment)).unwrap()).collect();
        assert!(!is_evicted(&other));
        let left = crowd.iter().filter(|slot| !is_evicted(slot)).count();
        assert_eq!((left, slots.lock().taken.len()), (MOST / 2, MOST / 2 + 1));
    }

    #[test]
    fn of_the_address_that_holds_most_the_heaviest_connection_is_evicted() {
        const MOST_HELD: usize = 1_000;
        let slots = ConnectionSlots::new(MOST, MOST);
        let of = |number| slots.try_take(peer(number), Rank::Idle, at(number)).expect("a free slot");
        let (single, first, second) = (of(1), of(2), of(2));
        assert!([&single, &first, &second].iter().all(|slot| slot.work()), "all are busy");
        single.hold(450);
        first.hold(250);
        second.hold(300);
        assert!(!single.is_over(MOST_HELD), "exactly at the bound");
        first.hold(1);
        assert!(single.is_over(MOST_HELD));
        assert_eq!([&single, &first, &second].map(|slot| slot.eviction() == Eviction::AtOnce), [false, false, true]);
        assert!(!second.work());
        assert!(single.is_over(MOST_HELD), "the evicted connection still holds its bytes");
        assert_eq!(slots.evictions(), 1);
        second.release(300);
        assert!(!single.is_over(MOST_HELD));
        drop((single, first, second));
        let table = slots.lock();
        assert_eq!((table.taken.len(), table.leaving), (0, 0));
    }

    #[test]
    fn a_new_connection_waits_until_one_ends_or_becomes_idle() {
        let clock = MonotonicClock::start();
        let slots = ConnectionSlots::new(2, 2);
        let [first, second] = [0, 1].map(|moment| take(&slots, Rank::Idle, moment).unwrap());
        assert!(first.work() && second.work());
        let mut waiting = pin!(slots.take(peer(3), Rank::Idle, clock));
        assert!(waiting.as_mut().now_or_never().is_none());
        first.rest(Rank::Idle, at(2));
        let third = waiting.now_or_never().expect("a slot");
        assert!(is_evicted(&first) && !is_evicted(&second));
        assert!(third.work());
        let mut waiting = pin!(slots.take(peer(4), Rank::Idle, clock));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(second);
        assert!(waiting.now_or_never().is_some());
        assert_eq!(slots.wanted.load(SeqCst), 0);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Come(Rank),
        Rest(usize, Rank),
        RestAgain(usize),
        Work(usize),
        Leave(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let one = prop_oneof![
            3 => Just(Step::Come(Rank::Silent)),
            2 => Just(Step::Come(Rank::Idle)),
            2 => (0..8_usize).prop_map(|which| Step::Rest(which, Rank::Idle)),
            2 => (0..8_usize).prop_map(|which| Step::Rest(which, Rank::Reading)),
            2 => (0..8_usize).prop_map(Step::RestAgain),
            3 => (0..8_usize).prop_map(Step::Work),
            1 => (0..8_usize).prop_map(Step::Leave),
        ];
        prop::collection::vec(one, 1..120)
    }

    proptest! {
        /// Compares with a list of the connections that are not busy, each with its rank and the time of this rank.
        #[test]
        fn only_the_longest_idle_connection_of_the_lowest_rank_is_evicted(steps in steps()) {
            let slots = ConnectionSlots::new(4, 4);
            let (mut resting, mut busy): (Vec<(u64, usize, ConnectionSlot)>, Vec<ConnectionSlot>) = Default::default();
            for (moment, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Come(rank) => {
                        let full = resting.len() + busy.len() == 4;
                        let newcomer = take(&slots, rank, moment);
                        prop_assert_eq!(newcomer.is_some(), !full || !resting.is_empty());
                        if full && newcomer.is_some() {
                            resting.sort_by_key(|(rank, since, _)| (*rank, *since));
                            prop_assert!(is_evicted(&resting.remove(0).2));
                        }
                        resting.extend(newcomer.map(|slot| (rank as u64, moment, slot)));
                    }
                    Step::Rest(which, rank) if !busy.is_empty() => {
                        let slot = busy.remove(which % busy.len());
                        slot.rest(rank, at(moment));
                        resting.push((rank as u64, moment, slot));
                    }
                    Step::RestAgain(which) if !resting.is_empty() => {
                        let which = which % resting.len();
                        let (rank, since, slot) = &mut resting[which];
                        slot.rest(Rank::Idle, at(moment));
                        if *rank != Rank::Idle as u64 {
                            (*rank, *since) = (Rank::Idle as u64, moment);
                        }
                    }
                    Step::Work(which) if !resting.is_empty() => {
                        let (_, _, slot) = resting.remove(which % resting.len());
                        prop_assert!(slot.work());
                        busy.push(slot);
                    }
                    Step::Leave(which) if !resting.is_empty() => drop(resting.remove(which % resting.len())),
                    Step::Rest(..) | Step::RestAgain(_) | Step::Work(_) | Step::Leave(_) => {}
                }
                prop_assert!(resting.iter().map(|(.., slot)| slot).chain(&busy).all(|slot| !is_evicted(slot)));
            }
        }
    }
}
