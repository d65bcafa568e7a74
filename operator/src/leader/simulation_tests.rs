//! Simulates candidates whose clocks run fast and slow and are set, over a network that delays and loses messages.
//! There must never be two leaders at one time, and no two terms may share a sequence.

use std::collections::BTreeMap;

use super::*;

const CANDIDATES: usize = 3;
const LEASE: f64 = 8.0;
const RENEW: f64 = 2.0;
/// The seconds for which a candidate waits for an answer, if its term does not end before.
const ANSWER: f64 = LEASE * 3.0 / 8.0;
/// The seconds of trouble, and of calm after it.
const TROUBLE: f64 = 300.0;
const CALM: f64 = 40.0;
/// The maximum error of a clock's rate. A leader writes only in the first three quarters of a lease, which allows for
/// this error.
const DRIFT: f64 = 0.1;
/// The maximum by which a wall clock is set, in either direction, in microseconds.
const HOUR: i64 = 3_600_000_000;

enum Happening {
    /// A candidate decides on its next step, if it still waits for this turn.
    Turn { who: usize, life: u32, token: u64 },
    /// A request reaches the store.
    Arrive { who: usize, life: u32, token: u64, request: Request, lost: bool },
    /// A response reaches the candidate.
    Answer { who: usize, life: u32, token: u64, answer: Answer },
    /// A watch reports an older state to a candidate.
    Show { who: usize, life: u32, record: Option<Record> },
    /// A process pauses for this long.
    Pause { who: usize, seconds: f64 },
    /// A process is killed or stopped, and starts again.
    Restart { who: usize, releases: bool },
    /// A machine's wall clock is set.
    Set { who: usize, by: i64 },
    /// The Lease is rewritten without a change, so that its version changes.
    Touch,
}

#[derive(Clone)]
enum Request {
    Read,
    Claim(Moment, LeaseClaim),
}

enum Answer {
    Read(Result<Option<Record>, ()>),
    Claim(Moment, LeaseClaim, ClaimResult),
}

struct Machine {
    election: Election,
    offset: f64,
    speed: f64,
    unix_offset: i64,
    life: u32,
    /// The number of the awaited turn or response. All other ones are out of date.
    token: u64,
    paused_until: f64,
    tenure: Option<Tenure>,
}

