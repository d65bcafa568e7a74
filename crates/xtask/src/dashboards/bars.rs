//! Checks that bars show each event exactly once. Promtool evaluates the query of the bars on made-up scrapes. In the
//! test's Prometheus, the bars are compared with the samples of their counters.

use std::collections::BTreeMap;

use super::{
    grafana::Query,
    prometheus::{Series, Span},
    questions::fill,
};

/// The fault of bars that are all zero.
pub(super) const NOTHING: &str = "nothing happened that its bars could show";

/// Seconds between the bars of promtool's test.
const MINUTE: u32 = 60;

/// Cases: a name, the scraped values, and the number of events. A scrape every 16 s is never at the border of two bars.
const SCRAPES: [(&str, &str, u32); 5] = [
    ("between the last scrape of a bar and the first of the next", "0x3 1x140", 1),
    ("before the first scrape", "_x20 3x120", 3),
    ("before and after a restart", "0x10 5x10 2x120", 7),
    ("in a gap of the scrapes", "0x10 1x5 stale _x60 4x60", 4),
    ("none", "9x140", 9),
];

/// Creates a test for promtool: an event counts once, independent of the times of the scrapes.
pub(super) fn promtool_test() -> String {
    let bars = fill(&Query::events("case", "events_total", String::new()).expr, MINUTE);
    let input = SCRAPES
        .map(|(case, values, _)| format!("  - {{series: 'events_total{{case=\"{case}\"}}', values: '{values}'}}\n"));
    let output = SCRAPES.map(|(case, _, events)| format!("    - {{labels: '{{case=\"{case}\"}}', value: {events}}}\n"));
    format!(
        "rule_files: []\ntests:\n- interval: 16s\n  input_series:\n{}  promql_expr_test:\n  \
         - expr: sum_over_time(({bars})[35m:1m])\n    eval_time: 35m\n    exp_samples:\n{}",
        input.concat(),
        output.concat()
    )
}

/// Compares the bars of a query in a span of time with the samples of its counter. The samples must begin before the
/// span.
pub(super) fn faults(by: &str, bars: &[Series], samples: &[Series], span: &Span, bar: u32) -> Vec<String> {
    let bar = f64::from(bar);
    let last = span.start + ((span.end - span.start) / bar).floor() * bar;
    let group = |series: &Series| series.metric.get(by).cloned().unwrap_or_default();
    let mut events = BTreeMap::<_, f64>::new();
    for series in samples {
        *events.entry(group(series)).or_default() += value_at(series, last) - value_at(series, span.start - bar);
    }
    let mut shown = BTreeMap::<_, f64>::new();
    for series in bars {
        *shown.entry(group(series)).or_default() += series.numbers().map(|(_, value)| value).sum::<f64>();
    }
    let mut faults = Vec::new();
    for (name, events) in &events {
        let shown = shown.get(name).copied().unwrap_or_default();
        if (shown - events).abs() > 1e-6 {
            faults.push(format!("the bars of {name:?} show {shown} events of {events}"));
        }
    }
    if events.values().all(|events| *events == 0.0) {
        faults.push(NOTHING.to_owned());
    }
    faults
}

/// The value of a counter at this time, or 0 before its first sample.
fn value_at(series: &Series, time: f64) -> f64 {
    series.numbers().take_while(|(at, _)| *at <= time).last().map_or(0.0, |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(result: &str, values: &[(f64, &str)]) -> Series {
        Series {
            metric: [("result".to_owned(), result.to_owned())].into(),
            values: values.iter().map(|(at, value)| (*at, (*value).to_owned())).collect(),
            value: None,
        }
    }

    #[test]
    fn bars_that_lose_an_event_are_a_fault() {
        let span = Span { start: 100.0, end: 112.0 };
        let samples = [
            series("good", &[(90.0, "7"), (96.0, "8"), (101.0, "9"), (110.0, "11"), (111.0, "12")]),
            series("bad", &[(90.0, "0"), (111.0, "0")]),
        ];
        let of = |good: [&str; 3]| {
            let bars = [series("good", &[(100.0, good[0]), (105.0, good[1]), (110.0, good[2])])];
            faults("result", &bars, &samples, &span, 5)
        };
        assert_eq!(of(["1", "1", "2"]), [""; 0], "an event after the last bar was counted");
        assert_eq!(of(["1", "0", "2"]), ["the bars of \"good\" show 3 events of 4"]);
        assert_eq!(of(["0", "0", "0"]), ["the bars of \"good\" show 0 events of 4"]);
        let nothing = faults("result", &[], &samples[1..], &span, 5);
        assert_eq!(nothing, [NOTHING]);
    }
}
