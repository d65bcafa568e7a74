//! Notices who falls silent, among thousands of which something is heard every few seconds.
//!
//! A timer for each would be set again with each word, and mostly ring for nothing. Here a word costs one store into a dense
//! table, and one task looks the table through ten times a second.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock;

/// How exactly silence is noticed.
const BEAT: Duration = Duration::from_millis(100);
/// Who looks that much too late was away himself, or had no processor: what was told meanwhile has yet to be read.
const AWAY: Duration = Duration::from_millis(500);
/// So long there is to read it.
const GRACE: Duration = Duration::from_secs(2);
/// Places that are made together. They stay where they are.
const ROW: usize = 512;
/// Of this place nothing is expected.
const NEVER: u32 = u32::MAX;
/// Something was expected, and did not come.
const OVERDUE: u32 = u32::MAX - 1;

/// Looks after all places.
#[derive(Debug)]
pub struct Vigil {
    started: Instant,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    rows: Vec<Arc<Row>>,
    free: Vec<(Arc<Row>, usize)>,
    is_kept: bool,
}

#[derive(Debug)]
struct Row {
    /// By which beat something must be heard.
    due: [AtomicU32; ROW],
    wakers: Mutex<Box<[Option<Waker>]>>,
}

/// One of which something is expected, or nothing; given back with its value.
#[derive(Debug)]
pub struct Place {
    vigil: Arc<Vigil>,
    row: Arc<Row>,
    number: usize,
    waker: Option<Waker>,
}

impl Vigil {
    /// With nobody to look after.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started: clock::now(), places: Mutex::default() })
    }

    /// A place of which nothing is expected yet. Somebody must be at work in a runtime of tokio's.
    pub fn place(self: &Arc<Self>) -> Place {
        let mut places = lock(&self.places);
        if !std::mem::replace(&mut places.is_kept, true) {
            tokio::spawn(keep(Arc::downgrade(self)));
        }
        if places.free.is_empty() {
            let row = Arc::new(Row::new());
            places.free.extend((0..ROW).rev().map(|number| (row.clone(), number)));
            places.rows.push(row);
        }
        let (row, number) = places.free.pop().expect("there is a free one");
        Place { vigil: self.clone(), row, number, waker: None }
    }

    /// The beat that has begun.
    fn beat(&self, at: Instant) -> u32 {
        let beats = at.saturating_duration_since(self.started).as_millis() / BEAT.as_millis();
        // Thirteen years.
        u32::try_from(beats).unwrap_or(OVERDUE - 1).min(OVERDUE - 1)
    }

    /// Wakes the task whose agent did not report.
    fn look(&self, now: Instant) {
        let now = self.beat(now);
        let rows = lock(&self.places).rows.clone();
        for row in rows {
            for (number, place) in row.due.iter().enumerate() {
                let due = place.load(Ordering::Relaxed);
                if due < now && place.compare_exchange(due, OVERDUE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    let waker = lock(&row.wakers)[number].take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
            }
        }
    }
}

/// Looks, as long as there is something to look at.
async fn keep(vigil: Weak<Vigil>) {
    let (mut looked_at, mut looks_from) = (clock::now(), clock::now());
    loop {
        sleep(BEAT).await;
        let Some(vigil) = vigil.upgrade() else { return };
        let now = clock::now();
        if now.duration_since(looked_at) > BEAT + AWAY {
            looks_from = now + GRACE;
        }
        looked_at = now;
        if now >= looks_from {
            vigil.look(now);
        }
    }
}

impl Row {
    fn new() -> Self {
        Self { due: [const { AtomicU32::new(NEVER) }; ROW], wakers: Mutex::new((0..ROW).map(|_| None).collect()) }
    }
}

impl Place {
    /// Something is expected by then, and no longer what was expected before.
    pub fn expect(&self, due: Instant) {
        self.row.due[self.number].store(self.vigil.beat(due), Ordering::Release);
    }

