//! A world of agents, links and leaders: links with delays that break or lose the messages of one direction for
//! seconds, partitions, leaders that stop, resume or are replaced, agents whose channels are late, clocks that differ,
//! pods that come, go and outlive their deletion, and limits that change. An oracle checks all admissions with whole numbers. It shares no code
//! with the counter.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use weir_core::{Quota, Strategy};
use weir_fuzz::Random;
use weir_seats::{
    EncodedTake, Key, Reply, Seats, StoreClock, StoreTerms, Take, Value,
    model::{take, used_up},
    terms::StoreLimit,
};
use weir_wire::{Answer, LevelsSent, Mark, Outcome, Question};

use super::counter::Counter;
use crate::{leader::Term, plan::CountedRule};

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;
const EVERY: u64 = SECOND;
/// The time without an answer to a question after which an agent sends nothing for [`SILENCE`]. Then its share begins.
const UNANSWERED: u64 = SECOND;
const SILENCE: u64 = 2 * PRESENCE;
/// The silence of an agent after which the operator counts it as absent.
const PRESENCE: u64 = EVERY + weir_wire::PRESENCE.as_secs() * SECOND;
/// The time of a link that loses data. Then both kernels end the connection.
const USER_TIMEOUT: usize = 3_000_000;
const UNIX: u64 = 1_790_000_000_000_000;
const NAME: &str = "shop/api.all";

/// What happens in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Faults {
    breaks: bool,
    pauses: bool,
    leaders: bool,
    churn: bool,
    jumps: bool,
    retunes: bool,
    /// A link loses the messages of one direction for some time. The kernel or a device sends them again afterwards.
    losses: bool,
    /// An agent is connected, but reads and sends nothing for some time. Meanwhile it can decide on requests.
    lateness: bool,
    /// The policy is deleted and created again. Agents that are cut off do not learn that.
    recreations: bool,
    /// Pods are marked for deletion. Their agents continue, and get no other link. A pod is gone only with `churn`.
    deletions: bool,
}

struct World {
    random: Random,
    now: u64,
    faults: Faults,
    strategy: Strategy,
    /// The limits, by their stamp.
    quotas: Vec<Quota>,
    /// The number of sharers, by the stamp of the limits.
    sharers: [u32; 3],
    content: usize,
    leaders: Vec<Leader>,
    agents: Vec<Agent>,
    keys: usize,
    /// The real time of each admission, by key, and of each unit that came too late for its request.
    admitted: Vec<Vec<u64>>,
    wasted: Vec<Vec<u64>>,
    asked: u64,
    /// Units that the rules do not bound: what only lost agents knew, and jumps of clocks.
    excess: u64,
    born: usize,
    next_leader_at: u64,
    /// The time at which a deleted policy is created again.
    recreated_at: Option<u64>,
    steady: Steady,
}

/// The agent of a policy in another namespace. It never fails, so this policy loses no unit, even if others fail.
#[derive(Default)]
struct Steady {
    /// The leader and the number of the channel to it.
    link: Option<(usize, u64)>,
    releases: u64,
    /// The last level, and whether an earlier leader counted it.
    level: Option<Vec<Mark>>,
    is_level_earlier: bool,
    admitted: u64,
    /// A leader was paused before it counted, so the agent was missing.
    was_missing: bool,
    /// A leader reported that the limit counts as used up.
    was_reported: bool,
}

const STEADY: &str = "bank-pod";
const OF_STEADY: u64 = 300;

fn steady_rules() -> [CountedRule; 1] {
    let (counters, policy) = ("bank/api.all".to_owned(), Arc::from("bank/api"));
    [CountedRule { counters, policy, stamp: 1, sharers: 1, accepts_limits: false }]
}

struct Leader {
    counter: Counter,
    /// The difference of its clock and the real time.
    offset: u64,
    ends: u64,
    is_alive: bool,
    paused_until: u64,
}

#[derive(Clone, Debug)]
enum Up {
    Status,
    Questions(Vec<Question>),
    LevelsSent(LevelsSent),
    /// The agent has acknowledged a content without the policy.
    Deleted,
}

#[derive(Default)]
struct Link {
    leader: usize,
    number: u64,
    up: Vec<(u64, Up)>,
    down: Vec<(u64, Vec<Answer>)>,
    /// The number of empty answers that the agent has received.
    releases: u64,
    /// The times at which the two ends notice that the link is broken.
    operator_sees: u64,
    agent_sees: u64,
    is_broken: bool,
    is_clean: bool,
    /// The times until which the two directions deliver nothing.
    up_lost_until: u64,
    down_lost_until: u64,
}

#[derive(Default)]
struct Agent {
    name: String,
    /// The pod is being deleted.
    is_leaving: bool,
    content: usize,
    content_at: u64,
    link: Option<Link>,
    cut_off_until: u64,
    clock: StoreClock,
    offset: u64,
    /// The agent knows the clock of an operator. Before that, the windows of its share are those of its own clock.
    knows_clock: bool,
    /// The time of the first question since the last answers.
    asked_at: Option<u64>,
    /// The time since which the agent sends nothing, so that the operator notices its absence.
    quiet_since: Option<u64>,
    /// The time until which the agent's channel is late, and until which the agent decides on no requests.
    late_until: u64,
    asleep_until: u64,
    /// The questions that a late channel has not sent.
    unsent: Vec<Up>,
    /// The operator did not answer on this link for so long that the share began. The agent probes it.
    probes: bool,
    /// The agent asks, and uses no share.
    asks: bool,
    /// The agent has the policy. Otherwise, it admits all requests, and they do not count.
    has_policy: bool,
    /// The time at which the share begins.
    share_at: u64,
    status_at: u64,
    keys: Vec<Local>,
    ids: u64,
}

