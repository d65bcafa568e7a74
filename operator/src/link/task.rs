//! The loop of one link.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use weir_wire::{InForce, Refusal, RefusalKind, Status};

use super::client::{Heard, Tag, Told};
use super::rivals::Rivals;
use super::{Client, ContactError, Failure, FailureKind, Lanes, Observation, Seen, Shared, Timing};
use crate::clock;
use crate::metrics::Contest;
use crate::plan::Content;
use crate::world::ObjectKey;

/// An agent is reported as failed from its second miss in a row: the first may be a connection that went stale.
const MISSES_UNTIL_FAILED: u32 = 2;
/// The longest pause before an agent is asked again of which something was heard that needs a second look.
const SOON: Duration = Duration::from_millis(100);
/// An agent that closes the connection is left alone for so long after a call: one that closes after each answer would be
/// asked without end.
const AFTER_AN_ANSWER: Duration = Duration::from_secs(1);

pub(super) struct Task {
    shared: Arc<Shared>,
    pod: ObjectKey,
    pod_uid: String,
    client: Client,
    desired: watch::Receiver<Arc<Content>>,
    /// When to push; none once the agent has acknowledged the newest content.
    push_at: Option<Instant>,
    poll_at: Instant,
    /// When it was last called.
    asked_at: Instant,
    /// Failed pushes in a row.
    attempts: u32,
    /// Calls without an answer in a row.
    misses: u32,
    /// The last status that was reported, unless something else was reported since.
    told: Option<u64>,
    /// Names the last status, if with it there was nothing left to do: then only something else is worth hearing.
    known: Option<Tag>,
    /// The content that `sequence` was taken for: trying again must not look like something newer.
    numbered: String,
    sequence: u64,
    rivals: Rivals,
    /// Counts the agent while another operator writes to it.
    contest: Option<Contest>,
    /// Whether that was reported.
    told_contest: bool,
}

impl Task {
    pub(super) fn new(
        shared: Arc<Shared>,
        pod: ObjectKey,
        pod_uid: String,
        client: Client,
        desired: watch::Receiver<Arc<Content>>,
    ) -> Self {
        let now = clock::now();
        let poll_at = shared.poll.first(now);
        Self {
            shared,
            pod,
            pod_uid,
            client,
            desired,
            push_at: Some(now),
            poll_at,
            asked_at: now,
            attempts: 0,
            misses: 0,
            told: None,
            known: None,
            numbered: String::new(),
            sequence: 0,
            rivals: Rivals::default(),
            contest: None,
            told_contest: false,
        }
    }

