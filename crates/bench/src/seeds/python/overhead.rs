//! The cost of header fields and rules: compares each variant with the same limiter without them. Two equal variants show
//! how much two measurements differ.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};

use super::{
    clients::{Answer, get},
    contenders::{Contender, Running, start_agent_of},
    counting::Counting,
    plan::{Fields, Gate, Limit, Plan, Route, Selection},
    rounds::{Admitted, Round, Sample, fresh_key},
};
use crate::{
    proxy::start_app,
    report::{Cell, Part, Row, Table},
    rounds::Rounds,
    stats::{Spread, figure, in_pairs},
    turns::order,
};

const PATH: &str = "/api/v1/test";
const REQUESTS: usize = 500;
const CONNECTIONS: usize = 50;
/// A difference up to this, in percent, is not a cost.
const NOISE: f64 = 5.0;

const THREE: &[(&str, &str)] = &[("x-limit", "{limit}"), ("x-left", "{remaining}"), ("x-info", "bench")];
const EIGHT: &[(&str, &str)] = &[
    ("x-limit", "{limit}"),
    ("x-left", "{remaining}"),
    ("x-reset", "{resetAfter}"),
    ("x-still-left", "{remaining}"),
    ("x-info", "bench"),
    ("x-info-1", "bench-value-1"),
    ("x-info-2", "bench-value-2"),
    ("x-info-3", "bench-value-3"),
];

/// A way to configure a limiter.
struct Variant {
    name: &'static str,
    fields: Fields,
    gates: &'static [Gate],
    rules: &'static [Selection],
    /// The limit of a key.
    limit: u64,
}

const NO_FIELDS: Variant =
    Variant { name: "none", fields: Fields::None, gates: &[], rules: &[Selection::Path(PATH)], limit: 1_000 };
const NO_RULES: Variant = Variant { name: "no rules", rules: &[Selection::All], ..NO_FIELDS };
/// All requests of a key but one are refused.
const REFUSALS: Variant = Variant { name: "refusals, none", limit: 1, ..NO_FIELDS };

const FIELDS: [Variant; 5] = [
    NO_FIELDS,
    Variant { name: "none, again", ..NO_FIELDS },
    Variant { name: "standard", fields: Fields::Standard, ..NO_FIELDS },
    Variant { name: "3 of the user", fields: Fields::Own(THREE), ..NO_FIELDS },
    Variant { name: "8 of the user, 4 with values", fields: Fields::Own(EIGHT), ..NO_FIELDS },
];

const FIELDS_OF_REFUSALS: [Variant; 4] = [
    REFUSALS,
    Variant { name: "refusals, none, again", ..REFUSALS },
    Variant { name: "refusals, standard", fields: Fields::Standard, ..REFUSALS },
    Variant { name: "refusals, 3 of the user, 2 with values", fields: Fields::OwnOfRefusals(THREE), ..REFUSALS },
];

const fn gate(path: &'static str) -> Gate {
    Gate { bypass: false, path, regex: false }
}

const fn bypass(path: &'static str) -> Gate {
    Gate { bypass: true, path, regex: false }
}

const REGEX: &str = r"^/api/v\d+/.*$";

const RULES: [Variant; 8] = [
    NO_RULES,
    Variant { name: "no rules, again", ..NO_RULES },
    Variant { name: "1 rule", gates: &[gate(PATH)], rules: &[Selection::Path(PATH)], ..NO_RULES },
    Variant { name: "`*`", gates: &[gate("/api/*/test")], rules: &[Selection::Path("/api/*/test")], ..NO_RULES },
    Variant { name: "`**`", gates: &[gate("/api/**")], rules: &[Selection::Path("/api/**")], ..NO_RULES },
    Variant {
        name: "regular expression",
        gates: &[Gate { bypass: false, path: REGEX, regex: true }],
        rules: &[Selection::Regex(REGEX)],
        ..NO_RULES
    },
    Variant {
        name: "2 bypasses, 1 rule",
        gates: &[bypass("/health"), bypass("/metrics"), gate(PATH)],
        rules: &[Selection::Bypass("/health"), Selection::Bypass("/metrics"), Selection::Path(PATH)],
        ..NO_RULES
    },
    Variant {
        name: "10 mixed rules",
        // All conditions of a limit of traffik must hold.
        gates: &[
            bypass("/health"),
            bypass("/metrics"),
            bypass("/readyz"),
            gate(PATH),
            gate("/api/*/test"),
            gate("/api/v1/*"),
            gate("/*/v1/test"),
            gate("/api/**"),
            gate("/**"),
            Gate { bypass: false, path: REGEX, regex: true },
        ],
        rules: &[
            Selection::Bypass("/health"),
            Selection::Bypass("/metrics"),
            Selection::Bypass("/readyz"),
            Selection::Path("/api/v1/users"),
            Selection::Path("/api/v1/items"),
            Selection::Path("/api/v1/orders"),
            Selection::Path("/api/v1/search"),
            Selection::Path("/api/*/export"),
            Selection::Path(PATH),
            Selection::Regex(r"^/admin/v\d+/"),
        ],
        ..NO_RULES
    },
];

