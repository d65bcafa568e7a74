//! A program's view of one store: the store's clock, its response times, and whether it is lost.
//!
//! While the client exists, a background task probes a store that is lost or idle. A probe of a lost store opens a new
//! connection. Requests never probe, so a request never waits for a lost store.
//!
//! A *miss* is a question without an answer in time. Several misses in a row are a *loss* of the store, and each loss has
//! a number. A lost seat is something else: it expired or was dropped unused.

mod condition;
mod configuration;
mod refusal;
mod stats;

use std::{
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle, time::timeout};
use tokio_util::task::TaskTracker;
use weir_core::{Quota, Strategy};
use weir_seats::{Key, Reply, StoreClock, StoreError, StoreTerms, StoreTime, Take};
use weir_wire::{LevelsSent, Question};

pub(crate) use self::stats::Stats;
pub use self::stats::StoreStats;
use self::{condition::Condition, refusal::of_lost_store};
use crate::{
    backend::Backend,
    budget::KeyBudget,
    lock::lock,
    operator::OperatorStore,
    store_rule::{KeyReport, StoreRule},
};

/// The deadline of a question until enough answers were measured. 50 ms would be too short for a distant store.
const FIRST: Duration = Duration::from_millis(500);

/// The shortest deadline of a question to the operator. Its answers pass the thread that also receives snapshots and
/// serves scrapes.
const LEAST_OF_OPERATOR: Duration = Duration::from_millis(250);

/// The number of answers after which [`AdaptiveDeadline`] decides.
const ENOUGH: u32 = 16;

/// The deadline of a probe.
const PROBE: Duration = Duration::from_secs(1);

/// The deadline of a probe that opens a new connection. It is longer than all steps of opening one, which have their own
/// time limits, because the next probe drops a connection that is not open yet. Each silent Sentinel or node of a cluster
/// takes 1 or 2 s.
const RECONNECT: Duration = Duration::from_secs(10);

/// The time without a question after which the store is probed.
const IDLE: Duration = Duration::from_secs(5);

/// The pauses of the background task: first for a store that is lost, second for a store that answers.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(250)];

/// The longest wait for an answer, as a multiple of the deadline. Later requests use the seats of an answer that
/// arrives after the deadline.
const LATE: u32 = 4;

/// The longest wait of a request for an answer, if the rule would refuse it at the deadline. Stores pause for some
/// milliseconds, for example while they fork, and a late answer is better than a refusal.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// Opens a store.
pub type OpenStore = Box<dyn Fn() -> Result<Backend, String> + Send + Sync>;

/// The parts that a program provides to a store client.
pub struct StoreParts {
    /// The store's name in metrics and statuses.
    pub name: String,
    /// Opens the store. The client calls it again after the store was lost, and before a question fails because the store
    /// refuses it or its connection, so that it reads changed passwords.
    pub open: OpenStore,
    /// Returns Unix time that is monotonic: it ignores later changes of the system's clock.
    pub clock: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Returns Unix time of the system's clock, as it is corrected. It is the time of a store that does not report its own:
    /// all programs must have the same time, at any age.
    pub wall_clock: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Receives the duration of each question.
    pub took: Box<dyn Fn(Duration) + Send + Sync>,
    /// The runtime on which questions run.
    pub runtime: Handle,
    /// Bounds the keys of all rules. All stores of a program share it.
    pub keys: Arc<KeyBudget>,
    /// The seed of the random delays with which programs avoid asking at the same moment.
    pub seed: u64,
}

impl StoreParts {
    /// Returns the parts of a client on the current runtime. Both of its clocks are this one, and only its own rules share
    /// its budget of keys.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    pub fn new(
        name: &str,
        open: impl Fn() -> Result<Backend, String> + Send + Sync + 'static,
        clock: impl Fn() -> Duration + Clone + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            open: Box::new(open),
            clock: Box::new(clock.clone()),
            wall_clock: Box::new(clock),
            took: Box::new(|_| {}),
            runtime: Handle::current(),
            keys: Arc::default(),
            seed: 1,
        }
    }
}