    /// Runs until it is dropped or the engine is gone.
    pub(super) async fn run(mut self: Box<Self>) {
        loop {
            if self.rivals.ended(clock::now()) {
                self.contest = None;
                tracing::info!(pod = %self.pod, "no other operator writes to this agent any more");
            }
            if self.contest.is_some() != self.told_contest {
                self.told_contest = self.contest.is_some();
                if !self.report(Seen::Contested(self.told_contest)).await {
                    return;
                }
            }
            // Who goes on telling need not be asked.
            let poll_at = (!self.client.is_following()).then_some(self.poll_at);
            let due = [self.push_at, poll_at, self.rivals.ends_at()].into_iter().flatten().min();
            tokio::select! {
                // What is heard is what it nearly always wakes up for; it is bounded, so the rest has its turn.
                biased;
                heard = self.client.hears(&self.shared.poll) => {
                    if let Some(seen) = self.heard(heard) && !self.report(seen).await {
                        return;
                    }
                }
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.attempts = 0;
                    self.known = None;
                    self.push_at = Some(clock::now());
                }
                () = sleep(due) => {
                    let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= clock::now());
                    let seen = match (is_due(self.push_at), is_due(poll_at)) {
                        (true, _) => self.push().await,
                        (false, true) => self.poll().await,
                        (false, false) => None,
                    };
                    if let Some(seen) = seen && !self.report(seen).await {
                        return;
                    }
                }
            }
        }
    }

    /// What to tell of something that was heard between two calls.
    fn heard(&mut self, heard: Heard) -> Option<Seen> {
        match heard {
            Heard::Status(status) => self.told(status),
            // An agent that closes between two requests has ended, or has moved: it is asked at once, because with
            // thousands of agents the next question may be far away.
            Heard::Closed { is_silent } => {
                // The kernel has asked and heard nothing for longer than a question would have been given.
                self.misses = self.misses.saturating_add(u32::from(is_silent));
                self.poll_soon();
                None
            }
            Heard::Stopped => {
                self.poll_soon();
                self.poll_at = self.shared.poll.beat(self.poll_at);
                None
            }
            Heard::Silent => {
                self.poll_at = self.shared.poll.next(clock::now());
                self.missed_once(&ContactError::Timeout(self.shared.poll.patience()))
            }
            Heard::Nonsense(error) => {
                // It will answer well when it is asked again, and talk nonsense after that.
                self.misses = MISSES_UNTIL_FAILED.max(self.misses);
                self.poll_at = self.shared.poll.next(clock::now());
                self.missed(FailureKind::Unreachable, error.to_string())
            }
        }
    }

    fn poll_soon(&mut self) {
        let now = clock::now();
        let soon = (now + within(SOON)).max(self.asked_at + AFTER_AN_ANSWER);
        // What has passed is from before it went on telling.
        self.poll_at = if self.poll_at > now { self.poll_at.min(soon) } else { soon };
    }

    async fn push(&mut self) -> Option<Seen> {
        if self.client.is_following() {
            // It stops telling, and is asked again: not at once, because all may be pushed to at the same moment.
            self.poll_at = self.shared.poll.first(clock::now());
        }
        let lanes = self.shared.lanes.clone();
        let permit = self.place(&lanes).await;
        // Only now: what was wanted while it waited may not be wanted any more.
        let content = self.desired.borrow_and_update().clone();
        if self.numbered != content.revision {
            self.numbered.clone_from(&content.revision);
            self.sequence = self.next_sequence();
        }
        if !self.shared.term.holds(clock::since_boot()) {
            // The new leader has a link of its own, and this one is about to end.
            self.push_at = None;
            return None;
        }
        let started = clock::now();
        self.asked_at = started;
        let body = content.body(self.sequence);
        let outcome = self.client.put_config(body, self.shared.timing.timeout).await;
        drop(permit);
        self.shared.metrics.pushed(result_label(&outcome), clock::now() - started);
        match outcome {
            Ok(reply) if reply.in_force.revision == content.revision => {
                self.answered();
                self.attempts = 0;
                self.push_at = None;
                Some(Seen::Applied(content))
            }
            Ok(reply) => {
                // It answers, so its statuses must not make this forgotten.
                self.answered();
                self.push_later();
                let (told, wanted) = (reply.in_force.revision, &content.revision);
                let message = format!("it acknowledged revision {told:?} instead of {wanted:?}");
                Some(Seen::Failed(Failure { kind: FailureKind::Refused, message }))
            }
            Err(ContactError::Refused(refusal)) => {
                self.answered();
                self.refused(&refusal)
            }
            Err(error) => {
                self.push_later();
                self.missed(FailureKind::Unreachable, error.to_string())
            }
        }
    }

    /// Waits for a place, and meanwhile keeps its connection going: the agent may ask whether anybody is there, or close it.
    async fn place<'a>(&mut self, lanes: &'a Lanes) -> SemaphorePermit<'a> {
        let mut place = pin!(lanes.place(self.misses > 0));
        loop {
            tokio::select! {
                permit = &mut place => return permit,
                is_silent = self.client.closed() => self.misses = self.misses.saturating_add(u32::from(is_silent)),
            }
        }
    }

    async fn poll(&mut self) -> Option<Seen> {
        // To ask over an open connection costs little; to open thousands at once would take longer than an answer may.
        let lanes = self.shared.lanes.clone();
        let _place = if self.client.is_connected() { None } else { Some(self.place(&lanes).await) };
        self.asked_at = clock::now();
        self.poll_at = self.shared.poll.next(self.asked_at);
        // An agent that was silent, or has more to come, is asked for the whole status.
        let has_converged = self.misses == 0 && self.push_at.is_none();
        let known = self.known.take().filter(|_| has_converged);
        match self.client.status(known.as_ref(), &self.shared.poll, self.shared.timing.timeout).await {
            Ok(Told::Nothing) => {
                self.known = known;
                None
            }
            Ok(Told::Status { status, tag }) => {
                let seen = self.told(status);
                self.known = tag.filter(|_| self.push_at.is_none());
                seen
            }
            Err(error) => self.missed_once(&error),
        }
    }

    /// What to tell of a status.
    fn told(&mut self, status: Box<Status>) -> Option<Seen> {
        let was_silent = self.misses > 0;
        self.answered();
        self.compare(&status, was_silent);
        // At rest there is nothing to tell.
        let told = self.told.replace(digest(&status));
        (was_silent || told != self.told).then(|| Seen::Status(Arc::new(*status)))
    }

    /// What to report of a status that did not come. An agent that misses once is asked again at once.
    fn missed_once(&mut self, error: &ContactError) -> Option<Seen> {
        if self.misses + 1 < MISSES_UNTIL_FAILED {
            self.poll_at = clock::now() + within(SOON);
        }
        self.missed(FailureKind::Unreachable, error.to_string())
    }

    /// Pushes at once where the agent does not enforce what it should: it restarted, came back, or somebody else wrote.
    fn compare(&mut self, status: &Status, was_silent: bool) {
        let wanted = self.desired.borrow().revision.clone();
        match &status.in_force {
            Some(in_force) if in_force.revision == wanted => {
                self.push_at = None;
                self.attempts = 0;
            }
            in_force if self.push_at.is_none() || was_silent => {
                if let Some(other) = in_force
                    && self.push_at.is_none()
                    && other.sequence > self.sequence
                    && self.rivals.overwritten(clock::now())
                {
                    self.contested(other);
                }
                self.overtake(in_force.as_ref());
                self.push_at = Some(clock::now());
            }
            _ => {}
        }
    }

    fn contested(&mut self, other: &InForce) {
        let InForce { sequence, revision, .. } = other;
        tracing::warn!(
            pod = %self.pod,
            sequence,
            revision,
            "another operator writes to this agent, and each overwrites what the other has pushed: stop one of the two, or \
             name the agent to one of them only"
        );
        self.contest = Some(self.shared.metrics.contest());
    }

    fn refused(&mut self, refusal: &Refusal) -> Option<Seen> {
        let first = self.attempts == 0;
        self.push_later();
        if refusal.error == RefusalKind::Stale {
            self.overtake(refusal.in_force.as_ref());
            if first {
                self.push_at = Some(clock::now());
                return None;
            }
        }
        let error = ContactError::Refused(Box::new(refusal.clone()));
        Some(Seen::Failed(Failure { kind: FailureKind::Refused, message: error.to_string() }))
    }

    /// Goes on from the agent's sequence if it is ahead of ours.
    fn overtake(&mut self, in_force: Option<&InForce>) {
        if let Some(in_force) = in_force
            && in_force.sequence >= self.sequence
        {
            self.sequence = in_force.sequence.saturating_add(1);
        }
    }

    fn next_sequence(&self) -> u64 {
        self.shared.term.sequence(clock::since_boot()).max(self.sequence.saturating_add(1))
    }

    fn push_later(&mut self) {
        self.push_at = Some(clock::now() + within(longest_pause(&self.shared.timing, self.attempts)));
        self.attempts = self.attempts.saturating_add(1);
    }

    fn answered(&mut self) {
        self.misses = 0;
    }

    fn missed(&mut self, kind: FailureKind, message: String) -> Option<Seen> {
        self.misses = self.misses.saturating_add(1);
        (self.misses >= MISSES_UNTIL_FAILED).then_some(Seen::Failed(Failure { kind, message }))
    }

    async fn report(&mut self, seen: Seen) -> bool {
        if !matches!(seen, Seen::Status(_)) {
            (self.told, self.known) = (None, None);
        }
        let observation = Observation { pod: self.pod.clone(), pod_uid: self.pod_uid.clone(), at: clock::now(), seen };
        self.shared.observations.send(observation).await.is_ok()
    }
}

