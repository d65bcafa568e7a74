//! The entry of new keys into the table, and the removal of idle keys. Only this module writes marks, under the lock of
//! the region.
//!
//! A known key takes no lock, so it can be charged while another thread removes it from its cell. Both threads write
//! first and read afterwards. The charging thread charges the words and then reads the mark again. The evicting thread
//! puts [`EVICTING`] into the mark, orders itself after all earlier charges of the words, and then checks that the
//! words are still idle. There are two cases. If the evicting thread observes the charge, the key stays. Otherwise, the
//! charging thread observes the mark and gives the charge back. Then it charges the key again, in its new cell or in
//! the overflow.
//!
//! A key without a cell is counted in the `overflow` until it is idle. The state of the overflow is also read and
//! written under the lock of the region.
//!
//! A new key reuses the idle words of a forgotten key without clearing them. A thread can read the clock before a key
//! was forgotten, and use this time afterwards. So a new key enters at the latest time at which a key was forgotten, or
//! later.

use std::time::Duration;

use super::{
    Answer, Clock, KeyTaken, NEAR, Table,
    book::{Granted, Halt, MeterSet, Request},
    cells::{EMPTY, EVICTING, KeyCell, VACANT, is_key},
    overflow::{Look, Overflow, tag_of},
};
use crate::{
    Time,
    answer::{ChargedWords, Tightest},
    meter::{self, When},
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock},
    time::SET_BACK,
    word::Sealed,
};

/// The number of cells that one decision searches for an idle key.
const SWEEP: usize = 256;

/// The number of cells that one decision searches shortly after a search without a result: a flood of keys must not be
/// expensive while no key is idle.
const GLANCE: usize = 16;

/// The time after a search without a result in which decisions search only [`GLANCE`] cells. A search is much shorter,
/// and a key becomes idle much later.
const SHORTLY: Duration = Duration::from_millis(1);

/// The number of idle keys that one decision tries to forget, if these keys are charged at the same time.
const TRIES: usize = 4;

/// The state of a region except its cells.
#[derive(Debug, Default)]
pub(super) struct Region {
    pub(super) hold: Mutex<Hold>,
    /// Whether all keys of the region have cells in the successor.
    pub(super) closed: AtomicBool,
    /// The time at which the region was closed, in nanoseconds of [`Time`].
    pub(super) since: AtomicU64,
    /// Whether a key is more than [`NEAR`] blocks along its path.
    far: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The next cell to sweep.
    hand: usize,
    /// The time of the last search, if it found no idle key.
    failed_sweep: Option<Time>,
    /// The latest time at which idle keys were forgotten.
    swept: Time,
    /// The keys without a cell. None until there is such a key.
    pub(super) overflow: Option<Box<Overflow>>,
}

/// A cell for a new key.
enum Vacancy<'a> {
    Free(KeyCell<'a>),
    /// The cell of an idle key to forget, and the cell for the new key. They are the same cell, or the new key takes a
    /// free cell on its path because the idle key is elsewhere.
    Idle {
        victim: KeyCell<'a>,
        into: KeyCell<'a>,
    },
}

