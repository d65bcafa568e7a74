//! The channels of a world. An agent's end does what `crates/client/src/control/channel.rs` does, and the operator's end
//! what `operator/src/link` does.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use weir_store::{OperatorChannel, StoreClient};
use weir_wire::{Answer, LevelsSent, Question};

use super::{Event, Leader, SECOND, Shared, Up, World, name};

/// The interval of statuses.
pub(super) const STATUS_EVERY: u64 = SECOND;
/// The silence of an agent after which it is absent.
pub(super) const PRESENCE: u64 = STATUS_EVERY + weir_wire::PRESENCE.as_secs() * SECOND;
/// The most levels that an agent reports.
const MOST_LEVELS: usize = 65_536;

/// A message of the operator, or the end of the channel.
#[derive(Debug)]
pub(super) enum Down {
    Answers(Vec<Answer>),
    Closed,
}

/// A channel between a leader and an agent.
pub(super) struct Link {
    pub(super) number: u64,
    pub(super) pod: usize,
    /// The place of the leader.
    pub(super) leader: usize,
    /// The number of the channel at the leader's counter.
    pub(super) channel: u64,
    to_agent: UnboundedSender<Down>,
}

impl World<'_> {
    /// The leader opens a channel to an agent that has none of this leader. A new channel replaces the previous one.
    pub(super) fn call(&mut self, pod: usize) {
        let now = self.shared.now();
        let place = self.leaders.len().wrapping_sub(1);
        let Some(agent) = self.agents.get(&pod).filter(|agent| agent.cut_off_until <= now) else { return };
        if agent.link.is_some_and(|number| self.links.get(&number).is_some_and(|link| link.leader == place)) {
            return;
        }
        let Some(leader) = self.leader() else { return };
        let channel = leader.counter.connected(&name(pod), Duration::from_micros(now));
        self.opened += 1;
        let number = self.opened;
        let Some(agent) = self.agents.get_mut(&pod) else { return };
        if let Some(before) = agent.link.replace(number) {
            self.links.remove(&before);
        }
        let operator = agent.store.open();
        operator.status_interval(Duration::from_micros(STATUS_EVERY));
        let (to_agent, from_operator) = unbounded_channel();
        let end =
            End { number, delay: self.delay, shared: Arc::clone(&self.shared), client: Arc::clone(&agent.client) };
        tokio::spawn(end.serve(operator, from_operator));
        self.links.insert(number, Link { number, pod, leader: place, channel, to_agent });
        // The agent speaks first.
        self.shared.add(now, Event::Status(number));
    }

    /// A message of an agent arrives at its leader.
    pub(super) fn up(&mut self, number: u64, message: Up) {
        let now = self.shared.now();
        let Some(link) = self.links.get(&number) else { return };
        let Some(leader) = self.leaders.get_mut(link.leader).filter(|leader| leader.is_alive) else { return };
        if self.agents.get(&link.pod).is_none_or(|agent| now < agent.cut_off_until) {
            return;
        }
        if now < leader.resumes_at {
            // The kernel keeps it.
            return self.shared.add(leader.resumes_at, Event::Up(number, message));
        }
        let (pod, at, is_status) = (name(link.pod), Duration::from_micros(now), matches!(message, Up::Status));
        let (counter, mut replies) = (&mut leader.counter, Vec::new());
        counter.record_message(&pod, link.channel, Duration::from_micros(PRESENCE), at);
        if counter.release(&pod, link.channel, at) {
            replies.push(Vec::new());
        }
        match message {
            Up::Status => {}
            Up::LevelsSent(sent) => {
                counter.levels_sent(&pod, link.channel, sent, at);
                if counter.release(&pod, link.channel, at) {
                    replies.push(Vec::new());
                }
            }
            Up::Questions(questions) => {
                let rules = super::rules(self.sharers);
                // Reports get no answer.
                replies.extend(Some(counter.answer(&questions, [&rules, &rules], at)).filter(|it| !it.is_empty()));
            }
        }
        if !is_status {
            self.shared.messages.fetch_add(1 + replies.len() as u64, Relaxed);
        }
        for answers in replies {
            self.shared.add(now + self.delay, Event::Down(number, Down::Answers(answers)));
        }
        self.release(self.links[&number].leader);
    }

    /// When a counter has collected the levels, its links tell all agents that their shares are over.
    pub(super) fn release(&mut self, place: usize) {
        let (now, delay) = (self.shared.now(), self.delay);
        let Some(Leader { counter, has_released, .. }) = self.leaders.get_mut(place) else { return };
        if !counter.has_levels() || std::mem::replace(has_released, true) {
            return;
        }
        for link in self.links.values().filter(|link| link.leader == place) {
            if counter.release(&name(link.pod), link.channel, Duration::from_micros(now)) {
                self.shared.add(now + delay, Event::Down(link.number, Down::Answers(Vec::new())));
            }
        }
    }

    /// A message of the operator arrives at the agent.
    pub(super) fn down(&mut self, number: u64, message: Down) {
        let now = self.shared.now();
        let Some(link) = self.links.get(&number) else { return };
        let Some(agent) = self.agents.get_mut(&link.pod).filter(|agent| agent.cut_off_until <= now) else { return };
        agent.heard_at = now;
        agent.was_closed = matches!(message, Down::Closed);
        // The agent's end can have ended.
        let _ = link.to_agent.send(message);
        if agent.was_closed {
            agent.link = None;
            self.links.remove(&number);
        }
    }

    /// The operator ends a link on which nothing arrives. The agent does not learn it.
    pub(super) fn close_silent(&mut self, number: u64) {
        let at = Duration::from_micros(self.shared.now());
        let Some(link) = self.links.get(&number) else { return };
        let (pod, channel, place) = (link.pod, link.channel, link.leader);
        if let Some(leader) = self.leaders.get_mut(place) {
            leader.counter.ended(&name(pod), channel, at);
        }
        // From now on, this leader can call the agent again.
        if let Some(link) = self.links.get_mut(&number) {
            link.leader = usize::MAX;
        }
    }
}

/// The agent's end of a channel.
struct End {
    number: u64,
    delay: u64,
    shared: Arc<Shared>,
    client: Arc<StoreClient>,
}

impl End {
    fn send(&self, message: Up) {
        self.shared.add(self.shared.now() + self.delay, Event::Up(self.number, message));
    }

    fn report(&self, questions: Vec<Question>, sent: LevelsSent) {
        if !questions.is_empty() {
            self.send(Up::Questions(questions));
        }
        self.send(Up::LevelsSent(sent));
    }

    async fn serve(self, mut operator: OperatorChannel, mut messages: UnboundedReceiver<Down>) {
        let (levels, sent) = self.client.levels(MOST_LEVELS);
        self.report(levels, sent);
        let mut releases = 0;
        loop {
            tokio::select! {
                biased;
                message = messages.recv() => match message {
                    Some(Down::Answers(answers)) => {
                        releases += u64::from(answers.is_empty());
                        if answers.is_empty() && operator.begin_asking() {
                            let sent = LevelsSent { is_complete: true, time: None, releases };
                            self.report(self.client.end_shares(), sent);
                        }
                        operator.answer(answers);
                    }
                    Some(Down::Closed) => return operator.closed_by_operator(),
                    None => return,
                },
                questions = operator.questions() => self.send(Up::Questions(questions)),
            }
        }
    }
}
