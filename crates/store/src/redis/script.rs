//! Encodes questions for the script `take.lua`, and decodes its answers.

use std::fmt::Write as _;

use redis::Value as Raw;
use weir_seats::{
    Answer, EncodedBan, EncodedTake, Next,
    state::Mark,
    terms::{StoreTerms, text_of},
};

/// The source of the script.
pub(crate) const SOURCE: &str = include_str!("take.lua");

/// The arguments of the script.
pub(crate) fn arguments(encoded: &EncodedTake) -> [String; 5] {
    let EncodedTake { stamp, requests, cost, patience, prefetch, reach, owed, .. } = encoded;
    let (guard, lookahead) = (reach.guard, reach.lookahead);
    let seen = encoded.seen.as_deref().map(marks).unwrap_or_default();
    let returned = encoded.returned.as_ref();
    [
        text_of(&encoded.limits),
        format!("{stamp} {requests} {cost} {patience} {prefetch} {guard} {lookahead} {owed}"),
        seen,
        returned.map(|(birth, units, ends)| format!("{birth} {units} {}", marks(ends))).unwrap_or_default(),
        encoded.ban.as_ref().map(ban).unwrap_or_default(),
    ]
}

/// The part about the ban: its length, what to do (0: nothing, 1: start, 2: lift), how long ago it began, and the
/// beginning of the ban that the caller has seen.
fn ban(ban: &EncodedBan) -> String {
    let EncodedBan { length, started, is_lifted, seen } = *ban;
    let change = if is_lifted { 2 } else { u8::from(started.is_some()) };
    format!("{length} {change} {} {seen}", started.unwrap_or(0))
}

fn marks(marks: &[Mark]) -> String {
    let mut text = String::new();
    for [a, b, c] in marks {
        let space = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{space}{a} {b} {c}");
    }
    text
}

/// Decodes the answer of the script. None if it is invalid.
pub(crate) fn answer(raw: &Raw, encoded: &EncodedTake) -> Option<Answer> {
    let Raw::Array(items) = raw else { return None };
    let (ints, terms) = match items.split_last()? {
        (Raw::BulkString(terms), ints) => (ints, Some(std::str::from_utf8(terms).ok()?)),
        _ => (&items[..], None),
    };
    let int = |item: &Raw| if let Raw::Int(int) = item { Some(*int) } else { None };
    let ints = ints.iter().map(int).collect::<Option<Vec<i64>>>()?;
    let (&[granted, prefetched, time, birth, next, stamp, older, banned], lists) = ints.split_first_chunk::<8>()?;
    let stamp = u64::try_from(stamp).ok()?;
    let limits = match (older, terms) {
        (0, None) => None,
        (1, Some(terms)) => Some(StoreTerms::parse(stamp, terms)?.raw().to_vec()),
        _ => return None,
    };
    let count = limits.as_ref().unwrap_or(&encoded.limits).len();
    let numbers = lists.iter().map(|&int| u64::try_from(int).ok()).collect::<Option<Vec<_>>>()?;
    let (triples, rest) = numbers.as_chunks::<3>();
    if !rest.is_empty() || triples.len() != 3 * count {
        return None;
    }
    let list = |index: usize| triples[index * count..][..count].to_vec();
    Some(Answer {
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
    })
}
