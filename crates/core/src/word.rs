//! The states of a word that cannot be charged. A *sealed* word is final, because it has a successor. An unset word is
//! not computed yet.

use crate::sync::{AtomicU64, Ordering};

/// The bit of words that are final, because there is a successor.
pub(crate) const SEALED: u64 = 1 << 63;

/// The first word of a successor, until a thread has computed its state. No state and no sealed state has this value.
pub(crate) const UNSET: u64 = u64::MAX;

/// The error of words that are final or not computed yet. The caller must use the successor, or compute its words
/// first.
#[derive(Debug)]
pub(crate) struct Sealed;

/// Loads a state that can be charged.
#[inline]
pub(crate) fn load(word: &AtomicU64) -> Result<u64, Sealed> {
    let state = word.load(Ordering::SeqCst);
    if state & SEALED == 0 { Ok(state) } else { Err(Sealed) }
}

/// Stores the computed state of an unset word. If another thread was faster, it stored the same state.
pub(crate) fn set(word: &AtomicU64, state: u64) {
    let _ = word.compare_exchange(UNSET, state, Ordering::SeqCst, Ordering::SeqCst);
}
