//! One limit, shared by any number of threads. No thread ever waits for another to decide.
//!
//! A retune must not lose what was consumed while others decide. It links a successor behind the cell in force, then
//! seals its words, which no charge can pass any more. Whoever meets the seal works out the successor's first state from
//! the sealed one (all get the same result), puts it there unless somebody was faster, and decides in the successor. So
//! deciders help the change through instead of waiting for it, and no charge falls in between. Only retunes wait for
//! each other.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::Leases;
use crate::meter::line::{self, swap};
use crate::meter::{self, Kind, Meter, Place, SEALED, Sealed, Stop, Taken, UNSET};
use crate::supply::Supply;
use crate::sync::{AtomicU64, Mutex, Once, Ordering, lock};
use crate::{Quota, Standing, Time};

/// How often threads get in each other's way before they lease; see `lease`.
const HOT: u64 = if cfg!(loom) { 0 } else { 16 };

/// A limit that threads share. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// let now = Time::from_nanos(1_700_000_000_000_000_000);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
/// assert!(limiter.check(now, 1).is_ok());
/// assert!(limiter.check(now, 1).is_ok());
///
/// let refused = limiter.check(now, 1).unwrap_err();
/// let retry_after = refused.retry_after().expect("one request fits the burst");
/// assert_eq!(retry_after, Duration::from_millis(500));
/// assert!(limiter.check(now.saturating_add(retry_after), 1).is_ok());
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    cell: Arc<Cell>,
}

#[derive(Debug)]
struct Cell {
    meter: Meter,
    /// How many retunes came before. A charge is given back only to the cell that it was made in.
    generation: u64,
    words: Words,
    /// Filled once threads got in each other's way [`HOT`] times.
    leases: Once<Leases>,
    /// How often they did; far more than `HOT` where no leases can be had.
    heat: AtomicU64,
    /// When this cell took over, in nanoseconds of [`Time`]. Final once the predecessor's first word is sealed.
    since: AtomicU64,
    /// Filled before the words are sealed.
    successor: Once<Arc<Cell>>,
    /// Held by the one who may fill `successor` and seal the words.
    retuning: Mutex<()>,
}

/// The state of one limit, in the cell itself where it is small.
#[derive(Debug)]
enum Words {
    One(Alone),
    Two([AtomicU64; 2]),
    Many(Box<[AtomicU64]>),
}

/// Alone on its cache lines: what never changes must not travel with what always does.
#[derive(Debug)]
#[repr(align(128))]
struct Alone([AtomicU64; 1]);

impl Limiter {
    /// A limiter with all of its burst free.
    pub fn new(now: Time, quota: Quota) -> Self {
        Self { cell: Arc::new(Cell::new(Meter::new(quota, now), 0, 0)) }
    }

    /// Charges `cost` if the quota has room for it. A refusal charges nothing.
    ///
    /// # Errors
    ///
    /// [`Refused`], which knows when to come back.
    #[inline]
    pub fn check(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        match self.cell.check_at_once(now, cost) {
            Some(decided) => decided,
            None => self.check_with_patience(now, cost),
        }
    }

    /// Everything that is not one look and one compare-and-swap. Kept apart so that those are inlined, and what their
    /// caller does not want of the answer is never worked out.
    #[inline(never)]
    fn check_with_patience(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        let mut cell = &*self.cell;
        loop {
            match cell.check(now, cost) {
                Ok(Taken { standing, place, .. }) => {
                    return Ok(Admitted { standing, charge: Charge { place, generation: cell.generation } });
                }
                Err(Stop::Refused(standing)) => return Err(Refused { standing, cost }),
                Err(Stop::Sealed) => cell = cell.follow(),
            }
        }
    }

