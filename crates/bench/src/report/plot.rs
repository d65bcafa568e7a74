//! Charts as SVG, written by hand: line charts and bar charts. They have no fonts and no scripts, so they work wherever
//! Markdown is rendered; text uses the viewer's font.

use std::fmt::Write as _;

use crate::stats::figure;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 320.0;
/// Room for the names at the right end of lines.
const LEGEND: f64 = 210.0;

/// Distinct for colour-blind readers (Okabe and Ito); the dashes make them distinct in print.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];
const DASHES: [&str; 4] = ["", "6 3", "2 3", "8 3 2 3"];

pub(crate) enum Chart {
    Lines(Lines),
    Bars(Bars),
}

/// Lines over a number, such as threads or requests per second.
pub(crate) struct Lines {
    /// Part of the file's name.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) series: Vec<Series>,
}

pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// One bar for each contender; the scale is logarithmic if values differ by more than a factor of a hundred.
pub(crate) struct Bars {
    /// Part of the file's name.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<(String, f64)>,
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
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Lines(lines) => lines.name,
            Self::Bars(bars) => bars.name,
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

impl Lines {
    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (first, last) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        let top = step(points().fold(0.0_f64, |high, (_, y)| high.max(*y)) / 5.0) * 5.0;
        let right = WIDTH - LEGEND;
        let x_at = |x: f64| LEFT + (x - first) / (last - first).max(f64::MIN_POSITIVE) * (right - LEFT);
        let y_at = |y: f64| TOP + HEIGHT - y / top * HEIGHT;

        let mut svg = open(TOP + HEIGHT + 48.0, &self.title, self.y);
        for tick in 0..=5 {
            let value = top / 5.0 * f64::from(tick);
            let y = y_at(value);
            let _ = writeln!(svg, r##"<path d="M{LEFT} {y:.1}H{right}" stroke="#ddd"/>"##);
            label(&mut svg, LEFT - 6.0, y + 4.0, "end", &tick_text(value));
        }
        let mut ticks: Vec<f64> = points().map(|(x, _)| *x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        // At most a dozen, so that they do not overlap.
        for x in ticks.iter().step_by(ticks.len().div_ceil(12).max(1)) {
            label(&mut svg, x_at(*x), TOP + HEIGHT + 18.0, "middle", &tick_text(*x));
        }
        label(&mut svg, f64::midpoint(LEFT, right), TOP + HEIGHT + 38.0, "middle", self.x);
        for (index, series) in self.series.iter().enumerate() {
            // Ours has the first colour in every chart, and no other contender has it.
            let ours = series.name.starts_with("weir");
            let place = if ours { 0 } else { 1 + index % (COLOURS.len() - 1) };
            let (colour, dash) =
                (COLOURS[place], if ours { "" } else { DASHES[(index + 2 * (index / 7)) % DASHES.len()] });
            let path: Vec<_> = series.points.iter().map(|(x, y)| format!("{:.1} {:.1}", x_at(*x), y_at(*y))).collect();
            let width = if ours { 3.5 } else { 1.8 };
            let style = format!(r#"fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}""#);
            let _ = writeln!(svg, r#"<path d="M{}" {style}/>"#, path.join("L"));
            let y = TOP + 18.0 * f64::from(u32::try_from(index).unwrap_or_default());
            let _ = writeln!(svg, r#"<path d="M{} {y}h24" {style}/>"#, right + 16.0);
            label(&mut svg, right + 46.0, y + 4.0, "start", &series.name);
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
        let logarithmic = high / low > 100.0;
        let length = |value: f64| {
            let share = if !logarithmic {
                value / high
            } else if value > 0.0 {
                // The lowest bar stays visible.
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
            let colour = if name.starts_with("weir") { COLOURS[0] } else { COLOURS[7] };
            let bar = length(*value);
            label(&mut svg, names - 8.0, y + 13.0, "end", name);
            let _ = writeln!(svg, r#"<rect x="{names}" y="{y}" width="{bar:.1}" height="17" fill="{colour}"/>"#);
            label(&mut svg, names + bar + 6.0, y + 13.0, "start", &figure(*value));
        }
        svg + "</svg>\n"
    }
}

fn open(height: f64, title: &str, unit: &str) -> String {
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#222">
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
"##
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

/// Ticks are round, or nearly.
fn tick_text(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { figure(value) }
}

/// The next of 1, 1.5, 2, 2.5, 3, 4 and 5 times a power of ten.
fn step(at_least: f64) -> f64 {
    let power = 10f64.powf(at_least.max(1e-9).log10().floor());
    let fits =
        [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0].into_iter().map(|factor| factor * power).find(|step| *step >= at_least);
    fits.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_never_too_small() {
        let steps: Vec<_> = [0.9, 1.0, 1.1, 2.2, 3.0, 7.0, 42.0].map(step).to_vec();
        assert_eq!(steps, [1.0, 1.0, 1.5, 2.5, 3.0, 10.0, 50.0]);
    }

    #[test]
    fn lines_go_from_corner_to_corner() {
        let series = Series { name: "a<b".to_owned(), points: vec![(1.0, 0.0), (8.0, 50.0)] };
        let chart = Chart::from(Lines { name: "x", title: "T".to_owned(), x: "x", y: "y", series: vec![series] });
        let svg = chart.svg();
        assert!(svg.contains(r#"d="M64.0 376.0L550.0 56.0""#), "{svg}");
        assert!(svg.contains("a&lt;b"), "{svg}");
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bars = vec![("weir".to_owned(), 1.0), ("other".to_owned(), 4.0)];
        let svg = Chart::from(Bars { name: "x", title: "T".to_owned(), unit: "ns", bars }).svg();
        assert!(svg.contains(r##"width="102.5" height="17" fill="#0072b2""##), "{svg}");
        assert!(svg.contains(r#"width="410.0""#), "{svg}");
        assert!(!svg.contains("logarithmic"), "{svg}");
    }

    #[test]
    fn far_apart_values_get_a_logarithmic_scale() {
        let bars = vec![("a".to_owned(), 1.0), ("b".to_owned(), 1000.0), ("c".to_owned(), 0.0)];
        let svg = Chart::from(Bars { name: "x", title: "T".to_owned(), unit: "ns", bars }).svg();
        assert!(svg.contains("ns, logarithmic"), "{svg}");
        assert!(svg.contains(r#"width="0.0""#), "{svg}");
    }
}
