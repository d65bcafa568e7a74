//! Decides what one link does next: a pure function of the events and their times. The machine opens no connection,
//! reads no clock and never waits; [`Task`](super::task::Task) does.
//!
//! A link has one connection. On it the machine pushes the newest content until the agent has acknowledged it, one
//! snapshot at a time, and it expects a status at each interval. A simulation (`machine_simulation_tests.rs`) tests the
//! machine with agents that restart, reject snapshots, fall silent and close connections.

use std::{sync::Arc, time::Duration};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;
use weir_channel::ToOperator;
use weir_wire::{ApplyReply, Goodbye, MOST_QUESTIONS, PRESENCE, Rejection, RejectionKind, SnapshotInForce, Status};

use super::{
    ContactError, Failure, FailureKind, Seen, Timing,
    bound::bound,
    digest::digest,
    event::{LinkAction, LinkEvent, LinkMoment},
    open::{Confirmation, Connection, Open, Received, kept},
    other_operator::OtherOperator,
    status_interval::is_as_often,
    steps::{LanePermit, Push},
};
use crate::plan::Content;

/// The number of misses in a row after which an agent is reported as failed. A single miss can be caused by a stale
/// connection.
const MISSES_UNTIL_FAILED: u32 = 2;
/// The longest pause before the next dial after a first miss, or after the agent closed the connection.
const SOON: Duration = Duration::from_millis(100);
/// The shortest time between two dials if the agent closes the connection. Otherwise an agent that closes after each
/// greeting would be dialed in a tight loop.
const BETWEEN_DIALS: Duration = Duration::from_secs(1);
/// The longest pause that an agent's goodbye can request.
const LONGEST_AWAY: Duration = Duration::from_secs(10);
/// If the machine handles a deadline this late, the operator had no processor time, and messages from agents may still
/// be unread.
const LATE: Duration = Duration::from_millis(500);
/// The time to wait for those unread messages.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct LinkMachine {
    timing: Arc<Timing>,
    wanted: Arc<Content>,
    connection: Connection,
    permit: LanePermit,
    push: Push,
    /// The time of the next dial, while there is no connection.
    dial_at: Instant,
    dialed_at: Instant,
    /// The end of the pause that the agent requested with a goodbye.
    away_until: Option<Instant>,
    /// The last content that the agent has acknowledged on this link. A new leader pushes to every agent once, even if
    /// the agent has the content in force, because the push carries the sequence that fences off the old leader.
    acknowledged: Option<Arc<Content>>,
    /// The number of failed pushes in a row.
    attempts: u32,
    confirmation: Confirmation,
    /// The number of failed dials and silent connections in a row.
    misses: u32,
    /// A hash of the last reported status, or `None` if another result was reported since.
    reported: Option<u64>,
    /// The revision that `sequence` belongs to. A repeated push keeps its sequence, so that it does not appear newer.
    numbered: String,
    sequence: u64,
    other_operator: OtherOperator,
    rng: SmallRng,
}