    /// Takes a place for `cost` at the first moment at which there is one, if that is not after `latest`. Whoever comes
    /// later gets a later place; whoever cannot be served in time is refused at once, and charged nothing.
    ///
    /// At most twelve hours ahead; for [`SlidingWindowCounter`](crate::Strategy::SlidingWindowCounter) within the window
    /// that is running. A place in a later window of [`FixedWindow`](crate::Strategy::FixedWindow) gives up what is left of
    /// those before. Who does not go gives the place back with [`refund`](Self::refund).
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{Limiter, Quota, Strategy, Time};
    ///
    /// let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// let limiter = Limiter::new(now, Quota::new(Strategy::LeakyBucket, 10, Duration::from_secs(1), Some(2))?);
    /// let latest = now.saturating_add(Duration::from_millis(150));
    /// assert_eq!(limiter.reserve(now, 1, latest)?.at, now);
    /// assert_eq!(limiter.reserve(now, 1, latest)?.at, now.saturating_add(Duration::from_millis(100)));
    /// let refused = limiter.reserve(now, 1, latest).unwrap_err(); // its turn would come after 200 ms
    /// assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], which knows when the request would be admitted without waiting.
    pub fn reserve(&self, now: Time, cost: u64, latest: Time) -> Result<Reserved, Refused> {
        let mut cell = &*self.cell;
        loop {
            match cell.reserve(now, cost, latest) {
                Ok(Taken { at, standing, place }) => {
                    return Ok(Reserved { at, standing, charge: Charge { place, generation: cell.generation } });
                }
                Err(Stop::Refused(standing)) => return Err(Refused { standing, cost }),
                Err(Stop::Sealed) => cell = cell.follow(),
            }
        }
    }

    /// What [`check`](Self::check) would say, charging nothing.
    pub(crate) fn ask(&self, now: Time, cost: u64) -> Result<Standing, Refused> {
        let mut cell = &*self.cell;
        loop {
            match cell.ask(now, cost) {
                Ok(standing) => return Ok(standing),
                Err(Stop::Refused(standing)) => return Err(Refused { standing, cost }),
                Err(Stop::Sealed) => cell = cell.follow(),
            }
        }
    }

    /// Where the limiter stands, charging nothing.
    pub fn peek(&self, now: Time) -> Standing {
        let mut cell = &*self.cell;
        loop {
            match cell.standing(now) {
                Ok(standing) => return standing,
                Err(_) => cell = cell.follow(),
            }
        }
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        let mut cell = &*self.cell;
        while cell.first().load(Ordering::SeqCst) & SEALED != 0 {
            cell = cell.follow();
        }
        cell.meter.quota()
    }

    /// Gives back a charge of this limiter.
    ///
    /// At once, it leaves no trace; later, what would have been lost meanwhile is not given back: after the end of its window,
    /// once it is refilled anyway, and after a retune, a charge gives back nothing. Of places that are reserved ahead, those
    /// behind keep their moments: what is given back is what nobody has been promised yet. A sliding window log takes back
    /// the latest charge only.
    ///
    /// `clock` is read after the state: only so is its time not earlier than that of any charge in it. Let it read the
    /// clock, not repeat an earlier reading.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
    /// let admitted = limiter.check(now, 2).expect("all of the burst is free");
    /// limiter.refund(admitted.charge, || now);
    /// assert_eq!(limiter.peek(now).remaining(), 2);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a charge is given back once")]
    pub fn refund(&self, charge: Charge, clock: impl Fn() -> Time) {
        let mut cell = &*self.cell;
        while cell.generation <= charge.generation {
            if cell.generation == charge.generation {
                // Sealed meanwhile: it stays charged.
                let _ = cell.refund(&charge.place, &clock);
                return;
            }
            if cell.first().load(Ordering::SeqCst) & SEALED == 0 {
                return;
            }
            cell = cell.follow();
        }
    }

    /// Puts another quota in force and keeps what was consumed, while other threads go on deciding.
    ///
    /// What is free afterwards is at most what was free before, in requests and as a share of the burst, and refills at
    /// the new rate. An equal quota touches nothing. To or from a sliding window log the first decision afterwards may
    /// have to go through the whole log.
    ///
    /// The limiter returned starts at the new quota. All others of the same state follow to it, one step for each retune
    /// that came since they were made: drop them when you can. `clock` is read after the state, as for
    /// [`refund`](Self::refund).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    /// let limiter = Limiter::new(now, per_second(10)?);
    /// limiter.check(now, 10).expect("all of the burst is free");
    /// let limiter = limiter.retune(|| now, per_second(1000)?);
    /// assert!(limiter.check(now, 1).is_err()); // no fresh burst
    /// assert!(limiter.check(now.saturating_add(Duration::from_millis(1)), 1).is_ok()); // but the new rate
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[must_use = "the limiter it is called on stays behind the new one by a step"]
    pub fn retune(&self, clock: impl Fn() -> Time, quota: Quota) -> Self {
        let mut cell = &self.cell;
        loop {
            let guard = lock(&cell.retuning);
            if cell.first().load(Ordering::SeqCst) & SEALED != 0 {
                drop(guard);
                cell = cell.follow();
            } else if cell.meter.quota() == quota {
                return Self { cell: Arc::clone(cell) };
            } else {
                return Self { cell: Arc::clone(cell.succeed(quota, clock)) };
            }
        }
    }
}

