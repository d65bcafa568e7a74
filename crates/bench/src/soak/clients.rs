//! Runs all clients concurrently. Each kind of client runs in several lanes, and each lane repeats a round and a pause.

mod control;
mod held;
pub(super) mod http1;
mod http2;
mod keys;
mod rude;
mod websockets;

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    control::{CONTROL, SLOWEST},
    held::Held,
};
use super::{
    app::Changes,
    tally::{Kind, Tally},
};
use crate::clock;

/// The rules on which clients rely. Every snapshot contains them, unchanged.
pub(super) const FIXED: [fn() -> Value; 6] =
    [control::rule, held::paced_rule, held::once_rule, keys::passing_rule, keys::staying_rule, websockets::rule];

/// The longest duration of a round, in which the agent must answer or close the connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// The target of the clients.
pub(super) struct Target {
    pub(super) proxy: SocketAddr,
    app: Changes,
}

impl Target {
    pub(super) fn new(proxy: SocketAddr, app: Changes) -> Self {
        Self { proxy, app }
    }
}

/// A kind of client, with the state that it keeps between rounds.
trait Client: 'static {
    /// Runs one round. An error describes a wrong behaviour of the agent.
    async fn round(&mut self, target: &Target) -> anyhow::Result<()>;
}

/// The number of lanes of a kind, and the pause between the rounds of a lane.
#[derive(Clone, Copy)]
struct Pace {
    lanes: usize,
    pause: Duration,
}

const fn pace(lanes: usize, pause_millis: u64) -> Pace {
    Pace { lanes, pause: Duration::from_millis(pause_millis) }
}

pub(super) struct Crowd {
    lanes: JoinSet<()>,
    tallies: Vec<Rc<Tally>>,
    held: Vec<Rc<held::Counter>>,
}

/// Starts all clients. The limits that are counted exactly have been in force since `started`.
pub(super) fn start(target: &Arc<Target>, started: Instant, stop: &CancellationToken) -> Crowd {
    let held: Vec<_> = held::counters(started).into_iter().map(Rc::new).collect();
    let mut crowd = Crowd { lanes: JoinSet::new(), tallies: Vec::new(), held: held.clone() };
    let mut add = Add { crowd: &mut crowd, target, stop };
    add.kind(CONTROL, "one request after another on a connection that is kept", pace(1, 100), |_| {
        control::Http1::default()
    });
    add.kind("control, HTTP/2", "the same over HTTP/2", pace(1, 100), |_| control::Http2::default());
    for counter in held {
        add.kind(counter.name(), "sends more requests than its limit allows", pace(3, 100), |_| {
            held::Asking::new(Rc::clone(&counter))
        });
    }
    add.kind(
        "churn",
        "connects, sends one request, leaves; every third client resets the connection",
        pace(4, 50),
        http1::Churn::new,
    );
    add.kind("kept alive", "sends a request from time to time, and leaves after 20", pace(30, 700), |_| {
        http1::Kept::default()
    });
    add.kind("idle", "sends one request and waits until the agent closes the connection", pace(20, 0), |_| http1::Idle);
    add.kind("HTTP/2", "streams cancelled before, in and after the head; one that is not", pace(2, 200), |_| {
        http2::Cancelling::default()
    });
    add.kind("WebSocket", "five messages, then a close or none", pace(4, 150), websockets::Sockets::new);
    add.kind("new keys", "20 requests with 20 new keys, which soon become idle", pace(4, 40), keys::Fresh::passing);
    add.kind("full table", "20 requests with 20 new keys, which stay in use", pace(1, 80), keys::Fresh::staying);
    add.kind("slow reader", "1 MiB in small sips", pace(4, 200), |_| rude::SlowReader);
    add.kind("half head", "a head that never ends, byte by byte", pace(15, 100), rude::HalfHead::new);
    add.kind(
        "never reads",
        "requests 16 MiB and reads nothing until the agent closes the connection",
        pace(8, 100),
        |_| rude::NeverReads,
    );
    add.kind("cut upload", "sends half a body, then leaves, resets or half-closes", pace(2, 150), rude::CutUpload::new);
    crowd
}

/// A builder that adds kinds of clients.
struct Add<'a> {
    crowd: &'a mut Crowd,
    target: &'a Arc<Target>,
    stop: &'a CancellationToken,
}

impl Add<'_> {
    fn kind<C: Client>(&mut self, name: &'static str, does: &'static str, pace: Pace, client: impl Fn(usize) -> C) {
        let tally = Rc::new(Tally::new(name, does, pace.lanes));
        self.crowd.tallies.push(Rc::clone(&tally));
        for place in 0..pace.lanes {
            let (tally, target, stop) = (Rc::clone(&tally), Arc::clone(self.target), self.stop.clone());
            let lane = lane(client(place), target, tally, pace);
            self.crowd.lanes.spawn_local(async move {
                stop.run_until_cancelled(lane).await;
            });
        }
    }
}

async fn lane(mut client: impl Client, target: Arc<Target>, tally: Rc<Tally>, pace: Pace) {
    // When the app stops, the agent also closes the connections that clients keep between their rounds.
    let mut moment = target.app.now();
    loop {
        let started = clock::now();
        let round = tokio::time::timeout(PATIENCE, client.round(&target)).await;
        let outcome = round.unwrap_or_else(|_| Err(anyhow!("the round did not end within {PATIENCE:?}")));
        tally.count(&outcome, target.app.none_since(moment), clock::since(started));
        moment = target.app.now();
        tokio::time::sleep(pace.pause).await;
    }
}

impl Crowd {
    /// Waits until all clients have disconnected, after the stop token was cancelled.
    pub(super) async fn leave(mut self) -> anyhow::Result<(Vec<Kind>, Vec<Held>)> {
        while let Some(lane) = self.lanes.join_next().await {
            lane.context("a client panicked")?;
        }
        let held = self.held.iter().map(|counter| counter.summary()).collect();
        Ok((self.tallies.iter().map(|tally| tally.summary()).collect(), held))
    }
}
