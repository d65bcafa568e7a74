//! WebSocket messages: traffik limits them in the app, the agent before it. slowapi does not limit messages.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, bail, ensure};
use futures::{SinkExt as _, StreamExt as _, future::try_join_all};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use super::{
    contenders::{Contender, PLACEMENTS, Running},
    counting::Counting,
    plan::{KEY, Limit, Plan, Route},
    rounds::fresh_key,
    tables::{Results, figures},
};
use crate::{
    clock,
    report::Part,
    stats::{float, percentiles_ms},
};

const CONTENDERS: [Contender; 3] = [Contender::Alone, Contender::Agent, Contender::Traffik];

struct Scenario {
    name: &'static str,
    connections: usize,
    /// The number of messages on each connection, which sends them one after another.
    messages: usize,
    /// The limit of all connections together.
    limit: usize,
}

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "low, 50", connections: 1, messages: 50, limit: 100 },
    Scenario { name: "high, 200", connections: 1, messages: 200, limit: 100 },
    Scenario { name: "sustained, 500", connections: 1, messages: 500, limit: 1_000 },
    Scenario { name: "burst, 100", connections: 1, messages: 100, limit: 50 },
    Scenario { name: "10 connections", connections: 10, messages: 15, limit: 100 },
];

/// The place of the scenario that is drawn.
const HIGH: usize = 1;

#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    latencies: [f64; 3],
    wrong: u64,
}

impl Scenario {
    fn path(&self) -> String {
        format!("/messages/{}/{}", self.limit, self.connections)
    }

    fn exact(&self, contender: Contender) -> usize {
        let all = self.connections * self.messages;
        if contender == Contender::Alone { all } else { self.limit.min(all) }
    }
}

/// Returns the number of lists that were admitted wrongly.
pub(super) fn measure(rounds: usize, length: Duration, folder: &Path, part: &mut Part<'_>) -> anyhow::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let routes = SCENARIOS.iter().map(|scenario| {
        let limit = Limit::window(scenario.limit as u64);
        Route { messages: true, ..Route::limited(scenario.path(), limit) }
    });
    let plan = Plan::of(routes);
    let running = CONTENDERS.map(|contender| contender.start(&plan, &Counting::in_memory(), folder));
    let running = running.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let mut wrong = 0;
    for placement in PLACEMENTS {
        running.iter().try_for_each(|running| running.move_to(placement))?;
        let mut results = Results::new(placement.name(), &CONTENDERS);
        for scenario in &SCENARIOS {
            eprintln!("seeds: messages, {}, {}", scenario.name, placement.name());
            let round = |place: usize| runtime.block_on(scenario.round(&running[place], length));
            results.measure(scenario.name, rounds, round)?;
        }
        let all = (0..CONTENDERS.len()).flat_map(|place| results.rounds.of_contender(place));
        wrong += all.map(|sample| sample.wrong).sum::<u64>();
        write(&results, part);
    }
    Ok(wrong)
}

impl Scenario {
    async fn round(&self, running: &Running, length: Duration) -> anyhow::Result<Sample> {
        let (mut latencies, mut time, mut wrong) = (Vec::new(), Duration::ZERO, 0);
        let mut is_first = true;
        while time < length {
            let (path, key) = (self.path(), fresh_key());
            let opened = (0..self.connections).map(|_| open(running.addresses[0], &path, &key));
            let mut sockets = try_join_all(opened).await?;
            let started = clock::now();
            let talks = try_join_all(sockets.iter_mut().map(|socket| talk(socket, self.messages))).await?;
            let took = clock::since(started);
            for mut socket in sockets {
                socket.close(None).await.context("close")?;
            }
            // The first time, the contender may have to start something.
            if std::mem::take(&mut is_first) {
                continue;
            }
            time += took;
            let served: usize = talks.iter().map(|(_, served)| served).sum();
            wrong += u64::from(served != self.exact(running.contender));
            latencies.extend(talks.into_iter().flat_map(|(latencies, _)| latencies));
        }
        let per_second = float(latencies.len()) / time.as_secs_f64();
        Ok(Sample { per_second, latencies: percentiles_ms(latencies), wrong })
    }
}

async fn open(address: SocketAddr, path: &str, key: &str) -> anyhow::Result<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.context("connect")?;
    stream.set_nodelay(true).context("send at once")?;
    let mut request = format!("ws://app{path}").into_client_request().context("a request")?;
    request.headers_mut().insert(KEY, key.parse().context("a key")?);
    Ok(client_async(request, stream).await.context("open a WebSocket")?.0)
}

/// Sends messages one after the other. Returns the time to each answer, and how many came back.
async fn talk(socket: &mut WebSocketStream<TcpStream>, messages: usize) -> anyhow::Result<(Vec<Duration>, usize)> {
    let (mut latencies, mut served) = (Vec::with_capacity(messages), 0);
    for number in 0..messages {
        let text = format!("message {number}");
        let sent = clock::now();
        socket.send(Message::text(text.clone())).await.context("send")?;
        match socket.next().await.context("the other side closed")?.context("receive")? {
            Message::Text(back) => {
                latencies.push(clock::since(sent));
                // A refusal is a JSON object.
                let is_refused = back.starts_with('{');
                ensure!(is_refused || back.as_str() == text, "{back} came back for {text}");
                served += usize::from(!is_refused);
            }
            other => bail!("{other:?} came back"),
        }
    }
    Ok((latencies, served))
}

const NOTE: &str = "A client sends a message as soon as it has the answer to the last one. *High* and *burst* refuse half \
    of their messages; *10 connections*, which share a key and send 15 messages each, refuse a third. Each list of \
    messages has new connections and a new key.";

fn write(results: &Results<Sample>, part: &mut Part<'_>) {
    let percentiles: [fn(&Sample) -> f64; 3] =
        [|sample| sample.latencies[0], |sample| sample.latencies[1], |sample| sample.latencies[2]];
    let figures = figures("messages a second", |sample: &Sample| sample.per_second, percentiles);
    results.write_all(&format!("WebSocket, {}", results.name), NOTE, &figures, part);
    results.draw(HIGH, "websocket", "WebSocket, half of the messages refused", &figures[0], part);
}
