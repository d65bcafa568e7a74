//! The chain of a limit's states. Each retune adds a state, and a handle keeps the state with which it was created.
//!
//! A retune leads all earlier states that handles still have to the newest state. So such a handle needs one step, even
//! after many retunes, and the states in between are freed.

use std::sync::{Arc, Weak};

use crate::sync::{Mutex, lock};

/// A state that retunes replace.
pub(crate) trait Replaced: Sized {
    /// The number of earlier retunes.
    fn retunes(&self) -> u64;
    fn chain(&self) -> &Chain<Self>;
    fn chain_mut(&mut self) -> &mut Chain<Self>;
}

/// The links of one state.
#[derive(Debug)]
pub(crate) struct Chain<T: Replaced> {
    /// The next state, or a later state whose words are all set. A decision takes the lock only if it found this state
    /// sealed, and for the time of a copy.
    successor: Mutex<Option<Arc<T>>>,
    /// The earlier states that were in use when this state was created.
    earlier: Vec<Weak<T>>,
}

impl<T: Replaced> Chain<T> {
    pub(crate) fn first() -> Self {
        Self { successor: Mutex::new(None), earlier: Vec::new() }
    }

    /// Returns the links of the state after `last`.
    pub(crate) fn after(last: &Arc<T>) -> Self {
        let in_use = last.chain().earlier.iter().filter(|earlier| earlier.strong_count() > 0).cloned();
        Self { successor: Mutex::new(None), earlier: in_use.chain([Arc::downgrade(last)]).collect() }
    }

    /// Sets the next state. Called before a word of this state is sealed.
    pub(crate) fn set(&self, next: &Arc<T>) {
        *lock(&self.successor) = Some(Arc::clone(next));
    }

    pub(crate) fn successor(&self) -> Option<Arc<T>> {
        lock(&self.successor).clone()
    }

    /// Leads all earlier states to `next`, the next state of this one. All words of `next` must be set: an earlier state
    /// cannot compute them.
    pub(crate) fn shorten(&self, next: &Arc<T>) {
        for earlier in self.earlier.iter().filter_map(Weak::upgrade) {
            earlier.chain().skip_to(next);
        }
    }

    fn skip_to(&self, next: &Arc<T>) {
        let mut successor = lock(&self.successor);
        // Another thread may have retuned `next` in the meantime, and may have been faster.
        let replaced = successor.take_if(|known| known.retunes() < next.retunes());
        if replaced.is_some() {
            *successor = Some(Arc::clone(next));
        }
        // Dropping the replaced state can free it, which must not happen under the lock.
        drop(successor);
        drop(replaced);
    }

    fn take(&mut self) -> Option<Arc<T>> {
        self.successor.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

impl<T: Replaced> Drop for Chain<T> {
    /// Drops the successors in a loop, because recursion on a long chain overflows the stack.
    fn drop(&mut self) {
        let mut next = self.take();
        while let Some(state) = next {
            next = Arc::into_inner(state).and_then(|mut last| last.chain_mut().take());
        }
    }
}
