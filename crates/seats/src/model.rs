//! Defines *take* as a pure function of the value in the store. The script in Redis must return the same results.
//! Stores without scripts run this code.

use crate::{
    state::{State, changed, used as units_of},
    take::{EncodedReply, EncodedTake, Next},
    terms::{MOST_UNITS, StoreLimit, StoreTerms},
    value::Value,
};

/// The number of limits of a value with former limits. The header of a value in Redis has room for them.
const MOST_KNOWN: usize = 7;

/// The answer to a question, and the value to write to the store.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The answer.
    pub answer: EncodedReply,
    /// The value to write.
    pub value: Value,
    /// The time from which all limits are at full credit again. Then the store can forget the value.
    pub full_at: u64,
}

/// Answers a question at `now`, an instant of the store's clock in microseconds since the Unix epoch.
pub fn take(stored: Option<&Value>, encoded: &EncodedTake, now: u64) -> Transition {
    let (mut value, is_older) = in_force(stored, encoded, now);
    if let Some(seen) = encoded.seen.as_ref().filter(|_| !is_older) {
        each(&mut value, |index, limit, state| state.raise(limit, seen[index]));
    }
    value.all_mut().for_each(|(limit, state)| state.advance(limit, now));
    if let Some((birth, units, ends)) = encoded.returned.as_ref().filter(|_| !is_older)
        && *birth == value.birth
    {
        each(&mut value, |index, limit, state| state.give_back(limit, now, ends[index], *units));
    }
    if encoded.owed > 0 {
        value.all_mut().for_each(|(limit, state)| state.owe(limit, now, encoded.owed));
    }
    if encoded.credit > 0 {
        value.all_mut().for_each(|(limit, state)| state.credit(limit, now, encoded.credit));
    }
    if encoded.ban.is_some() || !is_older {
        value.banned = encoded.ban.and_then(|ban| ban.apply(value.banned, now, is_older));
    }
    let banned = value.banned.filter(|_| encoded.ban.is_some());

    let served = value.marks(now);
    let request = (encoded.requests, encoded.cost);
    let fits = limits(&value).map(|(limit, state)| state.fits(limit, now, request, encoded.patience));
    let granted = fits.min().filter(|_| banned.is_none()).unwrap_or(0);
    if granted > 0 {
        value.all_mut().for_each(|(limit, state)| state.charge(limit, now, granted * encoded.cost));
    }
    let next = match banned {
        _ if granted == encoded.requests => Next::Now,
        Some(banned) => Next::At(banned.end()),
        None => next(&value, encoded.cost, now),
    };

    let lendable = limits(&value).map(|(limit, state)| state.lendable(limit, now, encoded.reach));
    let (rooms, lent): (Vec<_>, Vec<_>) = lendable.unzip();
    let gives_in_advance = granted == encoded.requests && !is_older && banned.is_none();
    let wanted = if gives_in_advance { encoded.prefetch } else { 0 };
    let prefetched = rooms.into_iter().min().unwrap_or(0).min(wanted);
    if prefetched > 0 {
        each(&mut value, |index, limit, state| state.lend(limit, now, lent[index], prefetched));
        value.former.iter_mut().for_each(|(limit, state)| state.charge(limit, now, prefetched));
    }

    let full_at = value.full_at();
    let answer = EncodedReply {
        granted,
        prefetched,
        time: now,
        birth: value.birth,
        next,
        stamp: value.stamp,
        limits: is_older.then(|| value.limits.to_vec()),
        marks: [served, lent, value.marks(now)],
        banned_since: banned.map_or(0, |banned| banned.since),
        reserved: 0,
    };
    Transition { answer, value, full_at }
}

/// A value whose limits are all used up, for a count that begins without credit.
pub fn used_up(terms: &StoreTerms, now: u64) -> Value {
    let mut value = Value::new(terms.stamp(), terms.raw(), now);
    value.use_up(now);
    value
}