/// The rounds of one contender, whose variants take turns.
struct Outcome {
    contender: Contender,
    samples: Rounds<Sample>,
    /// CPU of the agent for each request before an app that answers immediately, in microseconds; no figures for
    /// others.
    cpu: Vec<f64>,
}

pub(super) fn measure(rounds: usize, length: Duration, folder: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    let contenders = [Contender::Agent, Contender::Traffik, Contender::Slowapi];
    let fields = contenders.map(|contender| run(contender, &FIELDS, rounds, length, folder));
    let fields = fields.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    write("header fields", &FIELDS, &fields, part);
    let refusals = [run(Contender::Agent, &FIELDS_OF_REFUSALS, rounds, length, folder)?];
    write("header fields of refusals", &FIELDS_OF_REFUSALS, &refusals, part);
    let rules = [Contender::Agent, Contender::Traffik].map(|contender| run(contender, &RULES, rounds, length, folder));
    let rules = rules.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    write("rules", &RULES, &rules, part);
    Ok(())
}

impl Variant {
    fn plan(&self) -> Plan {
        Plan::of([Route {
            fields: self.fields,
            gates: self.gates.to_vec(),
            rules: Some(self.rules.to_vec()),
            ..Route::limited(PATH, Limit::window(self.limit))
        }])
    }

    /// How many of the requests of a list are served.
    fn served(&self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX).min(REQUESTS)
    }

    /// Whether a response has the fields of this variant, and no others.
    fn check(&self, head: &str) -> anyhow::Result<()> {
        let has = |name: &str| head.lines().any(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
        let has_standard = has("ratelimit") || has("x-ratelimit-limit");
        ensure!(has_standard == matches!(self.fields, Fields::Standard), "the fields of the limiter: {head}");
        for (name, _) in EIGHT {
            let own = match self.fields {
                Fields::None | Fields::Standard => &[],
                Fields::Own(own) | Fields::OwnOfRefusals(own) => own,
            };
            let is_own = own.iter().any(|(other, _)| other == name);
            ensure!(has(name) == is_own, "the field {name}: {head}");
        }
        Ok(())
    }
}

/// The head of the response to the last request of a list.
fn head(address: SocketAddr) -> anyhow::Result<String> {
    let key = fresh_key();
    let mut head = String::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).context("connect")?;
        stream.write_all(&get(PATH, &key)).context("send a request")?;
        let mut room = [0; 4096];
        head.clear();
        while !head.contains("\r\n\r\n") {
            let count = stream.read(&mut room).context("read a response")?;
            ensure!(count > 0, "the connection was closed");
            head += &String::from_utf8_lossy(&room[..count]);
        }
    }
    Ok(head)
}

/// The variants of one contender, which take turns.
fn run(
    contender: Contender,
    variants: &[Variant],
    rounds: usize,
    length: Duration,
    folder: &Path,
) -> anyhow::Result<Outcome> {
    let mut running: Vec<Option<Running>> = Vec::new();
    for variant in variants {
        // slowapi sends fields of its own only.
        let has = contender != Contender::Slowapi || !matches!(variant.fields, Fields::Own(_));
        running.push(if has { Some(contender.start(&variant.plan(), &Counting::in_memory(), folder)?) } else { None });
    }
    for (variant, running) in variants.iter().zip(&running) {
        let Some(running) = running else { continue };
        variant
            .check(&head(running.addresses[0])?)
            .with_context(|| format!("{}, {}", contender.name(), variant.name))?;
    }
    let mut samples = Rounds::new(variants.iter().map(|variant| variant.name));
    samples.add(contender.name());
    samples.measure("seeds: overhead", rounds, |_, place, _| {
        let running = running[place].as_ref();
        running.map(|running| variants[place].round(running.addresses[0], length)).transpose()
    })?;
    drop(running);
    let cpu = if contender == Contender::Agent { cpu(variants, rounds, length, folder)? } else { Vec::new() };
    Ok(Outcome { contender, samples, cpu })
}

impl Variant {
    fn round(&self, address: SocketAddr, length: Duration) -> anyhow::Result<Sample> {
        let list = |key: &str| vec![get(PATH, key); REQUESTS];
        let served = |answers: &[Answer]| answers.iter().filter(|answer| answer.is_served()).count();
        let admitted = |answers: &[Answer]| Admitted::of(served(answers), self.served());
        let sample =
            Round { addresses: &[address], connections: CONNECTIONS, length, list: &list, admitted: &admitted }
                .run()?;
        ensure!(sample.wrong == 0, "{}: more or fewer requests were served than the limit says", self.name);
        Ok(sample)
    }
}

