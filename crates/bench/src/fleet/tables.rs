//! Writes the report: the figures of all fleets, and the aims.

use std::{collections::BTreeMap, time::Duration};

use super::{Found, load_average};
use crate::{
    report::{Bars, Cell, Lines, Report, Row, Series, Table},
    stats::{figure, float, quantile, quantile_ms},
};

const ABOUT: &str = "\
A real etcd (which does not wait for the disk), a real kube-apiserver without controllers and kubelets, the operator \
as in its image, and simulated agents. One process simulates all agents, with a loopback address for each. They speak \
the wire format and enforce nothing. All programs share the cores of this machine. Pods belong to Deployments of 100 \
in one namespace, because a policy applies to one namespace. Each Deployment has five policies, which together with \
the two below are 500 for 10,000 pods. Each pod reports that it runs and is ready. *One policy on 100 pods* targets a \
Deployment, and *one on all* selects pods by label. The test changes their only limit again and again. The time runs \
from the request to the apiserver to the acknowledgement of the last agent. The operator uses the channel with mutual \
TLS. The operator's authority signs the certificates of the agents before the operator starts, so issuing 10,000 \
certificates is not part of a cold start.";

const METHOD: &str = "Percentiles are those of the repetitions. With fewer than 100 repetitions, the 99th percentile \
is the slowest one. Processor time is that of the operator only, in percent of one core. Memory is its resident \
memory.";

const MEBIBYTE: f64 = 1024.0 * 1024.0;

pub(super) fn report(found: &[Found], is_part: bool, load_before: &str) -> anyhow::Result<Report> {
    let mut report = Report::new("fleet", "The operator with up to 10,000 pods", ABOUT, is_part)?;
    report.written_by("cargo xtask bench fleet", METHOD);
    let load = format!("{load_before} before, {} after", load_average());
    report.add_versions([("load average", load)]);
    if let Some(largest) = found.last() {
        aims(largest, &mut report);
        report.chart(changes(largest));
    }
    for (name, title, unit, value) in FIGURES {
        let bars = found.iter().map(|found| (format!("weir, {} pods", figure(float(found.pods))), value(found)));
        report.chart(Bars::new(name, title, unit, bars));
    }
    report.table(growth(found));
    report.table(requests(found));
    Ok(report)
}

/// Formats one line of progress.
pub(super) fn line(found: &Found) -> String {
    format!(
        "{} pods: 100 pods p50 {:.0} ms, p99 {:.0} ms; all p50 {:.0} ms, p99 {:.0} ms; cold {:.2} s; \
         {:.1} MB resident, {:.1} MB at most; when idle {:.2} % of a core, {:.0} statuses/s, {:.2} requests/s",
        found.pods,
        quantile_ms(&found.small, 500),
        quantile_ms(&found.small, 990),
        quantile_ms(&found.all, 500),
        quantile_ms(&found.all, 990),
        found.cold.as_secs_f64(),
        found.resident(),
        found.peak(),
        found.rest_cpu(),
        found.statuses(),
        found.asked(),
    )
}

impl Found {
    fn resident(&self) -> f64 {
        float(self.resident) / MEBIBYTE
    }

    fn peak(&self) -> f64 {
        float(self.peak) / MEBIBYTE
    }

    fn rest_cpu(&self) -> f64 {
        self.rest.cpu.as_secs_f64() / self.rest.length.as_secs_f64() * 100.0
    }

    fn statuses(&self) -> f64 {
        float(self.rest.statuses) / self.rest.length.as_secs_f64()
    }

    fn asked(&self) -> f64 {
        float(self.rest.requests.len()) / self.rest.length.as_secs_f64()
    }
}

fn aims(largest: &Found, report: &mut Report) {
    let pods = figure(float(largest.pods));
    let below = |what: String, found: f64, most: f64, unit: &str| {
        (format!("{what}: less than {} {unit}", figure(most)), format!("{} {unit}", figure(found)), found < most)
    };
    let interval = float(largest.pods) / largest.statuses();
    for (aim, found, met) in [
        below(
            "changed policy on 100 pods to the last acknowledgement, p99".to_owned(),
            quantile_ms(&largest.small, 990),
            250.0,
            "ms",
        ),
        below(format!("the same on all {pods} pods, p99"), quantile_ms(&largest.all, 990), 2_000.0, "ms"),
        below(
            "cold start of the operator to the last acknowledgement".to_owned(),
            largest.cold.as_secs_f64(),
            30.0,
            "s",
        ),
        below("memory at most".to_owned(), largest.peak(), 160.0, "MiB"),
        below(
            format!("processor when idle, with a status of each agent every {interval:.1} s"),
            largest.rest_cpu(),
            2.0,
            "% of a core",
        ),
        below("requests to the apiserver when idle".to_owned(), largest.asked(), 1.0, "a second"),
    ] {
        report.aim(aim, found, met);
    }
}