impl Agent {
    fn is_quiet(&self, now: u64) -> bool {
        self.quiet_since.is_some_and(|since| now < since + SILENCE)
    }
}

#[derive(Default)]
struct Local {
    hand: Vec<Seats>,
    level: Option<Vec<Mark>>,
    level_stamp: u64,
    /// The channel has ended since the answer with this level.
    is_level_earlier: bool,
    pending: Option<(u64, u64, EncodedTake)>,
    share: Option<Value>,
    /// The times of requests that the share admitted and that are not reported.
    used: Vec<u64>,
    /// The number of those that were reported at `reported_at`, until an answer to a later question confirms it.
    reported: u64,
    reported_at: u64,
}

const NEVER: u64 = u64::MAX / 4;

fn duration(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl World {
    fn new(seed: u64, strategy: Strategy, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let pods = 2 + random.below(11);
        // Agents that are cut off can have the share of a smaller number of sharers.
        let most_sharers = u32::try_from(pods.next_power_of_two()).expect("few") * 4;
        let sharers = [most_sharers / 2, most_sharers, most_sharers / 2];
        let requests = u64::from(most_sharers) * (1 + random.below(2) as u64);
        let period = [SECOND, 3 * SECOND, 10 * SECOND, 30 * SECOND][random.below(4)];
        let quotas = [1, 2, 1].map(|times| {
            let is_bucket = !matches!(
                strategy,
                Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog
            );
            let burst = is_bucket.then_some(requests * times);
            Quota::new(strategy, requests * times, duration(period), burst).expect("a quota")
        });
        let mut world = Self {
            random,
            now: SECOND,
            faults,
            strategy,
            quotas: quotas.to_vec(),
            sharers,
            content: 0,
            leaders: Vec::new(),
            agents: Vec::new(),
            keys: 2,
            admitted: vec![Vec::new(); 2],
            wasted: vec![Vec::new(); 2],
            asked: 0,
            excess: 0,
            born: 0,
            next_leader_at: 0,
            recreated_at: None,
            steady: Steady::default(),
        };
        for _ in 0..pods {
            world.add_agent();
        }
        world.lead();
        world
    }

    fn below(&mut self, count: usize) -> u64 {
        self.random.below(count) as u64
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    fn terms(&self, content: usize) -> StoreTerms {
        StoreTerms::new(content as u64 + 1, &[(0, self.quotas[content])]).expect("terms")
    }

    /// The limits of a share, as agents compute them.
    fn share(&self, content: usize) -> StoreTerms {
        let (quota, of) = (self.quotas[content], u64::from(self.sharers[content]));
        let part = match self.strategy {
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
                Quota::new(self.strategy, quota.requests() / of, quota.period(), None)
            }
            _ => Quota::new(
                self.strategy,
                quota.requests(),
                quota.period() * self.sharers[content],
                Some((quota.burst() / of).max(1)),
            ),
        };
        StoreTerms::new(content as u64 + 1, &[(0, part.expect("a quota"))]).expect("terms")
    }

    /// The rules of a pod: those of the content, or none while the policy is deleted.
    fn rules(&self, content: usize) -> Vec<CountedRule> {
        if self.recreated_at.is_some() {
            return Vec::new();
        }
        vec![CountedRule {
            counters: NAME.to_owned(),
            policy: Arc::from("shop/api"),
            stamp: content as u64 + 1,
            sharers: self.sharers[content],
            accepts_limits: false,
        }]
    }

    fn period(&self) -> u64 {
        u64::try_from(self.quotas[0].period().as_micros()).expect("short")
    }

    fn most_requests(&self) -> u64 {
        self.quotas[..=self.content].iter().map(Quota::requests).max().unwrap_or(0)
    }

    fn add_agent(&mut self) {
        self.born += 1;
        let (name, offset) = (format!("pod-{}", self.born), UNIX + self.below(1_000_000));
        let agent = Agent {
            name,
            content: self.content,
            content_at: NEVER,
            offset,
            has_policy: true,
            share_at: self.now + 20 * SECOND,
            status_at: NEVER,
            keys: (0..self.keys).map(|_| Local::default()).collect(),
            ..Agent::default()
        };
        self.agents.push(agent);
        let (name, rules, now) = (format!("pod-{}", self.born), self.rules(self.content), duration(self.now));
        for leader in self.leaders.iter_mut().filter(|leader| leader.is_alive) {
            leader.counter.expect(&name, &rules, true, now);
        }
    }

    /// Starts the next leader.
    fn lead(&mut self) {
        let before = self.leaders.last().map_or(UNIX + 3_600 * SECOND, |leader| leader.offset);
        let offset = match self.random.below(4) {
            0 | 1 if !self.leaders.is_empty() => before + self.below(2_000) - 1_000,
            2 if self.faults.jumps => before + self.below(7_200_000_000) - 3_600_000_000,
            _ if self.leaders.is_empty() => before,
            _ => before - self.below(500_000),
        };
        if offset > before {
            // The clock is ahead, so old windows and levels count as older than they are.
            self.excess += if offset > before + 1_000_000 { 2 * self.most_requests() } else { 0 };
        }
        let ends = if self.faults.leaders { self.now + 5 * SECOND + self.below(20_000_000) } else { NEVER };
        let counter = Counter::new(Term::ending(duration(ends)), duration(self.now), self.now + offset);
        let mut leader = Leader { counter, offset, ends, is_alive: true, paused_until: 0 };
        let rules = self.rules(self.content);
        if self.recreated_at.is_some() {
            // The new leader does not know the share of an agent that is cut off and still has the policy.
            self.excess += self.most_requests();
        }
        if self.agents.iter().any(|agent| self.sharers[agent.content] < self.sharers[self.content]) {
            // The share of such an agent is larger than what the new leader reserves.
            self.excess += self.most_requests();
        }
        for agent in &self.agents {
            leader.counter.expect(&agent.name, &rules, true, duration(self.now));
            if agent.is_leaving {
                leader.counter.leave(&agent.name, true, duration(self.now));
            }
        }
        if self.agents.iter().any(|agent| agent.is_leaving) {
            // The new leader has no link to such an agent, so it does not learn what only this agent knew.
            self.excess += self.most_requests();
        }
        leader.counter.expect(STEADY, &steady_rules(), true, duration(self.now));
        leader.counter.planned(duration(self.now));
        self.next_leader_at = ends.saturating_add(2 * SECOND);
        self.leaders.push(leader);
    }

    fn step(&mut self) {
        let most = [20_000, 100_000, 400_000][self.random.below(3)];
        self.now += 1 + self.below(most);
        if self.now >= self.next_leader_at {
            self.lead();
        }
        self.ask_steadily();
        self.trouble();
        for index in 0..self.agents.len() {
            let is_late = self.now < self.agents[index].late_until;
            if !is_late {
                self.dial(index);
            }
            self.deliver_up(index);
            if !is_late {
                self.send_unsent(index);
                self.deliver_down(index);
                self.agent_time(index);
            }
        }
        for _ in 0..self.random.below(8) {
            let (agent, key, count) =
                (self.random.below(self.agents.len()), self.random.below(self.keys), self.below(9));
            for _ in 0..count {
                self.request(agent, key);
            }
        }
    }

    /// Takes one unit of the limit that no fault concerns.
    fn ask_steadily(&mut self) {
        let (now, at, last) = (self.now, duration(self.now), self.leaders.len() - 1);
        let (Leader { counter, is_alive, paused_until, .. }, steady) = (&mut self.leaders[last], &mut self.steady);
        if !*is_alive || now < *paused_until {
            steady.was_missing |= *is_alive && !counter.is_counting();
            return;
        }
        let quota = Quota::new(Strategy::SlidingWindowLog, OF_STEADY, Duration::from_secs(86_400), None);
        let terms = StoreTerms::new(1, &[(0, quota.expect("a quota"))]).expect("terms");
        let question = |id, seen: Option<Vec<Mark>>| {
            let take = Take { requests: u32::from(id != 0), ..Take::new(&terms) }.encode().expect("a question");
            Question { seen, ..take.message(id, &Key::new("bank/api.all", 1).expect("a key")) }
        };
        let number = match steady.link {
            Some((leader, number)) if leader == last => number,
            _ => {
                let number = counter.connected(STEADY, at);
                (steady.link, steady.releases, steady.is_level_earlier) = (Some((last, number)), 0, true);
                counter.record_message(STEADY, number, duration(PRESENCE), at);
                counter.answer(&[question(0, steady.level.clone())], [&steady_rules(), &[]], at);
                counter.levels_sent(STEADY, number, LevelsSent { is_complete: true, time: None, releases: 0 }, at);
                number
            }
        };
        counter.record_message(STEADY, number, duration(PRESENCE), at);
        if counter.release(STEADY, number, at) {
            steady.releases += 1;
            let releases = steady.releases;
            counter.levels_sent(STEADY, number, LevelsSent { is_complete: true, time: None, releases }, at);
        }
        let seen = steady.level.clone().filter(|_| steady.is_level_earlier);
        for answer in counter.answer(&[question(1, seen)], [&steady_rules(), &[]], at) {
            let Outcome::Counted(granted) = answer.outcome else { continue };
            let free = OF_STEADY - steady.admitted;
            assert!(granted.granted <= free, "more than the limit");
            let used_up = counter.usage(at).used_up;
            let is_reported = used_up.is_some_and(|used_up| used_up.rules.contains_key("bank/api.all"));
            assert!(steady.was_missing || !is_reported, "a limit with known counts is reported as used up");
            steady.was_reported |= is_reported;
            assert!(
                granted.granted == free.min(1) || steady.was_reported,
                "{free} units were lost, and nothing reports it"
            );
            steady.admitted += granted.granted;
            (steady.level, steady.is_level_earlier) = (Some(granted.level), false);
        }
    }

    fn trouble(&mut self) {
        let count = self.agents.len();
        if self.chance(20) {
            // The engine reports, and the counter forgets keys and policies.
            let now = self.now;
            let last = self.leaders.last_mut().expect("a leader");
            if last.is_alive && now >= last.paused_until {
                last.counter.usage(duration(now));
            }
        }
        if self.faults.breaks && self.chance(30) {
            let index = self.random.below(count);
            self.break_link(index, false);
            if self.chance(2) {
                let long = self.below(40_000_000);
                self.agents[index].cut_off_until = self.now + long;
            }
        }
        if self.faults.losses && self.chance(30) {
            let (index, until, is_up) = (self.random.below(count), self.now + self.below(20_000_000), self.chance(2));
            if let Some(link) = &mut self.agents[index].link {
                *(if is_up { &mut link.up_lost_until } else { &mut link.down_lost_until }) = until;
            }
            if self.chance(4) {
                // The operator has no answer to a push, or no status.
                self.break_link(index, true);
            }
        }
        if self.faults.lateness && self.chance(30) {
            let (index, until) = (self.random.below(count), self.now + self.below(15_000_000));
            self.agents[index].late_until = until;
            self.agents[index].asleep_until = if self.chance(2) { until } else { 0 };
        }
        if self.faults.pauses && self.chance(100) {
            let pause = self.below(25_000_000);
            let now = self.now;
            let last = self.leaders.last_mut().expect("a leader");
            last.paused_until = now + pause;
        }
        if self.faults.leaders && self.chance(200) {
            let last = self.leaders.len() - 1;
            if self.leaders[last].is_alive {
                self.leaders[last].is_alive = false;
                for index in 0..count {
                    if self.agents[index].link.as_ref().is_some_and(|link| link.leader == last) {
                        self.break_link(index, true);
                    }
                }
                // Half of them release their lease, so the next one begins immediately.
                let next = if self.chance(2) { self.now } else { self.leaders[last].ends + 2 * SECOND };
                self.next_leader_at = self.next_leader_at.min(next);
            }
        }
        if self.faults.churn && self.chance(40) {
            self.add_agent();
        }
        if self.faults.churn && self.chance(40) && count > 2 {
            let index = self.random.below(count);
            self.remove_agent(index);
        }
        let staying = self.agents.iter().filter(|agent| !agent.is_leaving).count();
        if self.faults.deletions && self.chance(40) && staying > 1 {
            let index = self.random.below(self.agents.len());
            let agent = &mut self.agents[index];
            agent.is_leaving = true;
            for leader in self.leaders.iter_mut().filter(|leader| leader.is_alive) {
                leader.counter.leave(&agent.name, true, duration(self.now));
            }
        }
        self.recreate();
        if self.faults.retunes && self.content + 1 < self.quotas.len() && self.chance(150) {
            self.content += 1;
            let rules = self.rules(self.content);
            for index in 0..self.agents.len() {
                let delay = self.below(2_000_000);
                let agent = &mut self.agents[index];
                if agent.is_leaving {
                    continue;
                }
                agent.content_at = self.now + delay;
                for leader in self.leaders.iter_mut().filter(|leader| leader.is_alive) {
                    leader.counter.expect(&agent.name, &rules, true, duration(self.now));
                }
            }
        }
    }

    /// A pod ends, and its agent with it.
    fn remove_agent(&mut self, index: usize) {
        let agent = self.agents.swap_remove(index);
        // What its share used is lost, and so are the levels that only it knew.
        self.excess +=
            if self.faults.leaders { self.most_requests() } else { self.most_requests() / u64::from(self.sharers[0]) };
        for leader in self.leaders.iter_mut().filter(|leader| leader.is_alive) {
            leader.counter.gone(&agent.name, duration(self.now));
            if let Some(link) = &agent.link {
                leader.counter.ended(&agent.name, link.number, duration(self.now));
            }
        }
    }

    /// Deletes the policy, or creates it again.
    fn recreate(&mut self) {
        let last = self.leaders.last().expect("a leader");
        let can_begin = self.faults.recreations && last.is_alive && last.counter.is_counting();
        match self.recreated_at {
            Some(at) if self.now >= at => self.recreated_at = None,
            None if can_begin => {
                if !self.chance(40) {
                    return;
                }
                let pause = if self.chance(2) { 0 } else { self.below(5_000_000) };
                self.recreated_at = Some(self.now + pause);
            }
            _ => return,
        }
        let (is_deleted, now, rules) = (self.recreated_at.is_some(), self.now, self.rules(self.content));
        for index in 0..self.agents.len() {
            let agent = &mut self.agents[index];
            if agent.is_leaving {
                continue;
            }
            for leader in self.leaders.iter_mut().filter(|leader| leader.is_alive) {
                leader.counter.expect(&agent.name, &rules, true, duration(now));
            }
            // All others are cut off, or can be.
            let is_reported = agent.asks && now >= agent.late_until && agent.quiet_since.is_none();
            let link = agent.link.as_ref().filter(|link| !link.is_broken && now >= link.down_lost_until);
            if link.is_some() && is_deleted && is_reported {
                agent.has_policy = false;
                // It comes after the report of the agent's share.
                self.send_up(index, Up::Deleted);
            }
        }
    }

    /// Breaks a link. If the break is clean, the agent learns that the operator has closed it. Otherwise both kernels
    /// detect the break, or nobody does for a long time.
    fn break_link(&mut self, index: usize, is_clean: bool) {
        let (first, second) = (self.below(USER_TIMEOUT), self.below(USER_TIMEOUT));
        let hidden = if self.chance(3) { 15 * SECOND } else { 0 };
        let now = self.now;
        if let Some(link) = self.agents[index].link.as_mut().filter(|link| !link.is_broken) {
            (link.is_broken, link.is_clean) = (true, is_clean);
            (link.operator_sees, link.agent_sees) = if is_clean {
                (now, link.down_lost_until.max(now + first / 10))
            } else {
                (now + hidden + first, now + hidden + second)
            };
        }
    }

    /// Opens a link to an agent without one.
    fn dial(&mut self, index: usize) {
        let (now, last) = (self.now, self.leaders.len() - 1);
        if self.agents[index].is_leaving {
            return;
        }
        if self.agents[index].link.as_ref().is_some_and(|link| !link.is_broken && link.leader != last) && self.chance(3)
        {
            self.replace_link(index);
        }
        let leader = &mut self.leaders[last];
        let agent = &mut self.agents[index];
        if agent.link.is_some() || now < agent.cut_off_until || !leader.is_alive || now < leader.paused_until {
            return;
        }
        let number = leader.counter.connected(&agent.name, duration(now));
        let (operator_sees, agent_sees) = (NEVER, NEVER);
        agent.link = Some(Link { leader: last, number, operator_sees, agent_sees, ..Link::default() });
        // The agent greets.
        (agent.asks, agent.probes) = (false, false);
        agent.status_at = now + EVERY;
        agent.unsent.clear();
        self.send_up(index, Up::Status);
        self.report(index, false);
        // The windows of its share are those of this time.
        let time = self.agents[index].knows_clock.then_some(now + self.agents[index].offset);
        self.send_up(index, Up::LevelsSent(LevelsSent { is_complete: true, time, releases: 0 }));
    }

    /// A new leader's channel replaces the channel of the previous leader.
    fn replace_link(&mut self, index: usize) {
        let now = self.now;
        if let Some(link) = self.agents[index].link.take() {
            let leader = &mut self.leaders[link.leader];
            if leader.is_alive {
                leader.counter.ended(&self.agents[index].name, link.number, duration(now));
            }
            self.lose(index, true);
        }
    }

    /// The agent has no channel.
    fn lose(&mut self, index: usize, is_clean: bool) {
        let agent = &mut self.agents[index];
        let last_sent = agent.quiet_since.unwrap_or(self.now);
        (agent.asked_at, agent.quiet_since) = (None, None);
        if agent.asks {
            agent.asks = false;
            agent.share_at = if is_clean { self.now } else { last_sent + SILENCE };
            for local in &mut agent.keys {
                local.share = None;
            }
        }
        for local in &mut self.agents[index].keys {
            (local.pending, local.is_level_earlier) = (None, true);
        }
    }

    fn send_up(&mut self, index: usize, message: Up) {
        let delay = 1 + self.below(30_000);
        let now = self.now;
        if now < self.agents[index].late_until {
            return self.agents[index].unsent.push(message);
        }
        if let Some(link) = self.agents[index].link.as_mut().filter(|link| !link.is_broken) {
            let at = link.up.last().map_or(0, |(at, _)| *at).max(now + delay);
            link.up.push((at, message));
        }
    }

    fn send_unsent(&mut self, index: usize) {
        let (now, agent) = (self.now, &mut self.agents[index]);
        if !agent.unsent.is_empty() && agent.is_quiet(now) {
            agent.quiet_since = Some(now);
        }
        for message in std::mem::take(&mut self.agents[index].unsent) {
            self.send_up(index, message);
        }
    }

    fn send_down(&mut self, index: usize, answers: Vec<Answer>) {
        let delay = 1 + self.below(30_000);
        let now = self.now;
        if let Some(link) = self.agents[index].link.as_mut().filter(|link| !link.is_broken) {
            let at = link.down.last().map_or(0, |(at, _)| *at).max(now + delay);
            link.down.push((at, answers));
        }
    }

    /// Sends the levels that the agent knows. If its share ends, it also sends the units that the share used.
    fn report(&mut self, index: usize, ends_share: bool) {
        for key in 0..self.keys {
            let owed = if ends_share { self.owed(index, key) } else { 0 };
            let agent = &self.agents[index];
            let level = agent.keys[key].level.clone();
            // A level must be sent with the terms of the answer that contained it.
            let of_level = usize::try_from(agent.keys[key].level_stamp).expect("small").saturating_sub(1);
            let terms = self.terms(if level.is_some() { of_level } else { agent.content });
            let mut encoded = Take { requests: 0, ..Take::new(&terms) }.encode().expect("a question");
            encoded.owed = owed;
            encoded.seen = level;
            if encoded.owed > 0 || encoded.seen.is_some() {
                let question = encoded.message(0, &key_of(key));
                self.send_up(index, Up::Questions(vec![question]));
            }
        }
    }

    /// The units that the share used and that still count, and the units of an unconfirmed report. The agent does not
    /// know in which window the operator counted that report, so it reports all of them again.
    fn owed(&mut self, index: usize, key: usize) -> u64 {
        let (now, period) = (self.now, self.period());
        let agent = &mut self.agents[index];
        let offset = agent.offset;
        let local = &mut agent.keys[key];
        let mut used = std::mem::take(&mut local.used);
        used.retain(|at| match self.strategy {
            Strategy::FixedWindow => (at + offset) / period == (now + offset) / period,
            Strategy::SlidingWindowCounter => (at + offset) / period + 1 >= (now + offset) / period,
            Strategy::SlidingWindowLog => at + period > now,
            _ => true,
        });
        local.reported += used.len() as u64;
        local.reported_at = now;
        local.reported
    }

    fn deliver_up(&mut self, index: usize) {
        let now = self.now;
        loop {
            let Some(link) = &mut self.agents[index].link else { return };
            let leader = &mut self.leaders[link.leader];
            if !leader.is_alive || now < leader.paused_until {
                return;
            }
            let (number, at) = (link.number, duration(now));
            if link.is_broken {
                if now >= link.operator_sees {
                    link.operator_sees = NEVER;
                    leader.counter.ended(&self.agents[index].name, number, at);
                }
                return;
            }
            // At the start of a term, a leader sets its clock to the time of the previous leader.
            leader.offset = leader.counter.advance(at) - now;
            if now < link.up_lost_until || link.up.first().is_none_or(|(due, _)| *due > now) {
                if leader.counter.release(&self.agents[index].name, number, at) {
                    self.send_down(index, Vec::new());
                }
                return;
            }
            let (_, message) = link.up.remove(0);
            let name = &self.agents[index].name;
            let mut replies = Vec::new();
            leader.counter.record_message(name, number, duration(PRESENCE), at);
            if leader.counter.release(name, number, at) {
                replies.push(Vec::new());
            }
            match message {
                Up::Status => {}
                Up::Deleted => leader.counter.acknowledged(name, number, &[], at),
                Up::LevelsSent(sent) => {
                    leader.counter.levels_sent(name, number, sent, at);
                    if leader.counter.release(name, number, at) {
                        replies.push(Vec::new());
                    }
                }
                Up::Questions(questions) => {
                    let (wanted, acked) = (self.content, self.agents[index].content);
                    let rule = |stamp: usize| CountedRule {
                        counters: NAME.to_owned(),
                        policy: Arc::from("shop/api"),
                        stamp: stamp as u64 + 1,
                        sharers: self.sharers[stamp],
                        accepts_limits: false,
                    };
                    let answers = leader.counter.answer(&questions, [&[rule(wanted)], &[rule(acked)]], at);
                    let is_over = now >= leader.ends;
                    assert!(
                        !is_over || !answers.iter().any(|answer| matches!(answer.outcome, Outcome::Counted(_))),
                        "a leader counted after its term"
                    );
                    if !answers.is_empty() {
                        replies.push(answers);
                    }
                }
            }
            leader.offset = leader.counter.advance(at) - now;
            for reply in replies {
                self.send_down(index, reply);
            }
        }
    }

    fn deliver_down(&mut self, index: usize) {
        loop {
            let now = self.now;
            let Some(link) = &mut self.agents[index].link else { return };
            if link.is_broken {
                if now >= link.agent_sees && link.operator_sees == NEVER {
                    let is_clean = link.is_clean;
                    self.agents[index].link = None;
                    self.lose(index, is_clean);
                } else if now >= link.agent_sees {
                    let is_clean = link.is_clean;
                    self.lose(index, is_clean);
                    // A dead leader never notices.
                    if !self.leaders[self.agents[index].link.as_ref().expect("a link").leader].is_alive {
                        self.agents[index].link = None;
                    }
                }
                return;
            }
            if now < link.down_lost_until || link.down.first().is_none_or(|(due, _)| *due > now) {
                return;
            }
            let (_, answers) = link.down.remove(0);
            link.releases += u64::from(answers.is_empty());
            let (leader, releases) = (link.leader, link.releases);
            let agent = &mut self.agents[index];
            // A counter that does not count yet answers `NotYet`.
            let counts = answers.is_empty() || answers.iter().any(|answer| answer.outcome != Outcome::NotYet);
            let is_release = (counts && std::mem::take(&mut agent.probes))
                || answers.is_empty()
                || answers.iter().any(|answer| matches!(answer.outcome, Outcome::Counted(_)));
            if is_release && (!self.agents[index].asks || answers.is_empty()) {
                self.agents[index].asks = true;
                self.report(index, true);
                self.send_up(index, Up::LevelsSent(LevelsSent { is_complete: true, time: None, releases }));
                self.agents[index].offset = self.leaders[leader].offset;
                self.agents[index].knows_clock = true;
                self.agents[index].clock.replace();
                for local in &mut self.agents[index].keys {
                    local.share = None;
                }
            }
            for answer in answers {
                self.answered(index, leader, answer);
            }
            let agent = &mut self.agents[index];
            // Any answer shows that the operator has received a message.
            agent.quiet_since = None;
            if agent.asks {
                agent.asked_at = agent.keys.iter().any(|local| local.pending.is_some()).then_some(now);
            }
        }
    }

    fn answered(&mut self, index: usize, leader: usize, answer: Answer) {
        let now = self.now;
        let key = self.agents[index]
            .keys
            .iter()
            .position(|local| local.pending.as_ref().is_some_and(|(id, ..)| *id == answer.id));
        let Some(key) = key else { return };
        let local = &mut self.agents[index].keys[key];
        let Some((_, sent, encoded)) = local.pending.take() else { return };
        let Outcome::Counted(granted) = answer.outcome else { return };
        if sent >= local.reported_at {
            local.reported = 0;
        }
        let read = weir_seats::EncodedReply::read(granted, &encoded).expect("an answer to the question");
        let (time, level, stamp) = (read.time, read.marks[2].clone(), read.stamp);
        let Reply { granted, served, prefetched, .. } = read.reply(&encoded).expect("an answer to the question");
        (local.level, local.level_stamp, local.is_level_earlier) = (Some(level), stamp, false);
        local.hand.extend(prefetched);
        let is_late = now > sent + 400 * MILLI;
        match served {
            Some(late) if is_late => {
                local.hand.push(late);
                if self.strategy == Strategy::SlidingWindowLog {
                    // Its units serve no other request.
                    self.wasted[key].extend((0..granted).map(|_| now));
                }
            }
            Some(served) => {
                // Requests that wait go when they are due.
                let quota = self.quotas[usize::try_from(stamp).expect("small") - 1];
                let terms = StoreTerms::new(stamp, &[(0, quota)]).expect("terms");
                let goes = |before| time.max(served.due(&terms, before, 1)) - self.leaders[leader].offset;
                self.admitted[key].extend((0..granted).map(goes));
            }
            None => {}
        }
        self.agents[index].clock.learn(time, duration(sent), duration(now));
    }

    fn agent_time(&mut self, index: usize) {
        let now = self.now;
        if now >= self.agents[index].status_at {
            self.agents[index].status_at = now + EVERY;
            if !self.agents[index].is_quiet(now) {
                self.send_up(index, Up::Status);
                self.probe(index);
            }
        }
        let agent = &mut self.agents[index];
        if now >= agent.content_at && agent.link.as_ref().is_some_and(|link| !link.is_broken) {
            agent.content_at = NEVER;
            agent.content = self.content;
        }
        for key in 0..self.keys {
            let local = &self.agents[index].keys[key];
            if self.agents[index].asks && local.reported > 0 && now >= local.reported_at + SECOND {
                self.ask(index, key, (0, 0), 0);
            }
        }
    }

    /// Prepares the agent's share if the operator does not answer.
    fn prepare_share(&mut self, index: usize) {
        let (now, agent) = (self.now, &mut self.agents[index]);
        if agent.asks && agent.asked_at.is_some_and(|asked_at| now >= asked_at + UNANSWERED) {
            let quiet_since = *agent.quiet_since.get_or_insert(now);
            if now >= quiet_since + SILENCE {
                self.lose(index, true);
                self.agents[index].probes = true;
            }
        }
    }

    fn probe(&mut self, index: usize) {
        if self.agents[index].probes {
            let terms = self.terms(0);
            let probe = Take { requests: 0, ..Take::new(&terms) }.encode().expect("a question");
            let message = probe.message(u64::MAX, &Key::new("weir.probe", 0).expect("a key"));
            self.send_up(index, Up::Questions(vec![message]));
        }
    }

    /// Asks the operator, if the last question of the key has an answer.
    fn ask(&mut self, index: usize, key: usize, (requests, prefetch): (u64, u64), patience: u64) {
        let (now, terms) = (self.now, self.terms(self.agents[index].content));
        let agent = &mut self.agents[index];
        let is_quiet = agent.is_quiet(now);
        let local = &mut agent.keys[key];
        if is_quiet || local.pending.as_ref().is_some_and(|(_, sent, _)| now <= sent + 2 * SECOND) {
            return;
        }
        let reach = Duration::from_millis(200);
        let question = Take {
            requests: u32::try_from(requests).expect("few"),
            prefetch: u32::try_from(prefetch).expect("few"),
            patience: duration(patience),
            guard: reach,
            lookahead: reach,
            ..Take::new(&terms)
        };
        let mut encoded = question.encode().expect("a question");
        // After a break of the channel, the first question contains the level.
        let is_seen = local.is_level_earlier && local.level_stamp == encoded.stamp;
        encoded.seen = local.level.clone().filter(|_| is_seen);
        agent.ids += 1;
        let message = encoded.message(agent.ids, &key_of(key));
        local.pending = Some((agent.ids, now, encoded));
        agent.asked_at.get_or_insert(now);
        self.send_up(index, Up::Questions(vec![message]));
    }

    fn request(&mut self, index: usize, key: usize) {
        let now = self.now;
        // An agent that the operator reaches gets the new policy.
        let link = self.agents[index].link.as_ref().filter(|link| !link.is_broken && now >= link.down_lost_until);
        self.agents[index].has_policy |= self.recreated_at.is_none() && self.agents[index].asks && link.is_some();
        if now < self.agents[index].asleep_until || !self.agents[index].has_policy {
            return;
        }
        self.asked += 1;
        self.prepare_share(index);
        let content = self.agents[index].content;
        let (terms, share) = (self.terms(content), self.share(content));
        let gives_in_advance = terms.raw().iter().all(StoreLimit::gives_in_advance);
        let [requests, prefetch] = [1 + self.below(8), if gives_in_advance { self.below(12) } else { 0 }];
        let patience = if self.chance(3) { self.below(400_000) } else { 0 };
        let agent = &mut self.agents[index];
        if let Some(at) = agent.clock.at(duration(now)) {
            let hand = &mut agent.keys[key].hand;
            hand.retain(|seats| seats.left() > 0 && seats.is_of(&terms));
            if hand.iter_mut().any(|seats| seats.claim(&terms, 1, at)) {
                return self.admitted[key].push(now);
            }
        }
        if agent.asks {
            self.ask(index, key, (requests, prefetch), patience);
        } else if now >= agent.share_at {
            // The windows of a share are those of the last leader.
            let at = now + agent.offset;
            let local = &mut agent.keys[key];
            let is_log = terms.raw().iter().any(|limit| limit.strategy == Strategy::SlidingWindowLog);
            let delay = if is_log { terms.raw()[0].period / 2 } else { 0 };
            let began = agent.share_at + agent.offset + delay;
            // A share begins without credit, also under new terms.
            let before = match local.share.take() {
                Some(value) if value.stamp == share.stamp() => value,
                Some(_) => used_up(&share, at + delay),
                None => used_up(&share, began),
            };
            let encoded = Take::new(&share).encode().expect("a question");
            let outcome = take(Some(&before), &encoded, at);
            local.share = Some(outcome.value);
            if outcome.answer.granted > 0 {
                local.used.push(now);
                self.admitted[key].push(now);
                if !std::mem::replace(&mut agent.knows_clock, true) {
                    // Two windows of its share can touch one window of the operator.
                    self.excess += self.most_requests() / u64::from(self.sharers[0]);
                }
            }
        }
    }

    /// Checks all admissions by the definition of the strategy.
    fn check(&mut self, context: &str) {
        let (period, most) = (self.period(), self.most_requests());
        let burst = self.quotas[..=self.content].iter().map(Quota::burst).max().unwrap_or(0);
        for times in &mut self.admitted {
            times.sort_unstable();
            match self.strategy {
                Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
                    let times_limit = if self.strategy == Strategy::SlidingWindowLog { 1 } else { 2 };
                    let allowed = times_limit * most + self.excess;
                    let mut first = 0;
                    for (last, &at) in times.iter().enumerate() {
                        while times[first] + period <= at {
                            first += 1;
                        }
                        let count = (last + 1 - first) as u64;
                        assert!(count <= allowed, "{count} of {allowed} in a period that ends at {at}: {context}");
                    }
                    if self.strategy == Strategy::FixedWindow && self.leaders.len() == 1 {
                        let offset = self.leaders[0].offset;
                        let mut windows = BTreeMap::new();
                        for at in times.iter() {
                            *windows.entry((at + offset) / period).or_insert(0_u64) += 1;
                        }
                        for (window, count) in windows {
                            assert!(count <= most + self.excess, "{count} of {most} in window {window}: {context}");
                        }
                    }
                }
                strategy => {
                    // A share has at least one unit, and a leaky bucket has no more.
                    let shares = if self.faults != Faults::default() { self.born as u64 } else { 0 };
                    let at_once = if strategy == Strategy::LeakyBucket { 1 + shares } else { burst };
                    // The time at which a waiting request goes is rounded up to a microsecond.
                    let allowed = i128::from(at_once + self.excess) * i128::from(period) + i128::from(most);
                    let mut least = i128::MAX;
                    for (index, &at) in times.iter().enumerate() {
                        let base = index as i128 * i128::from(period) - i128::from(most) * i128::from(at);
                        least = least.min(base);
                        let over = base + i128::from(period) - least - allowed;
                        let units = over / i128::from(period) + 1;
                        assert!(over <= 0, "{units} too many until {at}: {context}");
                    }
                }
            }
        }
    }
}

