//! Compares the answers of `weir-agent rls` with those of envoyproxy/ratelimit, an implementation with which it shares
//! no code.
//!
//! Each random configuration is a file of the peer, and `weir-operator import` writes the policies of Weir from this file.
//! The same requests go to both.
//! They differ on purpose, mainly because the peer charges what it refuses, and Weir charges all descriptors of a request
//! or none (see `model`). Therefore each of them has a model of whole numbers, and every answer must be exactly that of its model. The
//! two models share only the lookup, so where they agree, the peer agrees with Weir.

mod config;
mod import;
mod lookup;
mod model;
mod plan;
mod read;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use self::{
    config::{Config, units},
    import::Operator,
    model::{Answer, Model, Rules},
    read::Told,
};
use super::{
    client::Client,
    messages::{Request, Unit},
    services::{PeerSettings, Service},
};
use crate::{
    clock,
    proxy::{Connection, Cores},
};

/// The configurations that Weir has at the same time. The content of a pod must not be larger than 1 MiB.
const BATCH: usize = 10;
const REQUESTS: usize = 40;
/// The share of requests over the JSON port.
const JSON: f64 = 0.1;
/// Faults after which the comparison ends.
const MOST_FAULTS: usize = 5;
/// The share of configurations that may meet the end of a window in the middle of a request.
const MOST_CROSSED: usize = 50;
/// No request is sent so close to the end of a window that the two services could see different windows.
const ROOM: Duration = Duration::from_millis(400);

/// Compare the answers of `weir-agent rls` with those of envoyproxy/ratelimit.
#[derive(clap::Args)]
pub(crate) struct AnswersArgs {
    /// The number of random configurations
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    configurations: u32,
    /// The seed of the random numbers; by default a new one
    #[arg(long)]
    seed: Option<u64>,
}

/// What was compared.
#[derive(Default)]
struct Tally {
    requests: usize,
    /// Answers that were the same in all fields.
    same: usize,
    /// Answers that differed as the models say.
    apart: usize,
    /// Configurations whose window ended during a request.
    crossed: usize,
    faults: Vec<String>,
}

/// Both services, with their connections.
struct Pair {
    peer: Asked,
    weir: Asked,
}

struct Asked {
    client: Client,
    json: SocketAddr,
}

impl AnswersArgs {
    /// Returns true if every answer was as its model says.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        let seed = self.seed.unwrap_or_else(|| rand::rng().random());
        println!("rls: {} configurations with --seed {seed}", self.configurations);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        Ok(runtime.block_on(compare(self.configurations, seed))?.report())
    }
}

async fn compare(configurations: u32, seed: u64) -> anyhow::Result<Tally> {
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().context("make a folder for the services")?;
    let configs: Vec<_> = (0..configurations).map(|number| configuration(number, &mut random)).collect();
    write_files(&configs, folder.path())?;
    let peer = Service::peer(folder.path(), PeerSettings { cores: Cores::All, more: &[], redis: None })?;
    let empty = json!({"wireVersion": 1, "sequence": 1, "revision": "none", "policies": []});
    let weir = Service::weir(folder.path(), &empty, Cores::All)?;
    let operator = Operator::start(folder.path(), weir.control.context("the agent has no control port")?)?;
    let mut pair = Pair { peer: Asked::open(&peer).await?, weir: Asked::open(&weir).await? };
    let mut tally = Tally::default();
    for batch in configs.chunks(BATCH) {
        let import = |config: &Config| import::policies(config, &file_of(config, folder.path()));
        let policies = batch.iter().map(import).collect::<anyhow::Result<Vec<_>>>()?;
        operator.apply(&policies)?;
        for (config, policies) in batch.iter().zip(&policies) {
            pair.examine((config, policies), &mut random, &mut tally).await?;
            if tally.faults.len() >= MOST_FAULTS {
                return Ok(tally);
            }
        }
    }
    // A comparison in which most requests pass by all limits would compare nothing.
    ensure!(tally.same > tally.requests / 3, "only {} of {} answers were the same", tally.same, tally.requests);
    ensure!(tally.apart > 0, "no request was refused after a charge");
    ensure!(tally.crossed <= configs.len() / MOST_CROSSED, "{} windows ended during a request", tally.crossed);
    Ok(tally)
}

fn configuration(number: u32, random: &mut StdRng) -> Config {
    use Unit::{Day, Hour, Minute, Second};
    // A window of one second needs a pause in its configuration, so few configurations have one.
    let units: &[Unit] = match random.random_range(0..20) {
        0 => &[Second, Hour],
        1..5 => &[Minute, Hour, Day],
        _ => &[Hour, Day],
    };
    Config::random(format!("domain-{number}"), units, random)
}