impl Region {
    pub(super) fn has_far(&self) -> bool {
        self.far.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Hold {
    /// Returns true if a search found no idle key shortly before or after `now`. The search can be after `now`, because
    /// threads read the clock before they take the lock.
    fn is_barren(&self, now: Time) -> bool {
        self.failed_sweep.is_some_and(|at| now.duration_since(at).max(at.duration_since(now)) < SHORTLY)
    }

    /// Returns the request at its own time, or at the latest time at which a key was forgotten, if that is later.
    fn not_before_swept(&mut self, request: &Request) -> Request {
        if let Some(overflow) = &self.overflow {
            self.swept = self.swept.max(overflow.swept());
        }
        if self.swept > request.now.saturating_add(SET_BACK) {
            self.swept = request.now;
        }
        let now = request.now.max(self.swept);
        let when = if let When::By(latest) = request.when { When::By(latest.max(now)) } else { request.when };
        Request { now, when, ..*request }
    }

    fn look(&mut self, set: &MeterSet, tag: u32, now: Time) -> Look {
        self.overflow.as_mut().map_or(Look::Unused, |overflow| overflow.look(set, tag, now))
    }
}

impl Table {
    /// Charges a key that was not found, or that is being removed from its cell.
    #[cold]
    pub(super) fn let_in(&self, fingerprint: u64, request: &Request, clock: Clock<'_>) -> Answer<KeyTaken> {
        let region = self.region_of(fingerprint);
        if region.is_closed() {
            return Answer::Moved;
        }
        let mut hold = lock(&region.hold);
        if region.is_closed() {
            return Answer::Moved;
        }
        if let Some(cell) = self.find(fingerprint) {
            let taken = self.recording(
                fingerprint,
                request,
                || self.book.plain.take(cell.words, request, clock),
                Result::is_ok,
            );
            return self.answer(taken, ChargedWords::Cell(cell.index));
        }
        let at_swept = hold.not_before_swept(request);
        self.thin_out(fingerprint, &mut hold, at_swept.now);
        // A key with usage in the overflow stays there.
        let look = hold.look(&self.book.overflow, tag_of(fingerprint), at_swept.now);
        let tries = if look == Look::Unused { TRIES } else { 0 };
        for _ in 0..tries {
            let (cell, taken) = match self.vacancy(fingerprint, &mut hold, at_swept.now) {
                None => break,
                Some(Vacancy::Free(cell)) => (cell, self.claim(fingerprint, cell, &at_swept, clock)),
                Some(Vacancy::Idle { victim, into }) => {
                    (into, self.replace(fingerprint, victim, into, &mut hold, &at_swept, clock))
                }
            };
            if let Some(taken) = taken {
                return self.answer(taken, ChargedWords::Cell(cell.index));
            }
        }
        self.answer(self.take_in_overflow(fingerprint, look, &mut hold, &at_swept, clock), ChargedWords::Overflow)
    }

    /// Charges a key that has no cell.
    fn take_in_overflow(
        &self,
        fingerprint: u64,
        look: Look,
        hold: &mut Hold,
        request: &Request,
        clock: Clock<'_>,
    ) -> Result<Granted, Halt> {
        let (set, counts) = (&self.book.overflow, &self.lineage.counts);
        counts.overflowed.fetch_add(1, Ordering::Relaxed);
        let overflow = hold.overflow.get_or_insert_with(|| self.new_overflow());
        if let Look::Found(place) = look {
            return set.take(overflow.words(place), request, clock);
        }
        let taken = set.take(overflow.draft(), request, clock)?;
        overflow.insert(set, tag_of(fingerprint), request.now);
        Ok(taken)
    }

    pub(super) fn new_overflow(&self) -> Box<Overflow> {
        Box::new(Overflow::new(self.overflow_places, &self.overflow_blank))
    }

    /// Gives back a charge of a key in the overflow. If the key has left the overflow, the charge stays.
    pub(super) fn refund_in_overflow(&self, fingerprint: u64, receipts: &[meter::Receipt], clock: Clock<'_>) {
        let region = self.region_of(fingerprint);
        let hold = lock(&region.hold);
        if let Some(overflow) = &hold.overflow
            && let Some(place) = overflow.find(tag_of(fingerprint))
            && !region.is_closed()
        {
            self.book.overflow.refund(overflow.words(place), receipts, clock);
        }
    }

    /// Gives units back to a key without an override. The lock keeps the key in its place, so no other key gets them.
    pub(super) fn credit_in_region(&self, fingerprint: u64, units: u64, clock: Clock<'_>) -> Result<(), Sealed> {
        let region = self.region_of(fingerprint);
        let hold = lock(&region.hold);
        if region.is_closed() {
            return Err(Sealed);
        }
        if let Some(cell) = self.find(fingerprint) {
            return self.book.plain.credit(cell.words, units, clock);
        }
        let overflow =
            hold.overflow.as_ref().and_then(|overflow| Some(overflow.words(overflow.find(tag_of(fingerprint))?)));
        overflow.map_or(Ok(()), |words| self.book.overflow.credit(words, units, clock))
    }

    /// Returns the result of a charge for a key that was not found, and changes nothing. The time can be in the future.
    pub(super) fn peek_new_key(&self, fingerprint: u64, request: &Request) -> Answer<Tightest> {
        let region = self.region_of(fingerprint);
        let mut hold = lock(&region.hold);
        if region.is_closed() {
            return Answer::Moved;
        }
        if let Some(cell) = self.find(fingerprint) {
            return self.book.plain.peek(cell.words, request).into();
        }
        let at_swept = hold.not_before_swept(request);
        let (tag, at) = (tag_of(fingerprint), at_swept.now);
        let look = hold.overflow.as_ref().map_or(Look::Unused, |overflow| overflow.peek(&self.book.overflow, tag, at));
        let (hand, failed_sweep) = (hold.hand, hold.failed_sweep);
        let has_vacancy = look == Look::Unused && self.vacancy(fingerprint, &mut hold, at).is_some();
        (hold.hand, hold.failed_sweep) = (hand, failed_sweep);
        if has_vacancy {
            return self.book.plain.peek(&self.blank, &at_swept).into();
        }
        let words = match (&hold.overflow, look) {
            (Some(overflow), Look::Found(place)) => overflow.words(place),
            (Some(overflow), Look::Displaced) => overflow.draft(),
            _ => &self.overflow_blank,
        };
        self.book.overflow.peek(words, &at_swept).into()
    }

    /// Looks for a cell along the key's path. If a cell is free but the table has no room for another key, also looks
    /// for an idle key elsewhere in the region.
    fn vacancy(&self, fingerprint: u64, hold: &mut Hold, now: Time) -> Option<Vacancy<'_>> {
        let has_room = self.tracked() < self.capacity.load(Ordering::Relaxed);
        let (mut free, mut idle) = (None, None);
        for block in self.cells.path(fingerprint).take(NEAR) {
            let mut ends = false;
            for cell in block.cells(fingerprint) {
                let seen = cell.mark.load(Ordering::Relaxed);
                ends |= seen == EMPTY;
                if is_key(seen) {
                    let is_idle = || self.book.plain.is_idle(cell.words, now).then_some(cell);
                    idle = idle.or_else(is_idle);
                } else if has_room {
                    return Some(Vacancy::Free(cell));
                } else {
                    free = free.or(Some(cell));
                }
            }
            if ends {
                break;
            }
        }
        if let Some(victim) = idle {
            return Some(Vacancy::Idle { victim, into: victim });
        }
        let into = free?;
        let victim = self.sweep(fingerprint, hold, now).find(|&cell| self.is_idle_key(cell, now));
        hold.failed_sweep =
            if victim.is_some() { None } else { hold.failed_sweep.filter(|_| hold.is_barren(now)).or(Some(now)) };
        victim.map(|victim| Vacancy::Idle { victim, into })
    }

    fn is_idle_key(&self, cell: KeyCell<'_>, now: Time) -> bool {
        is_key(cell.mark.load(Ordering::Relaxed)) && self.book.plain.is_idle(cell.words, now)
    }

    /// Returns the next cells of the key's region, wrapping around.
    fn sweep<'a>(&'a self, fingerprint: u64, hold: &mut Hold, now: Time) -> impl Iterator<Item = KeyCell<'a>> {
        let most = if hold.is_barren(now) { GLANCE } else { SWEEP };
        self.cells.round(self.cells.region_of(fingerprint), hold.hand).take(most).inspect(|_| hold.hand += 1)
    }

    /// Puts a key into a free cell, and charges it. None if the table is full, because other threads added keys in the
    /// meantime.
    fn claim(
        &self,
        fingerprint: u64,
        cell: KeyCell<'_>,
        request: &Request,
        clock: Clock<'_>,
    ) -> Option<Result<Granted, Halt>> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let room = |tracked| (tracked < capacity).then_some(tracked + 1);
        let tracked = &self.lineage.counts.tracked;
        tracked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        self.book.plain.raise(cell.words, &self.blank, request.now);
        let taken =
            self.recording(fingerprint, request, || self.book.plain.take(cell.words, request, clock), Result::is_ok);
        if taken.is_err() {
            tracked.fetch_sub(1, Ordering::Relaxed);
            return self.is_too_much(request).then_some(taken);
        }
        cell.mark.store(fingerprint, Ordering::Release);
        Some(taken)
    }

    /// Returns true if the limits refuse this request even for a new key. Otherwise, a refusal means that another
    /// thread is giving back a charge at the moment.
    fn is_too_much(&self, request: &Request) -> bool {
        self.book.plain.peek(&self.blank, request).is_err()
    }

    /// Puts a key into the cell of an idle key, and charges it. None if the idle key is in use again.
    fn replace(
        &self,
        fingerprint: u64,
        victim: KeyCell<'_>,
        cell: KeyCell<'_>,
        hold: &mut Hold,
        request: &Request,
        clock: Clock<'_>,
    ) -> Option<Result<Granted, Halt>> {
        let old = self.start_to_forget(victim, request.now)?;
        self.book.plain.raise(cell.words, &self.blank, request.now);
        let taken =
            self.recording(fingerprint, request, || self.book.plain.take(cell.words, request, clock), Result::is_ok);
        if taken.is_err() {
            victim.mark.store(old, Ordering::Release);
            return self.is_too_much(request).then_some(taken);
        }
        self.forget(old);
        if cell.index != victim.index {
            victim.mark.store(VACANT, Ordering::Release);
        }
        cell.mark.store(fingerprint, Ordering::Release);
        self.forgot(hold, request.now);
        Some(taken)
    }

    /// Starts to forget the key of a cell, so that its mark can be replaced. Returns the old mark, for a caller that
    /// keeps the key. None if the key is in use again.
    fn start_to_forget(&self, cell: KeyCell<'_>, now: Time) -> Option<u64> {
        let old = cell.mark.load(Ordering::Relaxed);
        cell.mark.store(old | EVICTING, Ordering::Relaxed);
        self.book.plain.order_after_charges(cell.words);
        if self.book.plain.is_idle(cell.words, now) {
            return Some(old);
        }
        cell.mark.store(old, Ordering::Release);
        None
    }

    /// Removes the history and the journal of an idle key.
    fn forget(&self, fingerprint: u64) {
        if let Some(histories) = &self.histories {
            histories.forget(fingerprint);
        }
        if let Some(journals) = &self.journals {
            journals.forget(fingerprint);
        }
    }

    fn forgot(&self, hold: &mut Hold, now: Time) {
        hold.swept = hold.swept.max(now);
        self.lineage.counts.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets idle keys of the region while there are more keys than the capacity.
    fn thin_out(&self, fingerprint: u64, hold: &mut Hold, now: Time) {
        let hand = hold.hand;
        for cell in self.cells.round(self.cells.region_of(fingerprint), hand).take(SWEEP) {
            if self.tracked() <= self.capacity.load(Ordering::Relaxed) {
                return;
            }
            hold.hand += 1;
            if self.is_idle_key(cell, now)
                && let Some(old) = self.start_to_forget(cell, now)
            {
                self.forget(old);
                cell.mark.store(VACANT, Ordering::Release);
                self.forgot(hold, now);
                self.lineage.counts.tracked.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn tracked(&self) -> usize {
        self.lineage.counts.tracked.load(Ordering::Relaxed)
    }

    /// Puts a key of the previous table into a cell whose words are not computed yet.
    pub(super) fn place(&self, fingerprint: u64) {
        let region = self.region_of(fingerprint);
        let _hold = lock(&region.hold);
        let cells = self
            .cells
            .path(fingerprint)
            .enumerate()
            .flat_map(|(seen, block)| block.cells(fingerprint).map(move |cell| (seen, cell)));
        let mut empty = cells.filter(|(_, cell)| cell.mark.load(Ordering::Relaxed) == EMPTY);
        // There are cells for all keys and a ninth more. So it is practically impossible that a large region has no
        // free cell. Small tables have only one region.
        if let Some((seen, cell)) = empty.next() {
            if seen >= NEAR {
                region.far.store(true, Ordering::Release);
            }
            self.book.plain.unset(cell.words);
            cell.mark.store(fingerprint, Ordering::Release);
        }
    }
}