/// A client of one store. All rules that use the store share the client and its connection.
pub struct StoreClient {
    pub(crate) parts: StoreParts,
    /// Opens the store in place of `parts.open`, after a change of its configuration.
    changed: Mutex<Option<OpenStore>>,
    backend: Mutex<Option<Arc<Backend>>>,
    /// The operator, if it is this store.
    pub(crate) operator: Option<Arc<OperatorStore>>,
    time: Mutex<StoreClock>,
    condition: Mutex<Condition>,
    /// The number of questions that failed. A level that is older than the last failure is sent to the store again.
    failures: AtomicU64,
    pub(crate) stats: Stats,
    random: AtomicU64,
    /// The tasks that ask the store.
    tasks: TaskTracker,
    /// The rules that use the store.
    rules: Mutex<Vec<Weak<dyn StoreRule>>>,
}

/// The condition of a store: whether it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCondition {
    /// True if the store answers, and does not refuse all questions of a rule.
    pub reached: bool,
    /// The time of the last change of `reached`, as Unix time.
    pub since: Duration,
    /// The reason why the store does not answer.
    pub error: Option<String>,
}

/// An answer, and the time at which it arrived.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) reply: Reply,
    pub(crate) at: Duration,
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").field("name", &self.parts.name).finish_non_exhaustive()
    }
}

impl StoreClient {
    /// Starts a client and its background task. The task connects immediately, so that the status can report whether
    /// the store answers.
    pub fn start(parts: StoreParts) -> Arc<Self> {
        let (runtime, seed) = (parts.runtime.clone(), parts.seed);
        let now = (parts.clock)();
        // The first question opens the store again, and reports the error.
        let backend = (parts.open)().ok().map(Arc::new);
        let operator = backend.as_deref().and_then(Backend::operator).cloned();
        let client = Arc::new(Self {
            parts,
            changed: Mutex::default(),
            backend: Mutex::new(backend),
            operator,
            time: Mutex::default(),
            condition: Mutex::new(Condition { begun: now, ..Condition::default() }),
            failures: AtomicU64::new(0),
            stats: Stats::default(),
            random: AtomicU64::new(seed),
            tasks: TaskTracker::new(),
            rules: Mutex::default(),
        });
        runtime.spawn(run_background_task(Arc::downgrade(&client)));
        client
    }

    /// The store's name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The counts so far.
    pub fn stats(&self) -> StoreStats {
        self.stats.read()
    }

    /// The condition of the store. Before the first question, the store counts as reached.
    pub fn condition(&self) -> StoreCondition {
        if let Some((error, since)) = self.operator.as_ref().and_then(|operator| operator.away()) {
            return StoreCondition { reached: false, since, error: Some(error.to_owned()) };
        }
        let condition = lock(&self.condition);
        let refusal = condition.refusals.lasting(self.now());
        match (condition.breaker.lost_since(), condition.reached_since) {
            (None, _) if let Some(refusal) = refusal => {
                StoreCondition { reached: false, since: refusal.since, error: Some(refusal.to_string()) }
            }
            (None, since) => StoreCondition { reached: true, since: since.unwrap_or(condition.begun), error: None },
            (Some(since), _) => StoreCondition { reached: false, since, error: condition.error.clone() },
        }
    }

    /// Returns when rules of this store can admit requests: immediately, or if the store is the operator, when the operator
    /// has ended this program's shares or these shares begin.
    pub async fn ready(&self) {
        if let Some(operator) = &self.operator {
            let begun = lock(&self.condition).begun;
            operator.first_release(begun).await;
        }
    }

    /// Gives unused seats back to the store. Waits until all questions on their way are answered, but at most this
    /// time. A program calls this function before it ends, when it serves no more requests.
    pub async fn close(&self, most: Duration) {
        self.tasks.close();
        let close = async {
            // The answers to the questions on their way can bring more seats.
            for _ in 0..2 {
                self.rules().iter().for_each(|rule| rule.give_all_back());
                self.tasks.wait().await;
            }
        };
        let _ = timeout(most, close).await;
    }

    pub(crate) fn now(&self) -> Duration {
        (self.parts.clock)()
    }