struct World {
    rng: SmallRng,
    now: f64,
    agenda: BTreeMap<(u64, u64), Happening>,
    count: u64,
    machines: Vec<Machine>,
    lease: Option<Record>,
    version: u64,
    terms: Vec<(u64, u64)>,
    leaders: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let machines = (0..CANDIDATES)
            .map(|who| Machine {
                election: election(who, rng.random()),
                offset: rng.random_range(0.0..1e6),
                speed: rng.random_range(1.0 - DRIFT..=1.0 + DRIFT),
                unix_offset: rng.random_range(-2 * HOUR..2 * HOUR),
                life: 0,
                token: 0,
                paused_until: 0.0,
                tenure: None,
            })
            .collect();
        let agenda = BTreeMap::new();
        let mut world =
            Self { rng, now: 0.0, agenda, count: 0, machines, lease: None, version: 0, terms: Vec::new(), leaders: 0 };
        for who in 0..CANDIDATES {
            world.turn(who, 0.0);
        }
        let mut at = 0.0;
        while at < TROUBLE {
            let who = world.rng.random_range(0..CANDIDATES);
            let happening = match world.rng.random_range(0..10) {
                0..5 => Happening::Pause { who, seconds: world.rng.random_range(0.0..25.0) },
                5..7 => Happening::Restart { who, releases: world.rng.random() },
                7..9 => Happening::Set { who, by: if world.rng.random() { HOUR } else { -HOUR } },
                _ => Happening::Touch,
            };
            world.plan(at, happening);
            at += world.rng.random_range(0.5..15.0);
        }
        world
    }

    fn plan(&mut self, at: f64, happening: Happening) {
        self.count += 1;
        self.agenda.insert((micros(Duration::from_secs_f64(at)), self.count), happening);
    }

    fn is_calm(&self) -> bool {
        self.now >= TROUBLE
    }

    fn local(&self, who: usize) -> Moment {
        let machine = &self.machines[who];
        Duration::from_secs_f64(machine.offset + self.now * machine.speed)
    }

    fn turn(&mut self, who: usize, after: f64) {
        let machine = &mut self.machines[who];
        machine.token += 1;
        let (life, token) = (machine.life, machine.token);
        self.plan(self.now + after, Happening::Turn { who, life, token });
    }

    fn step(&mut self, who: usize) {
        let (local, machine) = (self.local(who), &mut self.machines[who]);
        let unix =
            (1_700_000_000_000_000 + machine.unix_offset).unsigned_abs() + micros(Duration::from_secs_f64(self.now));
        match machine.election.next(local, unix) {
            Step::Wait(until) => {
                let after = (until.saturating_sub(local)).as_secs_f64() / machine.speed;
                self.turn(who, after + 1e-6);
            }
            Step::Read => self.ask(who, Request::Read),
            Step::Claim(claim) => self.ask(who, Request::Claim(local, claim)),
            Step::Exit(restored) => panic!("{restored}, but no etcd is restored here"),
        }
    }

    fn ask(&mut self, who: usize, request: Request) {
        let trouble = !self.is_calm();
        let lost = trouble && self.rng.random_bool(0.1);
        // Some writes arrive long after their sender has stopped waiting.
        let slow = trouble && self.rng.random_bool(0.1);
        let delay = if slow { self.rng.random_range(0.0..30.0) } else { self.rng.random_range(0.0..0.05) };
        let local = self.local(who);
        let machine = &mut self.machines[who];
        let rest = machine.election.tenure(local).map_or(ANSWER, |tenure| (tenure.until - local).as_secs_f64());
        machine.token += 1;
        let (life, token, speed) = (machine.life, machine.token, machine.speed);
        let given_up = match &request {
            Request::Read => Answer::Read(Err(())),
            Request::Claim(sent, claim) => Answer::Claim(*sent, claim.clone(), ClaimResult::Unknown),
        };
        if !(trouble && self.rng.random_bool(0.1)) {
            self.plan(self.now + delay, Happening::Arrive { who, life, token, request, lost });
        }
        self.plan(self.now + rest.min(ANSWER) / speed, Happening::Answer { who, life, token, answer: given_up });
    }

    fn store(&mut self, request: Request) -> Answer {
        let (sent, claim) = match request {
            Request::Read => return Answer::Read(Ok(self.lease.clone())),
            Request::Claim(sent, claim) => (sent, claim),
        };
        if self.lease.as_ref().map(|lease| &lease.version) != claim.version.as_ref() {
            return Answer::Claim(sent, claim, ClaimResult::Conflict);
        }
        let record = Record {
            version: String::new(),
            holder: claim.holder.clone(),
            lease: claim.lease,
            transitions: claim.transitions,
            sequences_below: claim.sequences_below,
        };
        let record = self.put(record);
        Answer::Claim(sent, claim, ClaimResult::Stored(record))
    }

    fn put(&mut self, record: Record) -> Record {
        self.version += 1;
        let record = Record { version: self.version.to_string(), ..record };
        self.lease = Some(record.clone());
        for who in 0..CANDIDATES {
            if self.is_calm() || self.rng.random_bool(0.7) {
                let delay = if self.rng.random_bool(0.2) { self.rng.random_range(0.0..5.0) } else { 0.01 };
                let life = self.machines[who].life;
                let record = Some(record.clone());
                self.plan(self.now + delay, Happening::Show { who, life, record });
            }
        }
        record
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Turn { who, life, token } if self.is_awaited(who, life, token) => self.step(who),
            Happening::Arrive { who, life, token, request, lost } => {
                let answer = self.store(request);
                if !lost {
                    let delay = self.rng.random_range(0.0..0.05);
                    self.plan(self.now + delay, Happening::Answer { who, life, token, answer });
                }
            }
            Happening::Answer { who, life, token, answer } if self.is_awaited(who, life, token) => {
                let local = self.local(who);
                let election = &mut self.machines[who].election;
                match answer {
                    Answer::Read(answer) => election.read(local, answer),
                    Answer::Claim(sent, claim, outcome) => election.claimed(sent, local, &claim, outcome),
                }
                self.look(who);
                self.step(who);
            }
            Happening::Show { who, life, record } if self.machines[who].life == life => {
                let local = self.local(who);
                self.machines[who].election.shown(local, record);
                self.turn(who, 0.0);
            }
            Happening::Pause { who, seconds } => self.machines[who].paused_until = self.now + seconds,
            Happening::Restart { who, releases } => {
                // A stopped process releases the Lease. A killed process can return under its name.
                if releases && let Some(release) = self.machines[who].election.release() {
                    let sent = self.local(who);
                    self.store(Request::Claim(sent, release));
                }
                let seed = self.rng.random();
                let machine = &mut self.machines[who];
                machine.life += 1;
                machine.election = election(who, seed);
                machine.tenure = None;
                self.turn(who, 0.0);
            }
            Happening::Set { who, by } => self.machines[who].unix_offset += by,
            Happening::Touch => {
                if let Some(lease) = self.lease.clone() {
                    self.put(lease);
                }
            }
            Happening::Turn { .. } | Happening::Answer { .. } | Happening::Show { .. } => {}
        }
    }

    fn is_awaited(&self, who: usize, life: u32, token: u64) -> bool {
        (self.machines[who].life, self.machines[who].token) == (life, token)
    }

    /// Records a term that has begun or was renewed.
    fn look(&mut self, who: usize) {
        let Some(tenure) = self.machines[who].election.tenure(self.local(who)) else { return };
        let bounds = (tenure.first_sequence, tenure.sequences_below);
        let is_new = self.machines[who].tenure.is_none_or(|known| known.since != tenure.since);
        if is_new {
            self.terms.push(bounds);
            self.leaders += 1;
        }
        if let Some(term) = self.terms.iter_mut().find(|term| term.0 == bounds.0) {
            term.1 = bounds.1;
        }
        self.machines[who].tenure = Some(tenure);
        let used = tenure.first_sequence + micros(tenure.until - tenure.since);
        assert!(used < tenure.sequences_below, "a term outlasts its sequences: {tenure:?}");
    }

    fn leaders(&self) -> usize {
        (0..CANDIDATES).filter(|&who| self.machines[who].election.tenure(self.local(who)).is_some()).count()
    }

    /// Runs to the end. Returns the number of terms.
    fn run(mut self, seed: u64) -> u32 {
        while let Some(((micros, _), happening)) = self.agenda.pop_first() {
            self.now = micros as f64 / 1e6;
            if self.now > TROUBLE + CALM {
                break;
            }
            // A paused process acts later, but its term must still end in time.
            let who = match &happening {
                Happening::Turn { who, .. } | Happening::Answer { who, .. } | Happening::Show { who, .. } => Some(*who),
                _ => None,
            };
            match who.map(|who| self.machines[who].paused_until).filter(|&until| until > self.now) {
                Some(until) => self.plan(until + 1e-6, happening),
                None => self.happen(happening),
            }
            let leaders = self.leaders();
            assert!(leaders <= 1, "seed {seed}: {leaders} lead at {} s", self.now);
        }
        assert_eq!(self.leaders(), 1, "seed {seed}: no candidate leads after {CALM} s of calm");
        for pair in self.terms.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "seed {seed}: two terms share sequences: {pair:?}");
        }
        self.leaders
    }
}

fn election(who: usize, seed: u64) -> Election {
    let timing = LeaseTiming::new(Duration::from_secs_f64(LEASE), Duration::from_secs_f64(RENEW)).unwrap();
    Election::new(format!("candidate-{who}"), timing, seed)
}

#[test]
fn there_are_never_two_leaders_and_no_two_terms_share_a_sequence() {
    let mut terms = 0;
    for seed in 0..300 {
        terms += World::new(seed).run(seed);
    }
    assert!(terms > 3000, "only {terms} terms: the simulation has too few");
}
