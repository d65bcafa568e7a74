//! The panels as pictures for the manual, drawn from what Prometheus answered: plain SVG, one file a dashboard, laid out
//! as Grafana lays it out. It shows what the queries find, not how Grafana looks.

use std::{fmt::Write as _, fs};

use anyhow::Context as _;

use super::{
    boards,
    grafana::{Board, Kind, Panel, Unit},
    prometheus::{Prometheus, Series},
};
use crate::workspace::Workspace;

const FOLDER: &str = "docs/dashboards";

/// How much of the load is drawn, in seconds.
const SPAN: f64 = 45.0;

const WIDTH: f64 = 1200.0;
const GAP: f64 = 10.0;
const HEADING: f64 = 28.0;
/// Of a unit of Grafana's grid.
const UNIT_HEIGHT: f64 = 26.0;
const LEGEND_LINE: f64 = 14.0;
const AXIS: f64 = 58.0;
const COLOURS: [&str; 8] = ["#3274d9", "#e0752d", "#56a64b", "#a352cc", "#e02f44", "#0f9d9d", "#b8860b", "#5a6b7b"];

/// Writes a picture of every board; `fill` puts values in place of the variables.
pub(super) async fn draw(
    workspace: &Workspace,
    prometheus: &Prometheus,
    fill: impl Fn(&str) -> String,
) -> anyhow::Result<()> {
    let folder = workspace.root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let now = prometheus.query("vector(1)").await?;
    let end = now.first().and_then(|series| Some(series.value.as_ref()?.0));
    let end = end.context("Prometheus does not say what time it is")?;
    for board in boards() {
        let text = picture(&board, prometheus, &fill, end).await?;
        let path = folder.join(format!("{}.svg", board.uid));
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        println!("{FOLDER}/{}.svg written", board.uid);
    }
    Ok(())
}

async fn picture(
    board: &Board,
    prometheus: &Prometheus,
    fill: &impl Fn(&str) -> String,
    end: f64,
) -> anyhow::Result<String> {
    let mut body = String::new();
    let mut y = HEADING + GAP;
    for row in &board.rows {
        let height = f64::from(row.height) * UNIT_HEIGHT;
        let count = f64::from(u32::try_from(row.panels.len())?);
        let width = (WIDTH - GAP * (count + 1.0)) / count;
        let mut x = GAP;
        for panel in &row.panels {
            let mut series = Vec::new();
            for query in &panel.queries {
                for found in prometheus.range(&fill(query.expr), end - SPAN, end).await? {
                    series.push((legend(query.legend, &found), numbers(&found)));
                }
            }
            series.sort_by(|a, b| a.0.cmp(&b.0));
            let frame = Frame { x, y, width, height, end };
            frame.draw(&mut body, panel, &series);
            x += width + GAP;
        }
        y += height + GAP;
    }
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{y}\" fill=\"#f4f5f5\"/>\n\
         <text x=\"{GAP}\" y=\"24\" font-size=\"17\" font-weight=\"bold\" fill=\"#222\">{}</text>\n{body}</svg>\n",
        escaped(board.title)
    ))
}

/// Where a panel is.
struct Frame {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    end: f64,
}

type Line = (String, Vec<(f64, f64)>);

impl Frame {
    fn draw(&self, body: &mut String, panel: &Panel, series: &[Line]) {
        let Self { x, y, width, height, .. } = self;
        let _ = writeln!(
            body,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" rx=\"3\" fill=\"#fff\" stroke=\"#d8dadd\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" font-weight=\"bold\" fill=\"#333\">{}</text>",
            x + 8.0,
            y + 17.0,
            escaped(panel.title)
        );
        if panel.kind == Kind::Stat {
            self.values(body, panel, series);
        } else {
            self.lines(body, panel, series);
        }
    }

    /// The last value of each series, large.
    fn values(&self, body: &mut String, panel: &Panel, series: &[Line]) {
        for (index, (name, points)) in (0_u8..).zip(series) {
            let Some((_, last)) = points.last() else { continue };
            let y = self.y + 42.0 + f64::from(index) * 22.0;
            let _ = writeln!(
                body,
                "<text x=\"{:.0}\" y=\"{y:.0}\" font-size=\"17\" fill=\"{}\">{}</text><text x=\"{:.0}\" y=\"{y:.0}\" fill=\"#555\">{}</text>",
                self.x + 10.0,
                colour(index),
                show(*last, panel.unit),
                self.x + 110.0,
                escaped(name)
            );
        }
    }