impl Cell {
    fn new(meter: Meter, generation: u64, first: u64) -> Self {
        let words = Words::new(meter.words(), first);
        Self {
            meter,
            generation,
            words,
            leases: Once::empty(),
            heat: AtomicU64::new(0),
            since: AtomicU64::new(0),
            successor: Once::empty(),
            retuning: Mutex::new(()),
        }
    }

    fn first(&self) -> &AtomicU64 {
        &self.words.all()[0]
    }

    /// A decision that needs no second look; none if it is not that simple.
    #[inline(always)] // an answer that is passed on in memory costs more than the decision: 16 ns instead of 6
    fn check_at_once(&self, now: Time, cost: u64) -> Option<Result<Admitted, Refused>> {
        let (Kind::Line(supply), Words::One(Alone([word]))) = (&self.meter.kind, &self.words) else {
            return None;
        };
        let floor = supply.floor(now);
        let (after, mark) = if let Some(leases) = self.leases.get() {
            let end = leases.take_at_once(supply, floor, cost)?;
            (word.load(Ordering::Relaxed) & !SEALED, end)
        } else {
            let level = meter::load(word).ok()?;
            let Some(after) = supply.charge(level, floor, cost) else {
                let standing = Standing::of_line(supply, level, floor, now);
                return (!supply.is_set_back(level, floor)).then_some(Err(Refused { standing, cost }));
            };
            if word.compare_exchange(level, after, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                self.heat_up(supply);
                return None;
            }
            (after, after)
        };
        let charge = Charge { place: Place { at: now, cost, mark }, generation: self.generation };
        Some(Ok(Admitted { standing: Standing::of_line(supply, after, floor, now), charge }))
    }

    fn check(&self, now: Time, cost: u64) -> Result<Taken, Stop> {
        if let (Kind::Line(supply), Words::One(Alone([word]))) = (&self.meter.kind, &self.words) {
            match self.leases.get() {
                None => line::check_contended(supply, word, now, cost, || self.heat_up(supply)),
                Some(leases) => leases.check(supply, word, now, cost),
            }
        } else {
            self.meter.check(self.words.all(), now, cost)
        }
    }

    /// Another thread was faster.
    #[cold]
    fn heat_up(&self, supply: &Supply) {
        if self.heat.fetch_add(1, Ordering::Relaxed) == HOT {
            self.lend(supply);
        }
    }

    /// Leases from now on, if this limit is one that can lend.
    fn lend(&self, supply: &Supply) -> Option<&Leases> {
        if self.leases.get().is_none() {
            self.leases.fill(Leases::of(supply)?);
        }
        self.leases.get()
    }

    fn reserve(&self, now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        if self.leases.get().is_some() {
            match self.check(now, cost) {
                Err(Stop::Refused(_)) => {}
                decided => return decided,
            }
        }
        self.meter.reserve(self.words.all(), now, cost, latest)
    }

    fn ask(&self, now: Time, cost: u64) -> Result<Standing, Stop> {
        match self.meter.ask(self.words.all(), now, cost) {
            Err(Stop::Refused(refused)) => {
                let standing = self.standing(now)?;
                if standing.remaining() >= cost { Ok(standing) } else { Err(Stop::Refused(refused)) }
            }
            decided => decided,
        }
    }

    /// With what is leased, as if it had not been.
    fn standing(&self, now: Time) -> Result<Standing, Sealed> {
        let (Kind::Line(supply), Some(leases)) = (&self.meter.kind, self.leases.get()) else {
            return self.meter.standing(self.words.all(), now);
        };
        let (floor, level) = (supply.floor(now), meter::load(self.first())?);
        let level = level.max(floor).saturating_sub(leases.left(supply, floor));
        Ok(Standing::of_line(supply, level, floor, now))
    }

    /// Where seats can be leased, they are given back as the seats they were: the last ones to the word, others into a slot.
    fn refund(&self, place: &Place, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
        let (Kind::Line(supply), Words::One(Alone([word]))) = (&self.meter.kind, &self.words) else {
            return self.meter.refund(self.words.all(), place, clock);
        };
        loop {
            let level = meter::load(word)?;
            if place.mark > supply.ceiling(clock()) {
                // Reserved ahead, and so beyond all leases.
                return line::refund(supply, word, place, clock);
            }
            if level == place.mark {
                let before = level.saturating_sub(place.cost * supply.unit());
                if swap(word, level, before).is_ok() {
                    return Ok(());
                }
            } else if let Some(leases) = self.lend(supply) {
                leases.refund(supply, place);
                return Ok(());
            } else {
                return line::refund(supply, word, place, clock);
            }
        }
    }