    /// Ready once what was expected is overdue: at least, and at most two tenths of a second more.
    pub fn poll_overdue(&mut self, context: &Context<'_>) -> Poll<()> {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            let waker = context.waker().clone();
            lock(&self.row.wakers)[self.number] = Some(waker.clone());
            self.waker = Some(waker);
        }
        // After the waker was stored: a reader sees it, or is seen here.
        if self.row.due[self.number].load(Ordering::Acquire) == OVERDUE {
            // The waking side takes it.
            self.waker = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.row.due[self.number].store(NEVER, Ordering::Release);
        lock(&self.row.wakers)[self.number] = None;
        lock(&self.vigil.places).free.push((self.row.clone(), self.number));
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    async fn overdue(place: &mut Place) {
        poll_fn(|context| place.poll_overdue(context)).await;
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// More than fit a row, each at a time of its own.
    #[tokio::test(start_paused = true)]
    async fn everybody_is_woken_when_his_time_is_over_and_not_before() {
        let (vigil, start) = (Vigil::new(), Instant::now());
        let woken = (0..3 * ROW as u64).map(|number| {
            let (mut place, due) = (vigil.place(), start + millis(number * 7));
            place.expect(due);
            tokio::spawn(async move {
                overdue(&mut place).await;
                Instant::now().checked_duration_since(due)
            })
        });
        for late in futures::future::join_all(woken).await {
            let late = late.unwrap().expect("not before");
            assert!(late <= 2 * BEAT, "{late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_heard_in_time_is_not_woken() {
        let vigil = Vigil::new();
        let mut place = vigil.place();
        assert!(overdue(&mut place).now_or_never().is_none(), "nothing is expected");
        for _ in 0..100 {
            place.expect(Instant::now() + millis(1000));
            sleep(millis(999)).await;
            assert!(overdue(&mut place).now_or_never().is_none());
        }
        sleep(millis(201)).await;
        assert!(overdue(&mut place).now_or_never().is_some());
        place.expect(Instant::now() + millis(1000));
        assert!(overdue(&mut place).now_or_never().is_none(), "it was heard again");
        sleep(millis(1200)).await;
        overdue(&mut place).await;
    }

    /// The waker of a task that is gone must not be the one that is woken.
    #[tokio::test(start_paused = true)]
    async fn who_waits_last_is_woken() {
        let vigil = Vigil::new();
        let mut place = vigil.place();
        place.expect(Instant::now() + millis(1000));
        let (mut place, first) = tokio::spawn(async move {
            let first = overdue(&mut place).now_or_never();
            (place, first)
        })
        .await
        .unwrap();
        assert!(first.is_none());
        let mut second = pin!(overdue(&mut place));
        tokio::time::timeout(millis(1300), &mut second).await.expect("it is woken");
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_used_again_and_nothing_is_expected_of_them() {
        let vigil = Vigil::new();
        for _ in 0..10 * ROW {
            vigil.place().expect(Instant::now());
        }
        assert_eq!(lock(&vigil.places).rows.len(), 1);
        let mut again = vigil.place();
        sleep(3 * BEAT).await;
        assert!(overdue(&mut again).now_or_never().is_none());
        assert!(lock(&again.row.wakers).iter().flatten().count() == 1);
    }

    /// As after the whole process was stopped: that nothing was heard says nothing of anybody else.
    #[tokio::test(start_paused = true)]
    async fn who_was_away_takes_nobody_for_silent_at_once() {
        let vigil = Vigil::new();
        let (mut heard, mut silent) = (vigil.place(), vigil.place());
        for place in [&heard, &silent] {
            place.expect(Instant::now() + millis(5000));
        }
        sleep(millis(1000)).await;
        tokio::time::advance(millis(60_000)).await;
        tokio::select! {
            () = overdue(&mut heard) => panic!("nobody had the time to hear it"),
            () = overdue(&mut silent) => panic!("nobody can know that yet"),
            () = sleep(GRACE - 2 * BEAT) => heard.expect(Instant::now() + millis(5000)),
        }
        tokio::time::timeout(5 * BEAT, overdue(&mut silent)).await.expect("in the end it is");
        assert!(overdue(&mut heard).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_looks_when_there_is_nothing_to_look_after() {
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let vigil = Vigil::new();
        drop(vigil.place());
        assert_eq!(tasks(), 1);
        drop(vigil);
        sleep(2 * BEAT).await;
        assert_eq!(tasks(), 0);
    }
}