fn key_of(key: usize) -> Key {
    Key::new(NAME, key as u128).expect("a key")
}

const ALL_FAULTS: Faults = Faults {
    breaks: true,
    pauses: true,
    leaders: true,
    churn: true,
    jumps: true,
    retunes: true,
    losses: true,
    lateness: true,
    recreations: true,
    deletions: true,
};

fn run(seed: u64, strategy: Strategy, faults: Faults, steps: usize) -> World {
    let mut world = World::new(seed, strategy, faults);
    for _ in 0..steps {
        world.step();
    }
    world.check(&format!("{strategy:?}, seed {seed}, {faults:?}"));
    world
}

/// After the last fault, all pods are present again, and keys get units.
#[test]
fn after_any_trouble_all_pods_ask_the_counter() {
    let (mut from_leaky, mut possible_from_leaky) = (0, 0);
    for strategy in Strategy::ALL {
        for seed in 0..4 {
            let mut world = run(seed, strategy, ALL_FAULTS, 300);
            world.faults = Faults::default();
            while let Some(index) = world.agents.iter().position(|agent| agent.is_leaving) {
                world.remove_agent(index);
            }
            world.add_agent();
            let calm_from = world.now + 60 * SECOND;
            // A fixed window can be used up until its end, and a sliding window counter until the end of the next
            // window.
            while world.now < calm_from + 2 * world.period() {
                world.step();
            }
            let counter = &world.leaders.last().expect("a leader").counter;
            assert!(counter.is_counting() && counter.absent() == 0, "{} absent, seed {seed}", counter.absent());
            let since = |times: &Vec<u64>| times.iter().filter(|&&at| at > calm_from).count() as u64;
            let counts: Vec<u64> =
                world.admitted.iter().zip(&world.wasted).map(|(used, wasted)| since(used) + since(wasted)).collect();
            let (all, keys, requests) = (counts.iter().sum::<u64>(), counts.len() as u64, world.quotas[0].requests());
            if strategy == Strategy::LeakyBucket {
                // It admits one request at a time, agents of this world ask a few times per second, and they often lose
                // seats that they took in advance.
                assert!(all >= 10 * keys, "{counts:?} of 10 each: {strategy:?}, seed {seed}");
                from_leaky += all;
                possible_from_leaky += 2 * requests * keys;
            } else {
                let is_enough = counts.iter().all(|count| *count >= requests);
                assert!(is_enough, "{counts:?} of {requests} each: {strategy:?}, seed {seed}");
            }
        }
    }
    assert!(3 * from_leaky >= possible_from_leaky, "{from_leaky} of {possible_from_leaky} from leaky buckets");
}