/// Of what a status says beyond how much time has passed.
fn digest(status: &Status) -> u64 {
    let mut hasher = DefaultHasher::new();
    let in_force = status.in_force.as_ref().map(|in_force| (in_force.sequence, &in_force.revision));
    (&status.instance, in_force).hash(&mut hasher);
    for policy in &status.policies {
        (&policy.uid, &policy.revision, policy.rules.len()).hash(&mut hasher);
        for rule in &policy.rules {
            (&rule.name, rule.allowed, rule.limited, rule.shadow_limited, rule.waited).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn result_label<T>(outcome: &Result<T, ContactError>) -> &'static str {
    match outcome {
        Ok(_) => "applied",
        Err(ContactError::Timeout(_)) => "timeout",
        Err(ContactError::Connection(_)) => "unreachable",
        Err(ContactError::Untrusted(_)) => "untrusted",
        Err(ContactError::Garbage(_)) => "garbage",
        Err(ContactError::Refused(_)) => "refused",
    }
}

/// Until then; for ever, if that is no time.
async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The longest pause after so many failed pushes in a row.
fn longest_pause(timing: &Timing, failures: u32) -> Duration {
    timing.backoff_first.saturating_mul(1 << failures.min(16)).min(timing.backoff_most)
}

/// Full jitter: any delay up to `most`.
fn within(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random_range(0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use weir_wire::ApplyReply;

    use super::*;
    use crate::identity::PodIdentity;
    use crate::leader::Term;
    use crate::link::client::tests::following::telling_agent;
    use crate::link::client::tests::pod;
    use crate::link::{Link, Poll};
    use crate::metrics::Metrics;
    use crate::plan::foresee;

    /// What happens at once may take this long on a busy machine.
    const LONG: Duration = Duration::from_secs(90);

    fn shared(timing: Timing, observations: mpsc::Sender<Observation>) -> Arc<Shared> {
        let shared = Shared {
            credentials: None,
            files: None,
            timing,
            lanes: Arc::new(Lanes::default()),
            observations,
            metrics: Metrics::default(),
            term: Term::unbounded(),
            poll: Arc::new(Poll::new(timing)),
        };
        Arc::new(shared)
    }

    /// With thousands of agents the next question may be far away; here it is a minute.
    #[tokio::test]
    async fn an_agent_that_ends_is_noticed_without_being_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let timing = Timing { poll: Duration::from_secs(60), ..Timing::default() };
        let (observations, mut observed) = mpsc::channel(16);
        let shared = shared(timing, observations);
        let content = Arc::new(foresee(&BTreeMap::new(), &BTreeMap::new(), "shop", BTreeMap::new()));
        let revision = content.revision.clone();
        let _link = Link::start(shared, ObjectKey::new("shop", "a"), "uid".to_owned(), url.into(), content);

        let (mut operator, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(br#""policies":[]}"#) {
            assert_ne!(operator.read_buf(&mut asked).await.unwrap(), 0);
        }
        let in_force = InForce { sequence: 1, revision, since_unix_millis: 0 };
        let body = serde_json::to_string(&ApplyReply { in_force }).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        operator.write_all(answer.as_bytes()).await.unwrap();
        assert!(matches!(observed.recv().await.unwrap().seen, Seen::Applied(_)));

        drop((operator, listener));
        let next = timeout(Duration::from_secs(5), observed.recv()).await.expect("it is noticed").unwrap();
        assert!(matches!(next.seen, Seen::Failed(Failure { kind: FailureKind::Unreachable, .. })), "{next:?}");
    }

    /// What it says between two questions counts like an answer: what it does not enforce it is sent at once.
    #[tokio::test]
    async fn an_agent_that_goes_on_telling_is_pushed_to_and_its_silence_is_noticed() {
        let (address, mut questions, held) = telling_agent().await;
        let timing = Timing { poll: Duration::from_secs(1), timeout: Duration::from_millis(700), ..Timing::default() };
        let (observations, mut observed) = mpsc::channel(16);
        let mut shared = shared(timing, observations);
        Arc::make_mut(&mut shared).credentials = Some(held);
        let content = Arc::new(foresee(&BTreeMap::new(), &BTreeMap::new(), "shop", BTreeMap::new()));
        let pod = pod("web");
        let url = format!("https://{address}");
        let _link = Link::start(shared, pod.key, pod.uid, url.into(), content.clone());
        let mut next = async || timeout(LONG, observed.recv()).await.expect("something is observed").unwrap().seen;
        let status = |revision: &str| {
            let in_force = format!(r#"{{"sequence":1,"revision":"{revision}","sinceUnixMillis":1}}"#);
            let head = r#"{"wireVersion":1,"instance":"a","agentVersion":"0","uptimeMillis":1,"inForce":"#;
            format!("{head}{in_force},\"policies\":[]}}\n")
        };
        assert!(matches!(next().await, Seen::Applied(_)));
        let (_, lines) = questions.recv().await.unwrap();
        lines.say(status(&content.revision)).await;
        assert!(matches!(next().await, Seen::Status(_)));
        for line in ["\n", "\n"] {
            lines.say(line).await;
        }

        lines.say(status("another")).await;
        let Seen::Status(told) = next().await else { panic!("it is told") };
        assert_eq!(told.in_force.as_ref().map(|in_force| &*in_force.revision), Some("another"));
        assert!(matches!(next().await, Seen::Applied(_)), "and sent what it should enforce");
        timeout(LONG, lines.closed()).await.expect("to be sent something ends what it tells");

        let (_, lines) = questions.recv().await.unwrap();
        lines.say(status(&content.revision)).await;
        assert!(matches!(next().await, Seen::Status(_)));
        // It says nothing more, and does not answer who asks.
        let seen = next().await;
        assert!(matches!(seen, Seen::Failed(Failure { kind: FailureKind::Unreachable, .. })), "{seen:?}");
        timeout(LONG, lines.closed()).await.expect("nobody listens to it any more");
        let (_, _unanswered) = questions.recv().await.unwrap();
        let (_, lines) = questions.recv().await.unwrap();
        lines.say(status(&content.revision)).await;
        assert!(matches!(next().await, Seen::Status(_)), "it is back");

        // What no agent would say is told at once, although each question is answered well.
        lines.say("nonsense\n").await;
        assert!(matches!(next().await, Seen::Failed(_)));
    }

    /// Thousands that fall silent together are not all called at once.
    #[tokio::test(start_paused = true)]
    async fn a_question_that_needs_a_connection_waits_for_a_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = shared(Timing::default(), mpsc::channel(16).0);
        let lanes = shared.lanes.clone();
        let places = lanes.answering.acquire_many(Lanes::ANSWERING).await.unwrap();
        let pod = ObjectKey::new("shop", "a");
        let client = Client::new(&url, PodIdentity { key: pod.clone(), uid: "uid".to_owned() }, None);
        let content = Arc::new(foresee(&BTreeMap::new(), &BTreeMap::new(), "shop", BTreeMap::new()));
        let mut task = Task::new(shared, pod, "uid".to_owned(), client, watch::channel(content).1);

        let mut polling = std::pin::pin!(task.poll());
        timeout(Duration::from_secs(60), &mut polling).await.expect_err("there is no place");
        timeout(Duration::from_secs(1), listener.accept()).await.expect_err("it has called");
        drop(places);
        tokio::select! {
            seen = &mut polling => panic!("nobody answers yet: {seen:?}"),
            accepted = listener.accept() => drop(accepted.unwrap()),
        }
    }

    /// The wait may be longer than an agent waits for a sign of life.
    #[tokio::test]
    async fn a_push_that_waits_for_a_place_looks_after_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = shared(Timing { timeout: LONG, ..Timing::default() }, mpsc::channel(16).0);
        let lanes = shared.lanes.clone();
        let pod = ObjectKey::new("shop", "a");
        let client = Client::new(&url, PodIdentity { key: pod.clone(), uid: "uid".to_owned() }, None);
        let content = Arc::new(foresee(&BTreeMap::new(), &BTreeMap::new(), "shop", BTreeMap::new()));
        let mut task = Task::new(shared, pod, "uid".to_owned(), client, watch::channel(content).1);
        let answer = async {
            let (mut operator, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                assert_ne!(operator.read_buf(&mut asked).await.unwrap(), 0);
            }
            let body = r#"{"wireVersion":1,"instance":"a","agentVersion":"0","uptimeMillis":1,"policies":[]}"#;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            operator.write_all(answer.as_bytes()).await.unwrap();
            operator
        };
        let (mut operator, _) = tokio::join!(answer, task.poll());
        assert!(task.client.is_connected());
        let _places = lanes.answering.acquire_many(Lanes::ANSWERING).await.unwrap();
        let hung_up = async {
            operator.shutdown().await.unwrap();
            operator.read_buf(&mut Vec::with_capacity(1)).await.unwrap()
        };
        let heard = tokio::select! {
            seen = task.push() => panic!("there is no place: {seen:?}"),
            heard = timeout(LONG, hung_up) => heard,
        };
        assert_eq!(heard.expect("it hangs up too"), 0);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_no_two_agents_keep_step() {
        let timing = Timing::default();
        let millis: Vec<u128> = (0..10).map(|failures| longest_pause(&timing, failures).as_millis()).collect();
        assert_eq!(millis, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(longest_pause(&timing, u32::MAX), timing.backoff_most);
        let mut pauses: Vec<Duration> = (0..100).map(|_| within(timing.backoff_most)).collect();
        assert!(pauses.iter().all(|pause| *pause <= timing.backoff_most));
        pauses.sort_unstable();
        // From anywhere in the whole pause; that a hundred lie in half of it happens in none of 10^27 runs.
        assert!(pauses[99] - pauses[0] > timing.backoff_most / 2, "{pauses:?}");
    }
}