impl LinkMachine {
    /// Returns a machine that dials immediately. `seed` determines the random pauses.
    pub(super) fn new(timing: Arc<Timing>, wanted: Arc<Content>, now: Instant, seed: u64) -> Self {
        Self {
            timing,
            wanted,
            connection: Connection::None,
            permit: LanePermit::None,
            push: Push::At(now),
            dial_at: now,
            dialed_at: now,
            away_until: None,
            acknowledged: None,
            attempts: 0,
            confirmation: Confirmation::Confirmed,
            misses: 0,
            reported: None,
            numbered: String::new(),
            sequence: 0,
            other_operator: OtherOperator::default(),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns the time at which to report [`LinkEvent::Due`], unless another event comes first.
    pub(super) fn due(&self) -> Option<Instant> {
        let link = match (&self.connection, &self.push) {
            (Connection::None, _) => (self.permit == LanePermit::None).then_some(self.dial_at),
            (Connection::Dialing, _) => None,
            (Connection::Open(open), Push::At(at)) if self.permit == LanePermit::None => Some(open.deadline.min(*at)),
            (Connection::Open(open), Push::Sent { at, .. }) => Some(open.deadline.min(*at + self.timing.timeout)),
            (Connection::Open(open), _) => Some(open.deadline),
        };
        [link, self.other_operator.ends_at()].into_iter().flatten().min()
    }

    /// Handles an event, and returns the actions to perform.
    pub(super) fn handle(&mut self, event: LinkEvent, at: &LinkMoment) -> Vec<LinkAction> {
        let mut actions = Vec::new();
        match event {
            LinkEvent::Wanted(content) => self.want(content, at, &mut actions),
            LinkEvent::Due => self.check_deadlines(at, &mut actions),
            LinkEvent::PermitGranted => self.permit = LanePermit::Held,
            LinkEvent::Connected { not_after, greeting } => {
                let every = at.every;
                self.connection = Connection::Open(Open::new(not_after, every, at.now, self.timing.timeout));
                self.confirmation = Confirmation::Confirmed;
                actions.push(LinkAction::RequestStatus(every));
                self.received(greeting, at, &mut actions);
            }
            LinkEvent::LevelsCollected => actions.push(LinkAction::Release),
            LinkEvent::Received(message) => self.received(message, at, &mut actions),
            LinkEvent::Ended(error) => self.ended(error, at, &mut actions),
        }
        self.proceed(at, &mut actions);
        actions
    }

    fn want(&mut self, content: Arc<Content>, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let before = std::mem::replace(&mut self.wanted, content);
        let (before, kept) = (self.connection.kept(&before), self.connection.kept(&self.wanted));
        // If another policy is the reason now, the agent sends no status because of that.
        let withheld = kept.filter(|kept| before != Some(*kept)).map(Failure::withheld);
        actions.extend(withheld.map(|withheld| LinkAction::Observe(Seen::Failed(withheld))));
        if kept.is_none() && !matches!(self.push, Push::Sent { .. }) {
            self.push = Push::At(at.now);
        }
        (self.attempts, self.dial_at) = (0, self.not_away(at.now));
    }

    /// Checks the deadlines.
    fn check_deadlines(&mut self, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        if self.other_operator.ended(at.now) {
            self.report(Seen::Contested(false), actions);
        }
        let sent_at = match &self.push {
            Push::Sent { at, .. } => Some(*at),
            Push::Idle | Push::At(_) => None,
        };
        let Connection::Open(open) = &mut self.connection else { return };
        let is_unanswered = sent_at.is_some_and(|sent| at.now >= sent + self.timing.timeout);
        let is_silent = at.now >= open.deadline;
        if is_silent && !is_unanswered && at.now > open.deadline + LATE && !open.is_graced {
            (open.deadline, open.is_graced) = (at.now + GRACE, true);
        } else if is_silent || is_unanswered {
            actions.push(LinkAction::HangUp);
            self.ended(ContactError::Timeout(self.timing.timeout), at, actions);
        }
    }

    fn received(&mut self, message: ToOperator, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let Connection::Open(open) = &mut self.connection else { return };
        if open.received(&message, at.now, self.timing.timeout) == Received::TooOften {
            return self.protocol_error("it sends its status more often than requested", at, actions);
        }
        let silence = open.least_interval(at.now) + PRESENCE;
        let counted = |content: &Arc<Content>| !content.fleet.is_empty();
        if counted(&self.wanted) || self.acknowledged.as_ref().is_some_and(counted) {
            actions.push(LinkAction::RecordMessage(silence));
        }
        match message {
            ToOperator::Status(status) => self.status(status, at, actions),
            ToOperator::Unchanged => self.unchanged(at, actions),
            ToOperator::Acknowledgement(reply) => self.acknowledged(reply, at, actions),
            ToOperator::Rejection(rejection) => self.rejected(&rejection, at, actions),
            ToOperator::Goodbye(Goodbye { reason, retry_after_millis }) => {
                actions.push(LinkAction::HangUp);
                self.away_until = Some(at.now + Duration::from_millis(retry_after_millis).min(LONGEST_AWAY));
                self.ended(ContactError::Goodbye(reason), at, actions);
            }
            ToOperator::Questions(questions) if questions.len() > MOST_QUESTIONS => {
                self.protocol_error("it sent too many questions in one message", at, actions);
            }
            ToOperator::Questions(questions) => {
                let contents = [Some(self.wanted.clone()), self.acknowledged.clone()];
                actions.push(LinkAction::Answer { questions, contents });
            }
            ToOperator::LevelsSent(sent) => actions.push(LinkAction::LevelsSent(sent)),
            ToOperator::Unknown(_) => {}
        }
    }

    fn protocol_error(&mut self, what: &str, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        actions.push(LinkAction::HangUp);
        self.ended(ContactError::Garbage(what.to_owned()), at, actions);
    }

    fn status(&mut self, mut status: Box<Status>, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let keeps = kept(&status, &self.wanted);
        let earlier = self.acknowledged.as_deref().filter(|earlier| earlier.revision != self.wanted.revision);
        bound(&mut status, [&*self.wanted].into_iter().chain(earlier));
        let was_silent = std::mem::take(&mut self.misses) > 0;
        if let Connection::Open(open) = &mut self.connection {
            open.in_force.clone_from(&status.in_force);
            open.keeps = keeps;
        }
        self.compare(status.in_force.as_ref(), was_silent, at, actions);
        // An unchanged status is not reported again.
        let digest = Some(digest(&status));
        if was_silent || self.reported != digest {
            self.report(Seen::Status(Arc::new(*status)), actions);
            if let Some(withheld) = self.connection.kept(&self.wanted).map(Failure::withheld) {
                self.report(Seen::Failed(withheld), actions);
            }
            self.reported = digest;
        }
    }

    /// Handles a message that says that the last status is still true. So that status confirms or contradicts the
    /// acknowledgements that came after it.
    fn unchanged(&mut self, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        self.misses = 0;
        if self.confirmation != Confirmation::Confirmed
            && let Connection::Open(open) = &self.connection
        {
            let in_force = open.in_force.clone();
            self.compare(in_force.as_ref(), false, at, actions);
        }
    }

    /// Pushes immediately if the agent does not enforce the wanted content: it restarted, was unreachable, or another
    /// operator wrote to it.
    fn compare(
        &mut self,
        in_force: Option<&SnapshotInForce>,
        was_silent: bool,
        at: &LinkMoment,
        actions: &mut Vec<LinkAction>,
    ) {
        let is_idle = matches!(self.push, Push::Idle);
        match (in_force, &self.push) {
            // The answer to the push will arrive later, and is more recent than this status.
            (_, Push::Sent { .. }) => {}
            _ if self.connection.kept(&self.wanted).is_some() => self.push = Push::Idle,
            (Some(in_force), _) if in_force.revision == self.wanted.revision && self.is_fenced() => {
                self.push = Push::Idle;
                self.attempts = 0;
                self.confirmation = Confirmation::Confirmed;
            }
            // Another link or leader decides what the agent enforces.
            _ if at.sequence.is_none() => {}
            _ if is_idle && self.contradicts(in_force) => {
                self.confirmation = Confirmation::Contradicted;
                self.push_later(at);
            }
            _ if is_idle || was_silent => {
                if let Some(other) = in_force
                    && is_idle
                    && other.sequence > self.sequence
                    && self.other_operator.overwritten(at.now)
                {
                    self.report(Seen::Contested(true), actions);
                }
                self.overtake(in_force);
                self.push = Push::At(at.now);
            }
            _ => {}
        }
    }

    /// Returns true if the agent acknowledged the wanted content on this connection, no status has confirmed that, and
    /// no other operator has replaced the content since.
    fn contradicts(&self, in_force: Option<&SnapshotInForce>) -> bool {
        let is_acknowledged = self.acknowledged.as_ref().is_some_and(|it| it.revision == self.wanted.revision);
        let is_replaced = in_force.is_some_and(|other| other.sequence > self.sequence);
        self.confirmation != Confirmation::Confirmed && is_acknowledged && !is_replaced
    }

    /// Returns true if a push of the content that the agent has in force would change nothing. With rules of scope Fleet,
    /// the agent must have acknowledged a snapshot on this connection, because it asks only such an operator.
    fn is_fenced(&self) -> bool {
        let on_this = matches!(&self.connection, Connection::Open(open) if open.has_acknowledged);
        self.acknowledged.is_some() && (on_this || self.wanted.fleet.is_empty())
    }

    fn acknowledged(&mut self, reply: ApplyReply, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let Some((content, sent_at)) = self.answered() else {
            return self.protocol_error("it acknowledged a snapshot although no push was open", at, actions);
        };
        actions.push(LinkAction::Count("applied", at.now.duration_since(sent_at)));
        let acknowledged = reply.in_force.revision;
        if acknowledged == content.revision {
            self.acknowledged = Some(content.clone());
            if let Connection::Open(open) = &mut self.connection {
                open.has_acknowledged = true;
            }
            self.push = if content.revision == self.wanted.revision { Push::Idle } else { Push::At(at.now) };
            if self.confirmation != Confirmation::Contradicted {
                self.confirmation = Confirmation::Acknowledged;
                self.attempts = 0;
                self.report(Seen::Acknowledged(content), actions);
            }
        } else {
            self.push_later(at);
            let message = format!("it acknowledged revision {acknowledged:?} instead of {:?}", content.revision);
            self.report(Seen::Failed(Failure::new(FailureKind::Rejected, message)), actions);
        }
    }

    fn rejected(&mut self, rejection: &Rejection, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let Some((_, sent_at)) = self.answered() else {
            return self.protocol_error("it rejected a snapshot although no push was open", at, actions);
        };
        actions.push(LinkAction::Count("refused", at.now.duration_since(sent_at)));
        let is_first = self.attempts == 0;
        self.push_later(at);
        if rejection.error == RejectionKind::Stale {
            self.overtake(rejection.in_force.as_ref());
            if is_first {
                self.push = Push::At(at.now);
                return;
            }
        }
        self.report(Seen::Failed(Failure::of_rejection(rejection)), actions);
    }

    /// Ends the push that was answered, and returns it.
    fn answered(&mut self) -> Option<(Arc<Content>, Instant)> {
        match std::mem::replace(&mut self.push, Push::Idle) {
            Push::Sent { content, at } => {
                self.misses = 0;
                Some((content, at))
            }
            push => {
                self.push = push;
                None
            }
        }
    }

    /// Handles a connection that ended or could not be opened.
    fn ended(&mut self, error: ContactError, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let before = std::mem::replace(&mut self.connection, Connection::None);
        let pushed_at = match (&before, &self.push) {
            (Connection::Open(_), Push::Sent { at, .. }) => Some(*at),
            (Connection::Dialing, Push::At(_)) => Some(self.dialed_at),
            _ => None,
        };
        if let Some(pushed_at) = pushed_at {
            actions.push(LinkAction::Count(error.label(), at.now.duration_since(pushed_at)));
            self.push_later(at);
        }
        match (&before, error) {
            // An agent that closes the connection has ended or moved, so the next dial follows soon.
            (Connection::Open(_), ContactError::Closed { is_silent }) if pushed_at.is_none() => {
                // The kernel's probes were unanswered for longer than the timeout of an answer, so this counts as a
                // miss.
                self.misses = self.misses.saturating_add(u32::from(is_silent));
                self.dial_at = at.now + self.within(SOON);
            }
            (Connection::Open(_), error @ ContactError::Garbage(_)) => {
                // Such an agent would greet correctly on a new connection and then send garbage again, so one miss
                // suffices.
                self.misses = self.misses.max(MISSES_UNTIL_FAILED);
                self.missed(&error, at, actions);
            }
            (_, error) => self.missed(&error, at, actions),
        }
        if matches!(before, Connection::Open(_)) {
            self.dial_at = self.dial_at.max(self.dialed_at + BETWEEN_DIALS);
        }
        self.dial_at = self.not_away(self.dial_at);
    }

    fn missed(&mut self, error: &ContactError, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        self.misses = self.misses.saturating_add(1);
        self.dial_at = at.now
            + match &self.push {
                _ if self.misses < MISSES_UNTIL_FAILED => self.within(SOON),
                Push::At(push_at) => push_at.duration_since(at.now),
                Push::Idle | Push::Sent { .. } => at.every.mul_f64(self.rng.random_range(0.9..=1.1)),
            };
        if self.misses >= MISSES_UNTIL_FAILED {
            self.report(Seen::Failed(Failure::new(FailureKind::Unreachable, error.to_string())), actions);
        }
    }

    /// Performs each step that is possible at this time.
    fn proceed(&mut self, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        if let Connection::Open(open) = &mut self.connection
            && !matches!(self.push, Push::Sent { .. })
        {
            if at.unix >= open.not_after {
                actions.push(LinkAction::HangUp);
                self.connection = Connection::None;
                self.dial_at = at.now.max(self.dialed_at + SOON);
            } else if !is_as_often(open.every, at.every) {
                open.request(at.every, at.now, self.timing.timeout);
                actions.push(LinkAction::RequestStatus(at.every));
            }
        }
        let is_due = match (&self.connection, &self.push) {
            (Connection::None, _) => self.dial_at <= at.now,
            (Connection::Open(_), Push::At(push_at)) => *push_at <= at.now,
            (Connection::Dialing | Connection::Open(_), _) => false,
        };
        match (is_due, self.permit) {
            (true, LanePermit::None) => {
                self.permit = LanePermit::Waiting;
                actions.push(LinkAction::AcquirePermit { is_silent: self.misses > 0 });
            }
            (true, LanePermit::Held) if matches!(self.connection, Connection::None) => {
                self.connection = Connection::Dialing;
                self.dialed_at = at.now;
                self.away_until = None;
                actions.push(LinkAction::Dial);
            }
            (true, LanePermit::Held) => self.push(at, actions),
            (false, _) | (true, LanePermit::Waiting) => {}
        }
        let is_at_work = matches!(self.connection, Connection::Dialing) || matches!(self.push, Push::Sent { .. });
        if self.permit == LanePermit::Held && !is_at_work {
            self.permit = LanePermit::None;
            actions.push(LinkAction::ReleasePermit);
        }
    }

    fn push(&mut self, at: &LinkMoment, actions: &mut Vec<LinkAction>) {
        let Some(sequence) = at.sequence else {
            // The term has ended, or the link is retired. The next leader, and a pod that comes back, has its own link.
            self.push = Push::Idle;
            return;
        };
        let content = self.wanted.clone();
        if self.numbered != content.revision {
            self.numbered.clone_from(&content.revision);
            self.sequence = sequence.max(self.sequence.saturating_add(1));
        }
        actions.push(LinkAction::Push { content: content.clone(), sequence: self.sequence });
        self.push = Push::Sent { content, at: at.now };
    }

    /// Uses a higher sequence than the agent's.
    fn overtake(&mut self, in_force: Option<&SnapshotInForce>) {
        if let Some(in_force) = in_force
            && in_force.sequence >= self.sequence
        {
            self.sequence = in_force.sequence.saturating_add(1);
        }
    }

    fn push_later(&mut self, at: &LinkMoment) {
        let pause = self.within(self.timing.longest_pause(self.attempts));
        self.push = Push::At(at.now + pause);
        self.attempts = self.attempts.saturating_add(1);
    }

    fn report(&mut self, seen: Seen, actions: &mut Vec<LinkAction>) {
        self.reported = None;
        actions.push(LinkAction::Observe(seen));
    }

    /// Returns this time, or the end of the pause that the agent requested, if that is later.
    fn not_away(&self, then: Instant) -> Instant {
        self.away_until.map_or(then, |until| until.max(then))
    }

    /// Full jitter: returns a random delay up to `most`.
    fn within(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.rng.random_range(0.0..=1.0))
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
pub(super) mod tests;

#[cfg(test)]
#[path = "machine_simulation_tests.rs"]
mod simulation;