/// Before a change of the counter is complete, run this with many seeds:
/// `WEIR_SEEDS=500 cargo test --release -p weir-operator --lib fleet::simulation`.
#[test]
fn all_pods_together_stay_within_the_limit() {
    let all = [
        Faults::default(),
        Faults { breaks: true, ..Faults::default() },
        Faults { leaders: true, ..Faults::default() },
        Faults { breaks: true, leaders: true, ..Faults::default() },
        Faults { breaks: true, retunes: true, ..Faults::default() },
        Faults { breaks: true, churn: true, ..Faults::default() },
        Faults { breaks: true, recreations: true, ..Faults::default() },
        Faults { pauses: true, ..Faults::default() },
        Faults { breaks: true, pauses: true, retunes: true, ..Faults::default() },
        Faults { losses: false, lateness: false, deletions: false, ..ALL_FAULTS },
        Faults { losses: true, ..Faults::default() },
        Faults { lateness: true, ..Faults::default() },
        Faults { losses: true, lateness: true, ..Faults::default() },
        Faults { losses: true, lateness: true, breaks: true, pauses: true, retunes: true, ..Faults::default() },
        Faults { breaks: true, deletions: true, ..Faults::default() },
        Faults { losses: true, lateness: true, breaks: true, deletions: true, retunes: true, ..Faults::default() },
        Faults { breaks: true, deletions: true, churn: true, leaders: true, ..Faults::default() },
        Faults { deletions: false, ..ALL_FAULTS },
        ALL_FAULTS,
    ];
    let seeds = std::env::var("WEIR_SEEDS").map_or(5, |seeds| seeds.parse().expect("a number"));
    for strategy in Strategy::ALL {
        for (index, faults) in all.into_iter().enumerate() {
            for seed in 0..seeds {
                run(seed + 1000 * index as u64, strategy, faults, 600);
            }
        }
    }
}