/// The units that count at this time. Full credit minus this number can be used.
pub fn used(value: &Value, now: u64) -> u64 {
    let used = limits(value).map(|(limit, state)| {
        let mut state = state.clone();
        state.advance(limit, now);
        limit.at_once().saturating_sub(state.fits(limit, now, (u64::from(MOST_UNITS), 1), 0))
    });
    used.max().unwrap_or(0)
}

/// The units that a new counter must charge for a share: all units of the current windows. For a bucket there is no
/// bound, because the new counter does not know what was used before.
pub fn charged(value: &Value, now: u64) -> u64 {
    let charged = limits(value).map(|(limit, state)| {
        let mut state = state.clone();
        state.advance(limit, now);
        match state {
            State::Bucket(_) => u64::MAX,
            State::Window { count, .. } => count,
            State::Counter { current, previous, .. } => current.saturating_add(previous),
            State::Log(_) => state.mark(limit, now)[1],
        }
    });
    charged.max().unwrap_or(0)
}

/// The value under the newest terms. Also returns true if the caller has other terms than these.
fn in_force(stored: Option<&Value>, encoded: &EncodedTake, now: u64) -> (Value, bool) {
    let Some(stored) = stored else { return (Value::new(encoded.stamp, &encoded.limits, now), false) };
    let mut value = stored.clone();
    if stored.stamp >= encoded.stamp {
        // Two callers disagree about the terms of the same stamp. The store keeps the terms that it has.
        let is_same = stored.stamp == encoded.stamp && stored.limits[..] == encoded.limits;
        return (value, !is_same);
    }
    value.all_mut().for_each(|(limit, state)| state.advance(limit, now));
    let (mut states, mut former) = (Vec::new(), Vec::new());
    for new in &encoded.limits {
        let known: Vec<_> = value.all().filter(|(old, _)| old.id == new.id).collect();
        states.push(continued(&known, new, now));
        let counts = |old: &StoreLimit, state: &State| !old.is_bucket() && state.full_at(old) > now;
        let rest = known.into_iter().filter(|&(old, state)| counts(old, state) && !old.counts_like(new));
        former.extend(rest.map(|(old, state)| (*old, state.clone())));
    }
    while encoded.limits.len() + former.len() > MOST_KNOWN && !former.is_empty() {
        let shortest = (0..former.len()).min_by_key(|&index| former[index].0.period).unwrap_or(0);
        former.remove(shortest);
    }
    let (limits, states, former) = (encoded.limits.as_slice().into(), states.into(), former.into());
    (Value { stamp: encoded.stamp, limits, states, former, ..value }, false)
}

/// The state of a limit that is in force from now on. `known` are the earlier states of this limit: first the one of the
/// terms so far, and then former ones. A former window or log that counts like the new one has counted everything since.
fn continued(known: &[(&StoreLimit, &State)], new: &StoreLimit, now: u64) -> State {
    let Some((&latest, former)) = known.split_first() else { return State::new(new, now) };
    let mut source = latest;
    if !new.is_bucket() {
        for &(old, state) in former {
            let is_more = units_of(old, state, now) > units_of(source.0, source.1, now);
            if old.counts_like(new) || (is_more && !source.0.counts_like(new)) {
                source = (old, state);
            }
        }
    }
    changed(source.0, source.1, new, now)
}

/// The time at which a request with this cost can go.
fn next(value: &Value, cost: u64, now: u64) -> Next {
    let opens = limits(value).map(|(limit, state)| state.opens(limit, now, cost));
    let opens = opens.reduce(|one, other| Some(one?.max(other?))).flatten();
    opens.map_or(Next::Never, Next::At)
}

fn limits(value: &Value) -> impl Iterator<Item = (&StoreLimit, &State)> {
    value.limits.iter().zip(&value.states)
}

fn each(value: &mut Value, mut change: impl FnMut(usize, &StoreLimit, &mut State)) {
    for (index, (limit, state)) in value.limits.iter().zip(&mut value.states).enumerate() {
        change(index, limit, state);
    }
}
