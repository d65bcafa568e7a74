//! Draws line charts and bar charts as SVG. They contain no fonts and no scripts, so they can be shown wherever
//! Markdown is rendered. Text uses the viewer's font, and colours follow the viewer's light or dark theme.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::stats::figure;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 320.0;
/// The width for the names at the right end of lines.
const LEGEND: f64 = 210.0;

/// The factor between the lowest and the highest value above which a scale is logarithmic.
const FAR_APART: f64 = 100.0;

/// The colours of both themes. Colour-blind readers can distinguish those of the contenders (Okabe and Ito). A viewer
/// without themes uses the first colours.
const STYLE: &str = "\
text { fill: #1f2328 } .ground { fill: #fff } .grid { stroke: #d8dee4 }
.line { fill: none; stroke: var(--c) } .bar { fill: var(--c) } .refused { fill: #d1242f; fill-opacity: 0.2 }
.swatch { stroke: #d1242f; stroke-opacity: 0.2; stroke-width: 12 } .limit { stroke: #d1242f; stroke-dasharray: 4 3 }
.c0 { --c: #0072b2 } .c1 { --c: #d55e00 } .c2 { --c: #009e73 } .c3 { --c: #cc79a7 }
.c4 { --c: #e69f00 } .c5 { --c: #56b4e9 } .c6 { --c: #000 } .c7 { --c: #999 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .ground { fill: #0d1117 } .grid { stroke: #30363d } .limit, .swatch { stroke: #ff7b72 }
.refused { fill: #ff7b72 } .c0 { --c: #58a6ff } .c6 { --c: #fff }
}";
const COLOURS: usize = 8;
/// The dash patterns, which also distinguish lines in print.
const DASHES: [&str; 4] = ["", "6 3", "2 3", "8 3 2 3"];

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Chart {
    Lines(Lines),
    Bars(Bars),
}

/// A line chart. Its x axis is a number, such as threads or requests per second.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Lines {
    /// The name of the chart, which is a part of the file name.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) series: Vec<Series>,
    /// The limit, which the first series must not exceed for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<LimitLine>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A line at a limit, and the area between the first and the second series.
#[derive(Serialize, Deserialize)]
pub(crate) struct LimitLine {
    pub(crate) at: f64,
    /// The label of this area: what happens to its requests.
    pub(crate) above: String,
}

/// A bar chart, with one bar for each contender.
#[derive(Serialize, Deserialize)]
pub(crate) struct Bars {
    /// The name of the chart, which is a part of the file name.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) bars: Vec<(String, f64)>,
}

impl Lines {
    /// Creates a chart with these axes: x and y.
    pub(crate) fn new(
        name: &str,
        title: impl Into<String>,
        axes: [&str; 2],
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let ([x, y], series) = (axes.map(str::to_owned), series.into_iter().collect());
        Self { name: name.to_owned(), title: title.into(), x, y, series, limit: None }
    }
}

impl Bars {
    pub(crate) fn new(
        name: impl Into<String>,
        title: impl Into<String>,
        unit: &str,
        bars: impl IntoIterator<Item = (impl Into<String>, f64)>,
    ) -> Self {
        let bars = bars.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Self { name: name.into(), title: title.into(), unit: unit.to_owned(), bars }
    }
}

impl From<Lines> for Chart {
    fn from(lines: Lines) -> Self {
        Self::Lines(lines)
    }
}

impl From<Bars> for Chart {
    fn from(bars: Bars) -> Self {
        Self::Bars(bars)
    }
}

impl Chart {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Lines(lines) => &lines.name,
            Self::Bars(bars) => &bars.name,
        }
    }

    pub(super) fn title(&self) -> &str {
        match self {
            Self::Lines(lines) => &lines.title,
            Self::Bars(bars) => &bars.title,
        }
    }

    pub(super) fn svg(&self) -> String {
        match self {
            Self::Lines(lines) => lines.svg(),
            Self::Bars(bars) => bars.svg(),
        }
    }
}

/// A scale of values, with round ticks.
struct Scale {
    /// The ticks in ascending order. The first and the last tick are the ends of the scale.
    ticks: Vec<f64>,
    logarithmic: bool,
}

impl Scale {
    /// Creates a scale. It starts at 0, or at a power of ten if the values are far apart.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if low > 0.0 && high / low > FAR_APART {
            let mut ticks = vec![10f64.powf(low.log10().floor())];
            while ticks.last().is_some_and(|last| *last < high) {
                ticks.extend(ticks.last().map(|last| last * 10.0));
            }
            return Self { ticks, logarithmic: true };
        }
        let step = step(high / 6.0);
        Self { ticks: multiples(step, 0.0, (high / step).ceil().max(1.0) * step), logarithmic: false }
    }

    /// The position of a value, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let (first, last) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        if self.logarithmic { (value / first).ln() / (last / first).ln() } else { (value - first) / (last - first) }
    }

    fn said(&self) -> &'static str {
        if self.logarithmic { ", logarithmic" } else { "" }
    }
}