/// A chart of all fleets: its name, title, unit and value.
type Figure = (&'static str, &'static str, &'static str, fn(&Found) -> f64);

const FIGURES: [Figure; 4] = [
    ("all", "One policy on all pods: change to last acknowledgement, p50", "ms", |found| quantile_ms(&found.all, 500)),
    ("cold", "Cold start to last acknowledgement", "s", |found| found.cold.as_secs_f64()),
    ("memory", "Memory at most", "MiB", Found::peak),
    ("rest", "Processor when idle", "% of a core", Found::rest_cpu),
];

/// The chart of all repetitions, from the fastest to the slowest.
fn changes(found: &Found) -> Lines {
    let series = |name: &str, took: &[Duration]| {
        let share = |place: usize| float(place + 1) / float(took.len()) * 100.0;
        let points = took.iter().enumerate().map(|(place, took)| (share(place), took.as_secs_f64() * 1e3));
        Series { name: name.to_owned(), points: points.collect() }
    };
    Lines::new(
        "changes",
        format!("Change to last acknowledgement, of {} pods", figure(float(found.pods))),
        ["percent of the changes that took at most this long", "ms"],
        [series("weir, policy on all", &found.all), series("policy on 100 pods", &found.small)],
    )
}

fn growth(found: &[Found]) -> Table {
    let row = |name: &str, value: &dyn Fn(&Found) -> f64| {
        Row::new(name, found.iter().map(|found| Cell::Number(value(found))))
    };
    let ms = |per_mille| move |took: &[Duration]| quantile_ms(took, per_mille);
    let slowest = |took: &[Duration]| quantile(took, 1000).as_secs_f64() * 1e3;
    Table::new(
        "How it grows",
        "figure",
        found.iter().map(|found| format!("{} pods", figure(float(found.pods)))),
        [
            row("policies", &|found| float(found.policies)),
            row("one policy on 100 pods, p50, ms", &|found| ms(500)(&found.small)),
            row("one policy on 100 pods, p99, ms", &|found| ms(990)(&found.small)),
            row("one policy on 100 pods, slowest, ms", &|found| slowest(&found.small)),
            row("one policy on 100 pods, repetitions", &|found| float(found.small.len())),
            row("one policy on all pods, p50, ms", &|found| ms(500)(&found.all)),
            row("one policy on all pods, p99, ms", &|found| ms(990)(&found.all)),
            row("one policy on all pods, slowest, ms", &|found| slowest(&found.all)),
            row("one policy on all pods, repetitions", &|found| float(found.all.len())),
            row("processor time for one change of all, ms", &|found| found.all_cpu.as_secs_f64() * 1e3),
            row("cold start to the last acknowledgement, s", &|found| found.cold.as_secs_f64()),
            row("processor time until the last acknowledgement, s", &|found| found.cold_cpu.as_secs_f64()),
            row("cold start to the last status that says so, s", &|found| found.cold_reported.as_secs_f64()),
            row("memory at most, MiB", &Found::peak),
            row("memory when idle, MiB", &Found::resident),
            row("processor time from the last change until idle, s", &|found| found.rest.settling.as_secs_f64()),
            row("processor when idle, % of a core", &Found::rest_cpu),
            row("statuses when idle, a second", &Found::statuses),
            row("requests to the apiserver when idle, a second", &Found::asked),
        ],
    )
}

fn requests(found: &[Found]) -> Table {
    let tally = |found: &Found| {
        let mut tally: BTreeMap<String, usize> = BTreeMap::new();
        for request in &found.rest.requests {
            *tally.entry(request.clone()).or_default() += 1;
        }
        tally
    };
    let tallies: Vec<_> = found.iter().map(tally).collect();
    let names: std::collections::BTreeSet<_> = tallies.iter().flat_map(BTreeMap::keys).collect();
    let cell = |tally: &BTreeMap<String, usize>, name: &str| Cell::Number(float(tally.get(name).copied().unwrap_or(0)));
    let columns = found
        .iter()
        .map(|found| format!("{} pods, in {:.0} s", figure(float(found.pods)), found.rest.length.as_secs_f64()));
    let rows = names.into_iter().map(|name| Row::new(name, tallies.iter().map(|tally| cell(tally, name))));
    Table::new("Requests to the apiserver when idle", "request", columns, rows)
        .note("Counted in its audit log. The leading operator renews the Lease every 2 s.")
}

#[cfg(test)]
mod tests {
    use super::{super::Rest, *};

    #[test]
    fn an_aim_that_is_missed_is_told() -> anyhow::Result<()> {
        let found = Found {
            pods: 10_000,
            policies: 500,
            cold: Duration::from_secs(31),
            cold_cpu: Duration::from_secs(5),
            cold_reported: Duration::from_secs(40),
            small: vec![Duration::from_millis(20), Duration::from_millis(251)],
            all: vec![Duration::from_millis(700)],
            all_cpu: Duration::from_millis(500),
            resident: 90 << 20,
            peak: 100 << 20,
            rest: Rest {
                settling: Duration::from_secs(1),
                length: Duration::from_secs(10),
                cpu: Duration::from_millis(300),
                statuses: 10_000,
                requests: vec!["update leases".to_owned(); 5],
            },
        };
        let folder = tempfile::tempdir()?;
        report(&[found], false, "0, 0, 0")?.write(folder.path())?;
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.path().join("fleet.json"))?)?;
        let met: Vec<_> = json["aims"].as_array().into_iter().flatten().map(|aim| aim["met"] == true).collect();
        assert_eq!(met, [false, true, false, true, false, true]);
        Ok(())
    }
}
