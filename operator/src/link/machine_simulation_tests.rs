//! Simulates a link. The agent restarts, rejects snapshots, acknowledges wrong revisions, falls silent and closes
//! connections. Another operator writes to it, the network delays messages, and the link's own process stops from time
//! to time. At the end, either the agent enforces the wanted content and the engine knows it, or the agent is silent
//! and the engine knows that.

use std::collections::BTreeMap;

use super::{
    tests::{acknowledgement, in_force_of, rejection, status},
    *,
};
use crate::clock;

/// The duration of the trouble and of the following calm, in seconds.
const TROUBLE: f64 = 120.0;
const CALM: f64 = 60.0;
const EVERY: f64 = 1.0;

enum Happening {
    /// An input for the machine.
    Machine(Input),
    /// The machine dials the agent.
    Dialed { connection: u64 },
    /// A message reaches the agent.
    Reach { connection: u64, message: Sent },
    /// The agent sends its status.
    Tell { connection: u64, asked: u64 },
    /// Trouble begins or ends.
    Trouble(Trouble),
}

enum Input {
    Due { token: u64 },
    PermitGranted,
    Answered { connection: u64, answer: Result<ToOperator, ContactError> },
    Said { connection: u64, message: ToOperator },
    Broke { connection: u64, is_silent: bool },
    Want(u32),
}

enum Sent {
    Ask,
    Push { revision: String, sequence: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The agent behaves in this way from now on.
    Be(Manner),
    Restart,
    /// Another operator writes to the agent.
    Write,
    Break {
        is_silent: bool,
    },
    /// The operator's process stops for this many milliseconds.
    Pause(u32),
    /// The term lapses for this many milliseconds.
    Lapse(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Good,
    Silent,
    Gone,
    Refusing,
    Lying,
    Garbage,
    Leaving,
}

struct World {
    rng: SmallRng,
    start: Instant,
    now: f64,
    agenda: BTreeMap<(u64, u64), Happening>,
    count: u64,

    machine: LinkMachine,
    wanted: u32,
    token: u64,
    paused_until: f64,
    lapsed_until: f64,
    permit: LanePermit,
    /// The machine's connection, open or being opened.
    connection: Option<u64>,
    is_open: bool,
    connections: u64,
    /// The revision and the sequence of the last push.
    pushed: Option<(String, u64)>,
    is_unanswered: bool,
    dials: Vec<f64>,
    last_seen: Option<Seen>,
    is_contested: bool,

    manner: Manner,
    in_force: Option<(u64, String)>,
    /// The agent's connection.
    served: Option<u64>,
    asked: u64,
    /// The times at which the last message in each direction arrives. Messages never overtake each other.
    arrives: [f64; 2],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let start = clock::now();
        let machine = LinkMachine::new(Arc::default(), Content::claiming("0"), start, rng.random());
        let mut world = Self {
            rng,
            start,
            now: 0.0,
            agenda: BTreeMap::new(),
            count: 0,
            machine,
            wanted: 0,
            token: 0,
            paused_until: 0.0,
            lapsed_until: 0.0,
            permit: LanePermit::None,
            connection: None,
            is_open: false,
            connections: 0,
            pushed: None,
            is_unanswered: false,
            dials: Vec::new(),
            last_seen: None,
            is_contested: false,
            manner: Manner::Good,
            in_force: None,
            served: None,
            asked: 0,
            arrives: [0.0; 2],
        };
        let (mut at, mut wants) = (0.0, 0);
        while at < TROUBLE {
            let trouble = match world.rng.random_range(0..12) {
                0..5 => Trouble::Be(*world.one(&[
                    Manner::Good,
                    Manner::Good,
                    Manner::Silent,
                    Manner::Gone,
                    Manner::Refusing,
                    Manner::Lying,
                    Manner::Garbage,
                    Manner::Leaving,
                ])),
                5 => Trouble::Restart,
                6..8 => Trouble::Write,
                8..10 => Trouble::Break { is_silent: world.rng.random() },
                10 => Trouble::Pause(world.rng.random_range(0..20_000)),
                _ => Trouble::Lapse(world.rng.random_range(0..5_000)),
            };
            world.plan(at, Happening::Trouble(trouble));
            if world.rng.random_bool(0.3) {
                wants += 1;
                let wanted = wants;
                world.plan(at, Happening::Machine(Input::Want(wanted)));
            }
            at += world.rng.random_range(0.0..6.0);
        }
        world.due();
        world
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.random_range(0..of.len())]
    }

