//! Encodes questions for the script `take.lua`, and decodes its answers.
//!
//! Arguments and answers are lists of doubles, because the script unpacks a list in one step. With text, a call took
//! about a third longer.

use redis::Value as Raw;
use weir_seats::{
    EncodedBan, EncodedReply, EncodedTake, Next,
    state::Mark,
    terms::{EXACT, StoreLimit, StoreTerms},
};

/// The source of the script.
pub(crate) const SOURCE: &str = include_str!("take.lua");

/// The arguments of the script.
pub(crate) fn arguments(encoded: &EncodedTake) -> [Vec<u8>; 5] {
    let EncodedTake { stamp, requests, cost, patience, prefetch, reach, owed, credit, .. } = *encoded;
    let seen = encoded.seen.as_deref().map(marks).unwrap_or_default();
    let returned = |(birth, units, ends): &(u64, u64, Vec<Mark>)| [pack([*birth, *units]), marks(ends)].concat();
    [
        pack(encoded.limits.iter().flat_map(StoreLimit::numbers)),
        pack([stamp, requests, cost, patience, prefetch, reach.guard, reach.lookahead, owed, credit]),
        seen,
        encoded.returned.as_ref().map(returned).unwrap_or_default(),
        encoded.ban.as_ref().map(ban).unwrap_or_default(),
    ]
}

/// The part about the ban: its length, what to do (0: nothing, 1: start, 2: lift), how long ago it began, and the
/// beginning of the ban that the caller has seen.
fn ban(ban: &EncodedBan) -> Vec<u8> {
    let EncodedBan { length, started, is_lifted, seen } = *ban;
    let change = if is_lifted { 2 } else { u64::from(started.is_some()) };
    pack([length, change, started.unwrap_or(0), seen])
}

fn marks(marks: &[Mark]) -> Vec<u8> {
    pack(marks.iter().flatten().copied())
}

/// Encodes numbers as doubles. Each number is below 2^53, so its double is exact.
pub(crate) fn pack(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect()
}

/// Decodes doubles. None if one of them is not a whole number that a double represents exactly.
fn unpack(bytes: &[u8]) -> Option<Vec<i64>> {
    let (doubles, rest) = bytes.as_chunks::<8>();
    let whole = |bytes: &[u8; 8]| {
        let double = f64::from_le_bytes(*bytes);
        #[expect(clippy::cast_possible_truncation, reason = "the next line compares the result")]
        let int = double as i64;
        (int as f64 == double && int.unsigned_abs() < 2 * EXACT).then_some(int)
    };
    rest.is_empty().then(|| doubles.iter().map(whole).collect())?
}

/// Decodes the answer of the script. None if it is invalid.
///
/// After 8 numbers come three lists of marks. If the caller has other limits than the store, the store's limits follow.
pub(crate) fn answer(raw: &Raw, encoded: &EncodedTake) -> Option<EncodedReply> {
    let Raw::BulkString(bytes) = raw else { return None };
    let ints = unpack(bytes)?;
    let (&[granted, prefetched, time, birth, next, stamp, older, banned], lists) = ints.split_first_chunk::<8>()?;
    let stamp = u64::try_from(stamp).ok()?;
    let numbers = lists.iter().map(|&int| u64::try_from(int).ok()).collect::<Option<Vec<_>>>()?;
    let of_limit = if older == 1 { 9 + 6 } else { 9 };
    let count = numbers.len() / of_limit;
    let (triples, limits) = numbers.split_at(9 * count);
    let limits = match older {
        0 if count == encoded.limits.len() && limits.is_empty() => None,
        1 => {
            let (limits, rest) = limits.as_chunks::<6>();
            let terms = StoreTerms::of_numbers(stamp, limits).filter(|_| rest.is_empty())?;
            Some(terms.raw().to_vec())
        }
        _ => return None,
    };
    let (triples, _) = triples.as_chunks::<3>();
    let list = |index: usize| triples[index * count..][..count].to_vec();
    Some(EncodedReply {
        granted: u64::try_from(granted).ok()?,
        prefetched: u64::try_from(prefetched).ok()?,
        time: u64::try_from(time).ok()?,
        birth: u64::try_from(birth).ok()?,
        next: match u64::try_from(next) {
            Ok(0) => Next::Now,
            Ok(at) => Next::At(at),
            Err(_) => Next::Never,
        },
        stamp,
        limits,
        marks: [list(0), list(1), list(2)],
        banned_since: u64::try_from(banned).ok()?,
        reserved: 0,
    })
}