    fn lines(&self, body: &mut String, panel: &Panel, series: &[Line]) {
        let legend = LEGEND_LINE * f64::from(u32::try_from(series.len().div_ceil(2)).unwrap_or(0));
        let (left, top) = (self.x + AXIS, self.y + 26.0);
        let (width, height) = (self.width - AXIS - 12.0, self.height - 26.0 - 12.0 - legend);
        let stacked = panel.kind == Kind::Stacked;
        let mut floors: std::collections::BTreeMap<u64, f64> = std::collections::BTreeMap::new();
        let mut drawn = Vec::new();
        for (name, points) in series {
            let points: Vec<_> = points
                .iter()
                .map(|&(at, value)| {
                    let floor = if stacked { *floors.get(&at.to_bits()).unwrap_or(&0.0) } else { 0.0 };
                    floors.insert(at.to_bits(), floor + value);
                    (at, floor, floor + value)
                })
                .collect();
            drawn.push((name, points));
        }
        let highest = drawn.iter().flat_map(|(_, points)| points).map(|point| point.2).fold(0.0, f64::max);
        let highest = if panel.unit == Unit::Share && highest <= 1.0 { 1.0 } else { round_up(highest) };
        for step in 0..=4_u8 {
            let share = f64::from(step) / 4.0;
            let y = top + height * (1.0 - share);
            let _ = writeln!(
                body,
                "<line x1=\"{left:.0}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e6e7e9\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#777\" font-size=\"10\">{}</text>",
                left + width,
                left - 5.0,
                y + 3.5,
                show(highest * share, panel.unit)
            );
        }
        let place = |at: f64, value: f64| {
            (left + width * (1.0 - (self.end - at) / SPAN), top + height * (1.0 - value / highest))
        };
        for (index, (name, points)) in (0_u8..).zip(&drawn) {
            let edge = |value: fn(&(f64, f64, f64)) -> f64| {
                points.iter().map(move |point| {
                    let (x, y) = place(point.0, value(point));
                    format!("{x:.1},{y:.1}")
                })
            };
            let upper: Vec<_> = edge(|point| point.2).collect();
            let lower: Vec<_> = edge(|point| point.1).collect();
            let colour = colour(index);
            let opacity = if stacked { 0.4 } else { 0.06 };
            let area = upper.iter().chain(lower.iter().rev()).cloned().collect::<Vec<_>>().join(" ");
            let _ = writeln!(
                body,
                "<polygon points=\"{area}\" fill=\"{colour}\" fill-opacity=\"{opacity}\"/><polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
                upper.join(" ")
            );
            let x = self.x + 12.0 + f64::from(index % 2) * self.width / 2.0;
            let y = top + height + 16.0 + f64::from(index / 2) * LEGEND_LINE;
            let last = points.last().map_or_else(String::new, |point| show(point.2 - point.1, panel.unit));
            let _ = writeln!(
                body,
                "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"9\" height=\"3\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{y:.0}\" fill=\"#444\" font-size=\"10\">{}  {last}</text>",
                y - 5.0,
                x + 13.0,
                escaped(name)
            );
        }
    }
}

fn colour(index: u8) -> &'static str {
    COLOURS[usize::from(index) % COLOURS.len()]
}

/// `{{label}}` replaced by the label's value.
fn legend(pattern: &str, series: &Series) -> String {
    series
        .metric
        .iter()
        .fold(pattern.to_owned(), |text, (label, value)| text.replace(&format!("{{{{{label}}}}}"), value))
}

fn numbers(series: &Series) -> Vec<(f64, f64)> {
    series
        .values
        .iter()
        .filter_map(|(at, value)| Some((*at, value.parse::<f64>().ok().filter(|value| value.is_finite())?)))
        .collect()
}

/// The next of 1, 2, 4 and 8 times a power of ten: four steps of it are round.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|factor| factor * power).find(|top| *top >= value).unwrap_or(value)
}

fn show(value: f64, unit: Unit) -> String {
    let plain = |value: f64| {
        let digits = if value == 0.0 || value.abs() >= 100.0 {
            0
        } else if value.abs() >= 10.0 {
            1
        } else {
            2
        };
        let text = format!("{value:.digits$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match unit {
        Unit::Count | Unit::Cores => plain(value),
        Unit::RequestsPerSecond | Unit::PerSecond => format!("{}/s", plain(value)),
        Unit::Share => format!("{} %", plain(value * 100.0)),
        Unit::Seconds if value < 1.0 => format!("{} ms", plain(value * 1e3)),
        Unit::Seconds => format!("{} s", plain(value)),
        Unit::Bytes => format!("{} MiB", plain(value / 1024.0 / 1024.0)),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legends_take_the_labels() {
        let series = Series {
            metric: [("rule".to_owned(), "a".to_owned()), ("limit".to_owned(), "b".to_owned())].into(),
            values: Vec::new(),
            value: None,
        };
        assert_eq!(legend("{{rule}}/{{limit}} P50", &series), "a/b P50");
    }

    #[test]
    fn figures_have_their_unit_and_few_digits() {
        assert_eq!(show(0.0423, Unit::Seconds), "42.3 ms");
        assert_eq!(show(0.5, Unit::Share), "50 %");
        assert_eq!(show(1234.5, Unit::RequestsPerSecond), "1234/s");
        assert_eq!(show(0.0, Unit::Count), "0");
        assert_eq!((round_up(0.0), round_up(3.0), round_up(81.0), round_up(100.0)), (1.0, 4.0, 100.0, 100.0));
    }
}