/// CPU of the agent for each request, by variant. The app behind it answers immediately, so that the agent does as
/// much in a round as it can. All rounds count together, because the kernel counts CPU in steps of 10 ms.
fn cpu(variants: &[Variant], rounds: usize, length: Duration, folder: &Path) -> anyhow::Result<Vec<f64>> {
    let app = start_app()?;
    let alone = Counting::in_memory();
    let agents = variants.iter().map(|variant| start_agent_of(&variant.plan(), app, &alone, folder));
    let agents = agents.collect::<anyhow::Result<Vec<_>>>()?;
    let mut used = vec![(0.0, 0.0); variants.len()];
    for round in 0..rounds {
        for place in order(round, variants.len()) {
            let (process, listen) = &agents[place];
            let before = process.cpu()?;
            let sample = variants[place].round(*listen, length)?;
            let cpu = process.cpu()? - before;
            used[place].0 += cpu.total().as_secs_f64() * 1e6;
            used[place].1 += sample.sent;
        }
    }
    Ok(used.into_iter().map(|(micros, requests)| micros / requests).collect())
}

fn write(what: &str, variants: &[Variant], outcomes: &[Outcome], part: &mut Part<'_>) {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let per_second = |place: usize| outcome.samples.values(0, place, |sample| sample.per_second);
        let base = per_second(0);
        for place in outcome.samples.measured(0) {
            let variant = &variants[place];
            let latency = |percentile: usize| outcome.samples.cell(0, place, |sample| sample.all[percentile]);
            let change = change(&per_second(place), &base);
            rows.push(Row::new(
                format!("{}, {}", outcome.contender.name(), variant.name),
                [
                    Cell::Measured(Spread::of(per_second(place))),
                    if place == 0 { Cell::None } else { Cell::Text(percent(change)) },
                    latency(0),
                    latency(2),
                    outcome.cpu.get(place).map_or(Cell::None, |cpu| Cell::Number(*cpu)),
                ],
            ));
        }
        if outcome.contender == Contender::Agent {
            let changes: Vec<_> = (1..variants.len()).map(|place| change(&per_second(place), &base)).collect();
            // The first one is the repeated variant.
            let least = changes[0].quartiles[0].min(-NOISE);
            let found = variants[1..]
                .iter()
                .zip(&changes)
                .map(|(variant, change)| format!("{} {:+.1} %", variant.name, change.median));
            part.aim(
                &format!(
                    "{what} cost the agent at most {} % of its throughput, or as much as two equal variants differ",
                    figure(NOISE)
                ),
                found.collect::<Vec<_>>().join(", "),
                changes.iter().all(|change| change.median >= least),
            );
        }
    }
    let note = format!(
        "{REQUESTS} requests over {CONNECTIONS} connections, of which {} are served: the limit is {} for each key. \
        *Change* is the median of the changes of throughput, round by round, from the first variant of the contender, \
        with its quartiles; a repeated variant shows the noise. *CPU* is that of the agent in front of an app that \
        answers immediately, so that the time of the app does not hide the time of the agent. The kernel counts it in \
        steps of 10 ms.",
        variants[0].served(),
        variants[0].limit,
    );
    let columns = ["requests a second", "change, %", "P50, ms", "P99, ms", "CPU a request, µs"];
    part.table(Table::new(format!("overhead of {what}"), "contender, variant", columns, rows).note(note));
}

/// In percent, round by round.
fn change(of: &[f64], to: &[f64]) -> Spread {
    in_pairs(of, to, |of, to| (of / to - 1.0) * 1e2)
}

/// `-1.2 (-3.0 to 0.5)`.
fn percent(change: Spread) -> String {
    let [lower, upper] = change.quartiles;
    format!("{:+.1} ({lower:+.1} to {upper:+.1})", change.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_the_fields_of_its_variant() {
        let (plain, standard) = ("HTTP/1.1 200 OK\r\nServer: x\r\n", "HTTP/1.1 200 OK\r\nRateLimit: x\r\n");
        let own = "HTTP/1.1 200 OK\r\nX-Limit: 1\r\nx-left: 1\r\nx-info: bench\r\n";
        let fits = |variant: usize, head: &str| FIELDS[variant].check(head).is_ok();
        assert_eq!([fits(0, plain), fits(2, plain), fits(3, plain)], [true, false, false]);
        assert_eq!([fits(0, standard), fits(2, standard), fits(3, standard)], [false, true, false]);
        assert_eq!([fits(0, own), fits(2, own), fits(3, own), fits(4, own)], [false, false, true, false]);
        assert!(FIELDS_OF_REFUSALS[3].check(own).is_ok());
        let served = |variants: &[Variant]| variants.iter().map(Variant::served).collect::<Vec<_>>();
        assert_eq!((served(&FIELDS), served(&FIELDS_OF_REFUSALS)), (vec![REQUESTS; 5], vec![1; 4]));
    }
}