    /// Seals the words and returns the successor. Only for the holder of `retuning`.
    fn succeed(&self, quota: Quota, clock: impl Fn() -> Time) -> &Arc<Self> {
        self.successor.fill(Arc::new(Self::new(Meter::new(quota, clock()), self.generation + 1, UNSET)));
        let successor = self.successor.get().expect("filled above");
        let mut word = self.first().load(Ordering::SeqCst);
        loop {
            // Not earlier than any charge in the word that is sealed.
            successor.since.store(clock().as_nanos(), Ordering::Relaxed);
            match self.first().compare_exchange_weak(word, word | SEALED, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return self.follow(),
                Err(moved_on) => word = moved_on,
            }
        }
    }

    /// If there are leases: the sealed word as it would be without them.
    fn take_back(&self, since: Time) -> Option<AtomicU64> {
        let (Kind::Line(supply), Some(leases)) = (&self.meter.kind, self.leases.get()) else {
            return None;
        };
        leases.seal();
        let (floor, level) = (supply.floor(since), self.first().load(Ordering::SeqCst) & !SEALED);
        Some(AtomicU64::new(level.max(floor).saturating_sub(leases.left(supply, floor)) | SEALED))
    }

    /// The successor, with a state. A word of this cell is sealed.
    #[cold]
    fn follow(&self) -> &Arc<Self> {
        let successor = self.successor.get().expect("the successor is there before a word is sealed");
        if successor.first().load(Ordering::SeqCst) == UNSET {
            self.meter.seal(self.words.all());
            let since = Time::from_nanos(successor.since.load(Ordering::Relaxed));
            let returned = self.take_back(since);
            let words = returned.as_ref().map_or(self.words.all(), std::slice::from_ref);
            successor.meter.succeed(successor.words.all(), &self.meter, words, since);
        }
        successor
    }
}

impl Words {
    fn new(count: usize, first: u64) -> Self {
        let word = |place| AtomicU64::new(if place == 0 { first } else { 0 });
        match count {
            1 => Self::One(Alone([word(0)])),
            2 => Self::Two([word(0), word(1)]),
            _ => Self::Many((0..count).map(word).collect()),
        }
    }

    #[inline]
    fn all(&self) -> &[AtomicU64] {
        match self {
            Self::One(Alone(words)) => words,
            Self::Two(words) => words,
            Self::Many(words) => words,
        }
    }
}

impl Drop for Cell {
    /// One by one: the drop of a long chain must not be as deep as the chain.
    fn drop(&mut self) {
        let mut next = self.successor.take();
        while let Some(cell) = next {
            next = Arc::into_inner(cell).and_then(|mut last| last.successor.take());
        }
    }
}

/// A request that was let through.
#[derive(Debug)]
pub struct Admitted {
    /// Where the limiter stands, this request counted.
    pub standing: Standing,
    /// What can be given back.
    pub charge: Charge,
}

/// A request that may go, now or later.
#[derive(Debug)]
pub struct Reserved {
    /// The moment from which it may go.
    pub at: Time,
    /// Where the limiter stands, this request counted.
    pub standing: Standing,
    /// What can be given back.
    pub charge: Charge,
}

/// What a limiter was charged for one request: for [`Limiter::refund`], once.
#[derive(Debug)]
pub struct Charge {
    pub(crate) place: Place,
    pub(crate) generation: u64,
}

/// A request that was not let through. It was charged nothing.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// Where the limiter stood.
    pub standing: Standing,
    /// What the request would have cost.
    pub cost: u64,
}

impl Refused {
    /// How long until the request would be admitted, if nothing else is; none if it never will be, because its cost
    /// exceeds what can be admitted at once.
    pub fn retry_after(&self) -> Option<Duration> {
        self.standing.retry_after(self.cost)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(wait) => write!(f, "over the limit: retry after {wait:?}"),
            None => {
                write!(f, "a cost of {} exceeds the {} that can be admitted", self.cost, self.standing.quota().most())
            }
        }
    }
}

impl Error for Refused {}