    /// Runs a task that asks the store.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn_on(task, &self.parts.runtime)
    }

    /// The store's time. None before the first answer.
    pub(crate) fn time(&self, now: Duration) -> Option<StoreTime> {
        lock(&self.time).at(now)
    }

    /// The number of the current loss. None if the store is not lost.
    pub(crate) fn current_loss(&self) -> Option<u64> {
        let (releases, is_away) = self.operator.as_ref().map_or((0, false), |operator| operator.shares());
        let condition = lock(&self.condition);
        (is_away || condition.breaker.lost_since().is_some()).then_some(condition.losses + releases)
    }

    /// The number of the current loss, or of the next one if the store is not lost.
    pub(crate) fn loss_number(&self) -> u64 {
        let (releases, _) = self.operator.as_ref().map_or((0, false), |operator| operator.shares());
        let condition = lock(&self.condition);
        condition.losses + releases + u64::from(condition.breaker.lost_since().is_none())
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// The longest time that a request waits for an answer.
    pub(crate) fn deadline(&self) -> Duration {
        let least = if self.asks_operator() { LEAST_OF_OPERATOR } else { Duration::ZERO };
        let condition = lock(&self.condition);
        if condition.answers >= ENOUGH { condition.deadline.within(FIRST).max(least) } else { FIRST }
    }

    /// The longest time that a request waits for an answer, if the rule would refuse it at the deadline.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.deadline().max(LONGEST_WAIT)
    }

    /// The average duration of a question, zero before the first answer.
    pub(crate) fn round(&self) -> Duration {
        lock(&self.condition).round.unwrap_or_default()
    }

    /// A random number from zero to one, so that programs do not ask at the same moment.
    pub(crate) fn jitter(&self) -> f64 {
        f64::from(self.random()) / f64::from(u32::MAX)
    }

    fn random(&self) -> u32 {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        let mut mixed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or_default()
    }

    pub(crate) fn add_rule(&self, rule: Weak<dyn StoreRule>) {
        lock(&self.rules).push(rule);
    }

    /// The rules in force. Forgets those that have ended.
    fn rules(&self) -> Vec<Arc<dyn StoreRule>> {
        let mut rules = lock(&self.rules);
        rules.retain(|rule| rule.strong_count() > 0);
        rules.iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks the store, and measures how long the answer takes. It waits longer than the deadline.
    pub(crate) async fn ask(&self, key: &Key, question: &Take<'_>) -> Result<Answered, StoreError> {
        let most = (self.deadline() * LATE).max(LONGEST_WAIT);
        let answer = self.ask_repeatedly(key, question, most).await;
        // The operator refuses single questions, and counts others.
        if !self.asks_operator() {
            let line = lock(&self.condition).learn_refusal(key, answer.as_ref().err(), self.now());
            if let Some(line) = line {
                tracing::warn!(store = self.name(), "{line}");
            }
        }
        let (answered, begun) = answer?;
        self.learn(answered.at.saturating_sub(begun));
        Ok(answered)
    }

    /// Makes the store forget the count and the ban of a key, within `most`.
    pub(crate) async fn forget(&self, key: &Key, terms: &StoreTerms, most: Duration) -> Result<(), StoreError> {
        let now = u64::try_from((self.parts.wall_clock)().as_micros()).unwrap_or_default();
        let forgotten = self.backend_or_failure()?.forget(key, terms, now, most).await;
        forgotten.inspect_err(|error| self.failed(error))
    }

    /// Forgets that the store refuses the questions of a rule: the rule changes or ends.
    pub(crate) fn forget_refusal(&self, counters: &str) {
        lock(&self.condition).end_refusal(counters, self.now());
    }

    /// Asks the store, and asks again if the connection ends or if the store has new secrets. Also returns the beginning
    /// of the last attempt.
    async fn ask_repeatedly(
        &self,
        key: &Key,
        question: &Take<'_>,
        most: Duration,
    ) -> Result<(Answered, Duration), StoreError> {
        let mut begun = self.now();
        let end = begun + most;
        let mut used = self.backend_or_failure()?;
        let mut answer = self.ask_within(&used, key, question, most).await;
        if matches!(answer, Err(StoreError::Lost(_))) && self.repeats(question) {
            begun = self.now();
            used = self.backend_or_failure()?;
            answer = self.ask_within(&used, key, question, end.saturating_sub(begun)).await;
        }
        // A new connection fails if the old password is no longer valid, or if another authority signs the certificate.
        if matches!(answer, Err(StoreError::Lost(_) | StoreError::Refused(_)))
            && self.repeats(question)
            && let Some(renewed) = self.renewed(&used)
        {
            begun = self.now();
            answer = self.ask_within(&renewed, key, question, end.saturating_sub(begun)).await;
            if answer.is_ok() {
                self.replace(&used, renewed);
            }
        }
        answer.map(|answered| (answered, begun))
    }

    fn backend_or_failure(&self) -> Result<Arc<Backend>, StoreError> {
        self.backend().map_err(StoreError::Lost).inspect_err(|error| self.failed(error))
    }

    /// Returns true if a question is asked again after its connection was lost: a connection can end although the store
    /// is there. The store may have charged the question. Charging it twice never admits too many requests, but units
    /// must not be given back twice.
    fn repeats(&self, question: &Take<'_>) -> bool {
        let gives_back = question.credit > 0 || question.returned.is_some();
        !gives_back && !self.asks_operator() && self.current_loss().is_none()
    }

    async fn ask_within(
        &self,
        backend: &Backend,
        key: &Key,
        question: &Take<'_>,
        most: Duration,
    ) -> Result<Answered, StoreError> {
        let sent = self.now();
        lock(&self.condition).asked = Some(sent);
        self.stats.count_trip();
        let clock = || u64::try_from((self.parts.wall_clock)().as_micros()).unwrap_or_default();
        let reply = backend.take(key, question, clock, most).await.inspect_err(|error| self.failed(error))?;
        let at = self.now();
        lock(&self.time).learn(reply.time, sent, at);
        self.answered(at);
        Ok(Answered { reply, at })
    }

    /// Acts as if an answer with this time of the store arrived.
    #[cfg(test)]
    pub(crate) fn learn_time(&self, time: u64) {
        let now = self.now();
        lock(&self.time).learn(time, now, now);
    }

    /// Records the duration of a question. Probes are not recorded, because a probe can include the time to connect.
    fn learn(&self, took: Duration) {
        (self.parts.took)(took);
        let mut condition = lock(&self.condition);
        condition.deadline.learn(took);
        condition.answers = condition.answers.saturating_add(1);
        condition.round = Some(condition.round.map_or(took, |round| (round * 7 + took) / 8));
    }

    fn answered(&self, now: Duration) {
        let logs = lock(&self.condition).answered(now);
        if logs {
            tracing::info!(store = self.name(), "the store answers again");
        }
    }

    /// Records that the deadline passed without an answer. The answer can still arrive later.
    pub(crate) fn missed(&self, waited: Duration) {
        lock(&self.condition).deadline.learn(waited);
        self.failed(&StoreError::Late);
    }

    fn failed(&self, error: &StoreError) {
        let is_of_question = match error {
            StoreError::Cost | StoreError::Unsupported(_) => true,
            // The operator refuses single questions, for example because it has too many keys. It counts others.
            StoreError::Refused(_) => self.asks_operator(),
            _ => false,
        };
        if is_of_question {
            return;
        }
        self.failures.fetch_add(1, Relaxed);
        let (now, jitter) = (self.now(), self.random());
        let mut condition = lock(&self.condition);
        let was_lost = condition.breaker.lost_since().is_some();
        condition.missed_at = now;
        condition.breaker.missed(now, jitter);
        let text = of_lost_store(error);
        condition.error = Some(text.clone());
        if let Some(since) = condition.breaker.lost_since().filter(|_| !was_lost) {
            condition.lost(since);
        }
        // The log of the channel says whether the operator is there.
        let logs = !self.asks_operator() && condition.logs_loss(now);
        drop(condition);
        if logs {
            tracing::warn!(store = self.name(), error = text, "the store is lost");
        }
    }

    /// Returns when a new share of the limits begins, since when a share can continue, and whether the store is lost. While the
    /// store is lost, a share begins with this loss, also for keys whose first request arrives later. Since then, the
    /// store has given nothing to this program. A share continues over losses that follow each other closely.
    pub(crate) fn share_begins(&self, now: Duration) -> (Duration, Duration, bool) {
        let condition = lock(&self.condition);
        let (begun, lost) = (condition.begun, condition.breaker.lost_since());
        let times = lost.map_or((now, now, false), |since| (since, condition.shares_since, true));
        drop(condition);
        self.operator.as_ref().map_or(times, |operator| {
            let (begins, is_lost) = operator.share_begins(begun, now);
            (begins, begins, is_lost || lost.is_some())
        })
    }

    /// Returns at most `most` questions. They report the levels that this program knows to a new operator, and take
    /// nothing. Also returns the message that follows them.
    pub fn levels(&self, most: usize) -> (Vec<Question>, LevelsSent) {
        let (mut levels, mut is_complete) = (Vec::new(), true);
        for rule in self.rules() {
            is_complete &= rule.levels(most, &mut levels);
        }
        let time = self.time(self.now()).map(|time| time.earliest);
        (levels.iter().filter_map(KeyReport::question).collect(), LevelsSent { is_complete, time, releases: 0 })
    }

    /// Ends the shares of this program, and returns questions that report to the operator what the shares used. This
    /// operator can be a new one, with another clock.
    pub fn end_shares(&self) -> Vec<Question> {
        lock(&self.time).replace();
        let mut used = Vec::new();
        self.rules().iter().for_each(|rule| rule.end_shares(&mut used));
        used.iter().filter_map(KeyReport::question).collect()
    }

    /// Returns true if the store is the operator.
    pub(crate) fn asks_operator(&self) -> bool {
        self.operator.is_some()
    }

    pub(crate) fn takes_back(&self) -> bool {
        self.backend().is_ok_and(|backend| backend.takes_back())
    }

    #[cfg(test)]
    pub(crate) fn forget_backend(&self) {
        *lock(&self.backend) = None;
    }

    /// Sends a question that charges a unit to a counter that nothing else uses, because a store can be full or
    /// read-only: it answers, but it cannot count. The counter is random, because one server of several can be lost.
    async fn probe(&self, reconnects: bool) {
        if reconnects {
            *lock(&self.backend) = None;
        }
        let quota = Quota::new(Strategy::FixedWindow, 1, Duration::from_secs(1), None);
        let terms = quota.ok().and_then(|quota| StoreTerms::new(0, &[(0, quota)]).ok());
        let (hash, owed) = if self.asks_operator() { (0, 0) } else { (self.random().into(), 1) };
        let (Some(terms), Ok(key)) = (terms, Key::new("weir.probe", hash)) else { return };
        let most = if reconnects { RECONNECT } else { PROBE };
        let _ = self.ask_repeatedly(&key, &Take { requests: 0, owed, ..Take::new(&terms) }, most).await;
    }

    /// Returns whether to probe now, and whether that needs a new connection.
    fn next_probe(&self) -> (bool, bool) {
        let now = self.now();
        let mut condition = lock(&self.condition);
        if let Some(operator) = &self.operator {
            // The channel already shows whether the operator is there, so only a missed answer needs a probe.
            if operator.away().is_some() {
                return (false, false);
            }
            if operator.last_counted_at() > condition.missed_at {
                condition.answered(now);
            }
            return (condition.breaker.lost_since().is_some() && condition.breaker.allows(now), false);
        }
        let is_lost = condition.breaker.lost_since().is_some();
        let is_idle = condition.asked.is_none_or(|asked| now.saturating_sub(asked) >= IDLE);
        let is_unknown = condition.reached_since.is_none() || condition.error.is_some();
        let probes = if is_lost { condition.breaker.allows(now) } else { is_idle || is_unknown };
        (probes, is_lost)
    }
}

/// Runs the client's background task, until the last handle of the client is dropped.
async fn run_background_task(client: Weak<StoreClient>) {
    loop {
        let Some(store) = client.upgrade() else { return };
        let (probes, reconnects) = store.next_probe();
        if probes {
            store.probe(reconnects).await;
        }
        store.rules().into_iter().for_each(StoreRule::sweep);
        let pause = PAUSES[usize::from(store.current_loss().is_none())];
        drop(store);
        tokio::time::sleep(pause).await;
    }
}