    fn is_calm(&self) -> bool {
        self.now >= TROUBLE
    }

    fn plan(&mut self, at: f64, happening: Happening) {
        self.count += 1;
        self.agenda.insert((micros(at), self.count), happening);
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.now)
    }

    fn moment(&self) -> LinkMoment {
        let sequence = (self.now >= self.lapsed_until).then_some(1000 + micros(self.now));
        LinkMoment { now: self.instant(), unix: 0, sequence, every: Duration::from_secs_f64(EVERY) }
    }

    /// Returns the time at which a message that is sent now arrives: after all earlier ones.
    fn arrival(&mut self, to_agent: bool) -> f64 {
        let is_slow = !self.is_calm() && self.rng.random_bool(0.1);
        let delay = if is_slow { self.rng.random_range(0.0..3.0) } else { self.rng.random_range(0.0..0.02) };
        let last = &mut self.arrives[usize::from(to_agent)];
        *last = last.max(self.now + delay);
        *last
    }

    fn say(&mut self, connection: u64, message: ToOperator) {
        let at = self.arrival(false);
        self.plan(at, Happening::Machine(Input::Said { connection, message }));
    }

    fn status(&self) -> ToOperator {
        status(self.in_force.as_ref().map(|(sequence, revision)| (*sequence, revision.as_str())))
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Machine(input) => self.machine(input),
            Happening::Dialed { connection } => self.dialed(connection),
            Happening::Reach { connection, message } if self.served == Some(connection) => self.reached(message),
            Happening::Tell { connection, asked } if self.served == Some(connection) && self.asked == asked => {
                if !matches!(self.manner, Manner::Silent | Manner::Gone) {
                    let status = self.status();
                    self.say(connection, status);
                }
                self.plan(self.now + EVERY, Happening::Tell { connection, asked });
            }
            Happening::Reach { .. } | Happening::Tell { .. } => {}
            Happening::Trouble(trouble) => self.trouble(trouble),
        }
    }

    fn trouble(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Be(manner) => {
                self.manner = manner;
                match manner {
                    Manner::Gone => {
                        self.break_off(false);
                        self.in_force = None;
                    }
                    Manner::Garbage => self.break_off(false),
                    Manner::Leaving => {
                        if let Some(connection) = self.served {
                            self.say(connection, goodbye(0));
                            self.break_off(false);
                        }
                    }
                    Manner::Good | Manner::Silent | Manner::Refusing | Manner::Lying => {}
                }
            }
            Trouble::Restart => {
                self.break_off(false);
                self.in_force = None;
            }
            Trouble::Write => {
                let sequence = self.in_force.as_ref().map_or(0, |(sequence, _)| *sequence) + 1_000_000;
                self.in_force = Some((sequence, "somebody else's".to_owned()));
            }
            Trouble::Break { is_silent } => self.break_off(is_silent),
            Trouble::Pause(millis) => self.paused_until = self.now + f64::from(millis) / 1e3,
            Trouble::Lapse(millis) => self.lapsed_until = self.now + f64::from(millis) / 1e3,
        }
    }

    fn break_off(&mut self, is_silent: bool) {
        if let Some(connection) = self.served.take() {
            let at = self.arrival(false);
            self.plan(at, Happening::Machine(Input::Broke { connection, is_silent }));
        }
    }

    fn dialed(&mut self, connection: u64) {
        let refused = || Err(ContactError::Connection("refused".to_owned()));
        let answer = match self.manner {
            Manner::Silent => return,
            Manner::Gone => refused(),
            Manner::Garbage => Err(ContactError::Garbage("hello".to_owned())),
            Manner::Leaving => Ok(goodbye(self.rng.random_range(0..20_000))),
            Manner::Good | Manner::Refusing | Manner::Lying => {
                self.served = Some(connection);
                Ok(self.status())
            }
        };
        self.arrives = [self.now; 2];
        let at = self.arrival(false);
        self.plan(at, Happening::Machine(Input::Answered { connection, answer }));
    }

    fn reached(&mut self, message: Sent) {
        let Some(connection) = self.served else { return };
        match message {
            Sent::Ask => {
                self.asked += 1;
                let (at, asked) = (self.now + self.rng.random_range(0.0..EVERY), self.asked);
                self.plan(at, Happening::Tell { connection, asked });
            }
            Sent::Push { revision, sequence } => {
                let is_stale = self
                    .in_force
                    .as_ref()
                    .is_some_and(|(newest, held)| sequence < *newest || (sequence == *newest && *held != revision));
                let answer = match self.manner {
                    Manner::Silent | Manner::Gone => return,
                    Manner::Refusing => rejection(RejectionKind::Invalid, None),
                    Manner::Lying => acknowledgement(sequence, "a lie"),
                    _ if is_stale => {
                        let in_force = self.in_force.as_ref().map(|(newest, held)| in_force_of(*newest, held));
                        rejection(RejectionKind::Stale, in_force)
                    }
                    Manner::Good | Manner::Garbage | Manner::Leaving => {
                        self.in_force = Some((sequence, revision.clone()));
                        acknowledgement(sequence, &revision)
                    }
                };
                self.say(connection, answer);
            }
        }
    }

    fn machine(&mut self, input: Input) {
        if self.now < self.paused_until {
            // Messages that have arrived are handled before the timer.
            let later = if matches!(input, Input::Due { .. }) { 2e-6 } else { 0.0 };
            return self.plan(self.paused_until + 1e-6 + later, Happening::Machine(input));
        }
        let is_current = |connection| self.connection == Some(connection);
        let event = match input {
            Input::Due { token } if token == self.token => LinkEvent::Due,
            Input::PermitGranted => {
                self.permit = LanePermit::Held;
                LinkEvent::PermitGranted
            }
            Input::Answered { connection, answer } if is_current(connection) && !self.is_open => match answer {
                Ok(greeting) => {
                    self.is_open = true;
                    LinkEvent::Connected { not_after: u64::MAX, greeting }
                }
                Err(error) => {
                    self.connection = None;
                    LinkEvent::Ended(error)
                }
            },
            Input::Said { connection, message } if is_current(connection) && self.is_open => {
                if matches!(message, ToOperator::Acknowledgement(_) | ToOperator::Rejection(_)) {
                    self.is_unanswered = false;
                }
                LinkEvent::Received(message)
            }
            Input::Broke { connection, is_silent } if is_current(connection) && self.is_open => {
                self.hung_up();
                LinkEvent::Ended(ContactError::Closed { is_silent })
            }
            Input::Want(wanted) => {
                self.wanted = wanted;
                LinkEvent::Wanted(Content::claiming(&wanted.to_string()))
            }
            Input::Due { .. } | Input::Answered { .. } | Input::Said { .. } | Input::Broke { .. } => return,
        };
        let moment = self.moment();
        for action in self.machine.handle(event, &moment) {
            self.act(action);
        }
        self.due();
    }

    fn hung_up(&mut self) {
        (self.connection, self.is_open, self.is_unanswered) = (None, false, false);
    }

    fn act(&mut self, action: LinkAction) {
        match action {
            LinkAction::AcquirePermit { .. } => {
                assert_eq!(self.permit, LanePermit::None);
                self.permit = LanePermit::Waiting;
                let wait = self.rng.random_range(0.0..0.05);
                self.plan(self.now + wait, Happening::Machine(Input::PermitGranted));
            }
            LinkAction::ReleasePermit => {
                assert_eq!(self.permit, LanePermit::Held);
                self.permit = LanePermit::None;
            }
            LinkAction::Dial => {
                assert!(
                    self.connection.is_none() && self.permit == LanePermit::Held,
                    "the link made a second dial, or a dial without a permit"
                );
                self.connections += 1;
                let connection = self.connections;
                self.connection = Some(connection);
                self.dials.push(self.now);
                let at = self.now + self.rng.random_range(0.0..0.02);
                self.plan(at, Happening::Dialed { connection });
                let limit = Timing::default().timeout;
                let answer = Err(ContactError::Timeout(limit));
                self.plan(self.now + limit.as_secs_f64(), Happening::Machine(Input::Answered { connection, answer }));
            }
            LinkAction::HangUp => {
                assert!(self.is_open, "there is no connection to close");
                self.served = self.served.filter(|served| Some(*served) != self.connection);
                self.hung_up();
            }
            LinkAction::RequestStatus(_) => self.send(Sent::Ask),
            LinkAction::Push { content, sequence } => {
                assert!(
                    !self.is_unanswered && self.permit == LanePermit::Held,
                    "the link sent a second push, or a push without a permit"
                );
                assert!(self.now >= self.lapsed_until, "the link pushed after the term");
                let revision = content.revision.clone();
                if let Some((before, last)) = self.pushed.replace((revision.clone(), sequence)) {
                    assert!(sequence > last || (sequence == last && before == revision), "{sequence} after {last}");
                }
                self.is_unanswered = true;
                self.send(Sent::Push { revision, sequence });
            }
            LinkAction::Count(..)
            | LinkAction::RecordMessage(_)
            | LinkAction::Release
            | LinkAction::LevelsSent(_)
            | LinkAction::Answer { .. } => {}
            LinkAction::Observe(Seen::Contested(contested)) => {
                assert_ne!(contested, self.is_contested, "the other operator was reported twice");
                self.is_contested = contested;
            }
            LinkAction::Observe(seen) => self.last_seen = Some(seen),
        }
    }

    fn send(&mut self, message: Sent) {
        assert!(self.is_open, "a message needs an open connection");
        let Some(connection) = self.connection else { return };
        let at = self.arrival(true);
        self.plan(at, Happening::Reach { connection, message });
    }

    /// Schedules the time that the machine returned. The machine must not wait forever.
    fn due(&mut self) {
        let is_waiting = self.permit == LanePermit::Waiting || (self.connection.is_some() && !self.is_open);
        let due = self.machine.due();
        assert!(due.is_some() || is_waiting, "the machine waits forever");
        self.token += 1;
        if let Some(due) = due {
            let at = due.saturating_duration_since(self.start).as_secs_f64().max(self.now) + 1e-6;
            let token = self.token;
            self.plan(at, Happening::Machine(Input::Due { token }));
        }
    }

    /// Runs to the end, where the agent behaves as `last`. Returns the number of dials.
    fn run(mut self, seed: u64, last: Manner) -> usize {
        self.plan(TROUBLE, Happening::Trouble(Trouble::Be(last)));
        while let Some(((micros, _), happening)) = self.agenda.pop_first() {
            self.now = micros as f64 / 1e6;
            if self.now > TROUBLE + CALM {
                break;
            }
            self.happen(happening);
        }
        let wanted = self.wanted.to_string();
        let seen = self.last_seen.as_ref();
        match last {
            Manner::Good => {
                let held = self.in_force.as_ref().map(|(_, revision)| revision.clone());
                assert_eq!(held.as_ref(), Some(&wanted), "seed {seed}");
                let is_known = match seen {
                    Some(Seen::Acknowledged(content)) => content.revision == wanted,
                    Some(Seen::Status(status)) => status.in_force.as_ref().is_some_and(|it| it.revision == wanted),
                    _ => false,
                };
                assert!(is_known && !self.is_contested, "seed {seed}: {seen:?}");
            }
            _ => {
                let is_known = matches!(seen, Some(Seen::Failed(Failure { kind: FailureKind::Unreachable, .. })));
                assert!(is_known, "seed {seed}: {last:?} {seen:?}");
            }
        }
        for dials in self.dials.windows(16) {
            assert!(dials[15] - dials[0] > 0.5, "seed {seed}: dialed without end at {} s", dials[0]);
        }
        self.dials.len()
    }
}

fn micros(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_micros()).expect("a simulation is short")
}

fn goodbye(retry_after_millis: u64) -> ToOperator {
    ToOperator::Goodbye(Goodbye { reason: "leaving".to_owned(), retry_after_millis })
}

#[test]
fn after_any_trouble_the_agent_enforces_what_it_should_or_its_silence_is_known() {
    let mut dials = 0;
    let lasts = [Manner::Good, Manner::Good, Manner::Silent, Manner::Gone, Manner::Garbage];
    for (seed, last) in (0..400).zip(lasts.into_iter().cycle()) {
        dials += World::new(seed).run(seed, last);
    }
    assert!(dials > 4000, "only {dials} dials: the simulation has too few");
}
