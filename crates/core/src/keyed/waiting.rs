//! Requests that wait for a key of the table. Their turns are predicted from the key's words. The decision at its turn
//! uses the real count.

use super::{
    Table,
    book::MeterSet,
    overflow::{Look, tag_of},
};
use crate::{
    Ticket, Time,
    forecast::{Forecast, Longest},
    meter::Meter,
    refused::RuleRefused,
    sync::{AtomicU64, lock},
    word::Sealed,
};

impl Table {
    /// Takes the last position in the key's queue, if the request's turn comes by `latest`.
    pub(crate) fn enqueue(
        &self,
        key: &[u8],
        now: Time,
        cost: u64,
        latest: Option<Time>,
    ) -> Result<Ticket, RuleRefused> {
        let fingerprint = self.lineage.fingerprint_of(key);
        let joined = self.lineage.queues.join(fingerprint, now, cost, latest, || self.forecast(fingerprint, now));
        joined.map_err(|longest| self.refused(fingerprint, longest, cost))
    }

    /// Returns the time at which a new request with this key would be admitted, after all waiting requests.
    pub(crate) fn opens(&self, key: &[u8], now: Time, cost: u64) -> Result<Time, RuleRefused> {
        let fingerprint = self.lineage.fingerprint_of(key);
        let opens = match self.lineage.queues.find(fingerprint) {
            Some(queue) => queue.opens(now, cost, || self.forecast(fingerprint, now)),
            None => self.forecast(fingerprint, now).newcomer(now, cost),
        };
        opens.map_err(|longest| self.refused(fingerprint, longest, cost))
    }

    pub(crate) fn queue_len(&self, key: &[u8]) -> usize {
        self.lineage.queues.len(|| self.lineage.fingerprint_of(key))
    }

    /// Wakes the head of the key's queue after a refund.
    pub(super) fn wake(&self, fingerprint: u64) {
        if let Some(queue) = self.lineage.queues.find(fingerprint) {
            queue.wake_head();
        }
    }

    /// Computes all turns again after a change of the terms. Requests whose turn does not come in time are refused
    /// immediately.
    pub(super) fn reassess(&self, now: Time) {
        for (fingerprint, queue) in self.lineage.queues.all() {
            queue.reassess(now, || self.forecast(fingerprint, now));
        }
    }

    fn refused(&self, fingerprint: u64, longest: Longest, cost: u64) -> RuleRefused {
        let override_index = self.overrides.get(&fingerprint).and_then(|own| own.override_index);
        RuleRefused::queued(longest, cost, override_index)
    }

    fn forecast(&self, fingerprint: u64, now: Time) -> Forecast {
        let limits = match self.place_of(fingerprint) {
            Some((set, words)) => set.copy(words),
            None => self.copy_in_region(fingerprint, now),
        };
        match limits {
            Ok(limits) => Forecast::new(now, limits),
            Err(Sealed) => self.follow(fingerprint).forecast(fingerprint, now),
        }
    }

    /// Copies the words of a key. The caller has found no cell of the key, but another thread can have made one since.
    fn copy_in_region(&self, fingerprint: u64, now: Time) -> Result<Vec<(Meter, Vec<u64>)>, Sealed> {
        let region = self.region_of(fingerprint);
        let hold = lock(&region.hold);
        if region.is_closed() {
            return Err(Sealed);
        }
        if let Some(cell) = self.find(fingerprint) {
            return self.book.plain.copy(cell.words);
        }
        let set = &self.book.overflow;
        let Some(overflow) = &hold.overflow else { return self.book.plain.copy(&self.blank) };
        match overflow.peek(set, tag_of(fingerprint), now) {
            Look::Found(place) => set.copy(overflow.words(place)),
            Look::Displaced => set.copy(overflow.draft()),
            Look::Unused => self.book.plain.copy(&self.blank),
        }
    }
}

impl MeterSet {
    fn copy(&self, words: &[AtomicU64]) -> Result<Vec<(Meter, Vec<u64>)>, Sealed> {
        self.limits(words).map(|(meter, own)| Ok((meter.clone(), meter.copy(own)?))).collect()
    }
}