fn write_files(configs: &[Config], folder: &Path) -> anyhow::Result<()> {
    let files = folder.join("config");
    fs::create_dir(&files).with_context(|| format!("make {}", files.display()))?;
    for config in configs {
        let file = file_of(config, folder);
        fs::write(&file, config.yaml()).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

fn file_of(config: &Config, folder: &Path) -> PathBuf {
    folder.join("config").join(format!("{}.yaml", config.domain))
}

impl Pair {
    /// Sends requests to one domain of both services, in one window, or in two if windows are as short as a second.
    async fn examine(
        &mut self,
        (config, policies): (&Config, &str),
        random: &mut StdRng,
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let units = units(&config.nodes);
        let (mut peer, mut weir) = (Model::new(config, Rules::Peer), Model::new(config, Rules::Weir));
        let rounds = if units.contains(&Unit::Second) { 2 } else { 1 };
        for _ in 0..rounds {
            let begun = wait_for_room(&units).await;
            for _ in 0..REQUESTS / rounds {
                let request = plan::request(config, random);
                let over_json = random.random_bool(JSON);
                let before = clock::since_1970();
                let (of_peer, of_weir) =
                    (self.peer.ask(&request, over_json).await, self.weir.ask(&request, over_json).await);
                let after = clock::since_1970();
                if windows(&units, after + ROOM / 4) != windows(&units, begun) {
                    tally.crossed += 1;
                    return Ok(());
                }
                let now = before.as_secs();
                let expected = (peer.answer(&request, now), weir.answer(&request, now));
                tally.requests += 1;
                let mut faults = Vec::new();
                for (name, told, expected, rules) in [
                    ("envoyproxy/ratelimit", of_peer, &expected.0, Rules::Peer),
                    ("weir-agent", of_weir, &expected.1, Rules::Weir),
                ] {
                    let fault = told.and_then(|told| told.check(expected, rules, [before, after]));
                    faults.extend(fault.err().map(|fault| format!("{name}: {fault:#}")));
                }
                if !faults.is_empty() {
                    tally.faults.push(describe((config, policies), &request, over_json, &expected, &faults));
                    return Ok(());
                }
                if expected.0 == expected.1 {
                    tally.same += 1;
                } else {
                    tally.apart += 1;
                }
            }
            if rounds > 1 {
                wait_for_next_second().await;
            }
        }
        Ok(())
    }
}

fn describe(
    (config, policies): (&Config, &str),
    request: &Request,
    over_json: bool,
    expected: &(Answer, Answer),
    faults: &[String],
) -> String {
    let port = if over_json { "JSON" } else { "gRPC" };
    format!(
        "{}\n{policies}\nover {port}: {}\nexpected of the peer: {:?}\nexpected of Weir: {:?}\n{}",
        config.yaml(),
        read::json(request),
        expected.0,
        expected.1,
        faults.join("\n")
    )
}

impl Asked {
    async fn open(service: &Service) -> anyhow::Result<Self> {
        Ok(Self { client: Client::connect(service.grpc).await?, json: service.json })
    }

    async fn ask(&mut self, request: &Request, over_json: bool) -> anyhow::Result<Told> {
        if !over_json {
            return Told::of_response(&self.client.ask(request.clone()).await?);
        }
        let (body, host) = (read::json(request).to_string(), self.json);
        let length = body.len();
        let head = format!(
            "POST /json HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let (status, told) = Connection::open(self.json)?.exchange((head + &body).as_bytes())?;
        Told::of_json(status, &told)
    }
}

/// The numbers of the windows at a time.
fn windows(units: &[Unit], at: Duration) -> Vec<u64> {
    units.iter().map(|unit| at.as_secs() / unit.seconds()).collect()
}

/// Waits until no window ends soon, and returns the time.
async fn wait_for_room(units: &[Unit]) -> Duration {
    loop {
        let now = clock::since_1970();
        if windows(units, now + 2 * ROOM) == windows(units, now) {
            return now;
        }
        wait_for_next_second().await;
    }
}

async fn wait_for_next_second() {
    let part = Duration::from_nanos(clock::since_1970().subsec_nanos().into());
    // Some time later, so that both services see the next second.
    tokio::time::sleep(Duration::from_millis(1_020) - part).await;
}

impl Tally {
    fn report(&self) -> bool {
        for fault in &self.faults {
            println!("{fault}\n");
        }
        let summary = json!({
            "requests": self.requests,
            "the same answer": self.same,
            "different as the models say": self.apart,
            "configurations whose window ended during a request": self.crossed,
            "faults": self.faults.len(),
        });
        println!("rls: {summary}");
        self.faults.is_empty()
    }
}