impl Lines {
    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (first, last) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        let scale = Scale::of(points().map(|(_, y)| *y).chain(self.limit.iter().map(|limit| limit.at)));
        let right = WIDTH - LEGEND;
        let x_at = |x: f64| LEFT + (x - first) / (last - first).max(f64::MIN_POSITIVE) * (right - LEFT);
        let y_at = |y: f64| TOP + HEIGHT - scale.share(y) * HEIGHT;
        let path = |points: &[(f64, f64)]| {
            let path: Vec<_> = points.iter().map(|(x, y)| format!("{:.1} {:.1}", x_at(*x), y_at(*y))).collect();
            path.join("L")
        };

        let mut svg = open(TOP + HEIGHT + 48.0, &self.title, &format!("{}{}", self.y, scale.said()));
        for value in &scale.ticks {
            let y = y_at(*value);
            let _ = writeln!(svg, r#"<path class="grid" d="M{LEFT} {y:.1}H{right}"/>"#);
            label(&mut svg, LEFT - 6.0, y + 4.0, "end", &value.to_string());
        }
        for x in x_ticks(points().map(|(x, _)| *x).collect()) {
            label(&mut svg, x_at(x), TOP + HEIGHT + 18.0, "middle", &x.to_string());
        }
        label(&mut svg, f64::midpoint(LEFT, right), TOP + HEIGHT + 38.0, "middle", &self.x);
        let mut rows = (0_u32..).map(|row| TOP + 18.0 * f64::from(row));
        let mut name = |svg: &mut String, sample: &str, name: &str| {
            let y = rows.next().unwrap_or(TOP);
            let _ = writeln!(svg, r#"<path {sample} d="M{} {y}h24"/>"#, right + 16.0);
            label(svg, right + 46.0, y + 4.0, "start", name);
        };
        if let (Some(limit), [below, above, ..]) = (&self.limit, &self.series[..]) {
            // Late responses can raise the first series above the second. They are not refusals, so there the area ends
            // at the lower series.
            let back = below.points.iter().zip(&above.points).rev().map(|((x, low), (_, high))| (*x, low.min(*high)));
            let area = [above.points.clone(), back.collect()].concat();
            let _ = writeln!(svg, r#"<path class="refused" d="M{}Z"/>"#, path(&area));
            let y = y_at(limit.at);
            let _ = writeln!(svg, r#"<path class="limit" d="M{LEFT} {y:.1}H{right}"/>"#);
        }
        // A series without points is not drawn.
        for (index, series) in self.series.iter().enumerate().filter(|(_, series)| !series.points.is_empty()) {
            // Weir has the first colour in every chart, and no other contender has this colour.
            let ours = series.name.starts_with("weir");
            let colour = if ours { 0 } else { 1 + index % (COLOURS - 1) };
            let dash = if ours { "" } else { DASHES[(index + 2 * (index / 7)) % DASHES.len()] };
            let width = if ours { 3.5 } else { 1.8 };
            let style = format!(r#"class="line c{colour}" stroke-width="{width}" stroke-dasharray="{dash}""#);
            let _ = writeln!(svg, r#"<path {style} d="M{}"/>"#, path(&series.points));
            name(&mut svg, &style, &series.name);
        }
        if let Some(limit) = &self.limit {
            name(&mut svg, r#"class="limit""#, "limit");
            name(&mut svg, r#"class="swatch""#, &limit.above);
        }
        svg + "</svg>\n"
    }
}

impl Bars {
    fn svg(&self) -> String {
        let names = 260.0;
        let measured = || self.bars.iter().map(|(_, value)| *value).filter(|value| *value > 0.0);
        let (low, high) =
            measured().fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| (low.min(value), high.max(value)));
        let logarithmic = high / low > FAR_APART;
        let length = |value: f64| {
            let share = if !logarithmic {
                value / high
            } else if value > 0.0 {
                // The lowest bar must be visible.
                0.03 + 0.97 * (value / low).ln() / (high / low).ln()
            } else {
                0.0
            };
            share * (WIDTH - names - 90.0)
        };
        let scale = if logarithmic { ", logarithmic" } else { "" };
        let rows = f64::from(u32::try_from(self.bars.len()).unwrap_or_default());
        let mut svg = open(TOP + 22.0 * rows + 12.0, &self.title, &format!("{}{scale}", self.unit));
        for (index, (name, value)) in self.bars.iter().enumerate() {
            let y = TOP + 22.0 * f64::from(u32::try_from(index).unwrap_or_default());
            let colour = if name.starts_with("weir") { 0 } else { 7 };
            let bar = length(*value);
            label(&mut svg, names - 8.0, y + 13.0, "end", name);
            let _ = writeln!(svg, r#"<rect class="bar c{colour}" x="{names}" y="{y}" width="{bar:.1}" height="17"/>"#);
            label(&mut svg, names + bar + 6.0, y + 13.0, "start", &figure(*value));
        }
        svg + "</svg>\n"
    }
}

fn open(height: f64, title: &str, unit: &str) -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<style>
{STYLE}
</style>
<rect class="ground" width="{WIDTH}" height="{height}"/>
"#
    );
    let _ = writeln!(svg, r#"<text x="12" y="22" font-size="15" font-weight="bold">{}</text>"#, escape(title));
    label(&mut svg, 12.0, 42.0, "start", unit);
    svg
}

fn label(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escape(text));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The ticks of the x axis: the measured values, or round values if there are more than a dozen.
fn x_ticks(mut measured: Vec<f64>) -> Vec<f64> {
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    if measured.len() <= 12 {
        return measured;
    }
    let (first, last) = (measured[0], measured[measured.len() - 1]);
    multiples(step((last - first) / 9.0), first, last)
}

/// The multiples of a step in a range. They are computed with a division by a power of ten, so that 3 times 0.1 is 0.3.
fn multiples(step: f64, from: f64, to: f64) -> Vec<f64> {
    let scale = 10f64.powf((-step.log10().floor()).max(0.0));
    let whole = (step * scale).round();
    let count = |value: f64| value / step;
    let mut ticks = Vec::new();
    let mut tick = (count(from) - 1e-9).ceil();
    while tick <= count(to) + 1e-9 {
        // Zero is added, because the tick at zero can be -0.
        ticks.push(tick * whole / scale + 0.0);
        tick += 1.0;
    }
    ticks
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least this value.
fn step(at_least: f64) -> f64 {
    let power = 10f64.powf(at_least.max(1e-9).log10().floor());
    let fits = [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power).find(|step| *step >= at_least);
    fits.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(points: &[(f64, f64)]) -> Lines {
        let series = Series { name: "a<b".to_owned(), points: points.to_vec() };
        Lines { series: vec![series], ..Lines::default() }
    }

    #[test]
    fn ticks_are_round_and_as_many_as_fit() {
        let steps: Vec<_> = [0.9, 1.0, 1.1, 2.2, 3.0, 7.0, 42.0].map(step).to_vec();
        assert_eq!(steps, [1.0, 1.0, 2.0, 5.0, 5.0, 10.0, 50.0]);
        let ticks = |high: f64| Scale::of([0.0, high].into_iter()).ticks;
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.42), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]);
        assert_eq!(ticks(130.0), [0.0, 50.0, 100.0, 150.0]);
        assert_eq!(Scale::of([0.3, 77.0].into_iter()).ticks, [0.1, 1.0, 10.0, 100.0]);
        let halves = (0..60).map(|half| f64::from(half) / 2.0).collect();
        assert_eq!(x_ticks(halves), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(x_ticks(vec![8.0, 1.0, 2.0, 1.0]), [1.0, 2.0, 8.0]);
    }

    #[test]
    fn lines_go_from_corner_to_corner() {
        let svg = lines(&[(1.0, 0.0), (8.0, 50.0)]).svg();
        assert!(svg.contains(r#"d="M64.0 376.0L550.0 56.0""#), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains(">0</text>"), "{svg}");
        assert!(!svg.contains(r#"class="limit""#), "{svg}");
    }

    #[test]
    fn lines_that_are_far_apart_get_a_logarithmic_scale() {
        let svg = lines(&[(1.0, 0.1), (2.0, 1.0), (3.0, 1000.0)]).svg();
        assert!(svg.contains(", logarithmic"), "{svg}");
        assert!(svg.contains(r#"d="M64.0 376.0L307.0 296.0L550.0 56.0""#), "{svg}");
    }

    #[test]
    fn the_area_between_offer_and_admission_is_marked_and_nothing_below_it() {
        let series = |name: &str, points: [(f64, f64); 3]| Series { name: name.to_owned(), points: points.into() };
        let chart = Lines {
            series: vec![
                series("weir", [(0.0, 10.0), (1.0, 20.0), (2.0, 30.0)]),
                series("offered", [(0.0, 50.0), (1.0, 40.0), (2.0, 0.0)]),
            ],
            limit: Some(LimitLine { at: 25.0, above: "refused".to_owned() }),
            ..Lines::default()
        };
        let svg = chart.svg();
        let area = "M64.0 56.0L307.0 120.0L550.0 376.0L550.0 376.0L307.0 248.0L64.0 312.0Z";
        assert!(svg.contains(&format!(r#"class="refused" d="{area}""#)), "{svg}");
        assert!(svg.contains(r#"class="limit" d="M64 216.0H550""#), "{svg}");
        assert!(svg.contains(">refused</text>"), "{svg}");
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bars = vec![("weir".to_owned(), 1.0), ("other".to_owned(), 4.0)];
        let svg = Bars { name: "x".into(), title: "T".into(), unit: "ns".into(), bars }.svg();
        assert!(svg.contains(r#"class="bar c0" x="260" y="56" width="102.5" height="17""#), "{svg}");
        assert!(svg.contains(r#"width="410.0""#), "{svg}");
        assert!(!svg.contains("ns, logarithmic"), "{svg}");
    }

    #[test]
    fn far_apart_bars_get_a_logarithmic_scale() {
        let bars = vec![("a".to_owned(), 1.0), ("b".to_owned(), 1000.0), ("c".to_owned(), 0.0)];
        let svg = Bars { name: "x".into(), title: "T".into(), unit: "ns".into(), bars }.svg();
        assert!(svg.contains("ns, logarithmic"), "{svg}");
        assert!(svg.contains(r#"width="0.0""#), "{svg}");
    }
}
