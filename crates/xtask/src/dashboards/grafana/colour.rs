//! The meaning of colours, which is the same in every panel of every board.
//!
//! Decisions and states have fixed colours. All other series have colours that differ clearly from these. Grafana's
//! palettes cannot be used for them, because they contain green, orange, red, blue and purple.

use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Colour {
    Allowed,
    Limited,
    Shadow,
    Waiting,
    Bypassed,
    /// The value is good.
    Good,
    /// The value needs attention, or work is in progress.
    Warning,
    /// The value shows a fault.
    Fault,
    /// The value is neither good nor bad.
    #[default]
    Plain,
    /// The time of a change.
    Change,
    /// A series that is neither a decision nor a state: one of [`OTHERS`].
    #[serde(skip)]
    Other(usize),
}

/// The colours that no other series must have.
pub(crate) const RESERVED: [Colour; 5] =
    [Colour::Allowed, Colour::Limited, Colour::Shadow, Colour::Waiting, Colour::Fault];

/// The minimum distance of other series from these colours, in CIELAB. From about 25, readers distinguish two lines.
pub(crate) const APART: f64 = 25.0;

/// The names of series that have fixed colours. With a label, the name is the value of that label.
pub(crate) const FIXED: [(&str, Option<&str>, Colour); 13] = [
    ("allowed", None, Colour::Allowed),
    ("limited", None, Colour::Limited),
    ("shadow", None, Colour::Shadow),
    ("waiting", None, Colour::Waiting),
    ("bypassed", None, Colour::Bypassed),
    ("enforcing", Some("{{state}}"), Colour::Good),
    ("pending", Some("{{state}}"), Colour::Warning),
    ("drifted", Some("{{state}}"), Colour::Fault),
    ("applied", Some("{{result}}"), Colour::Good),
    ("ok", Some("{{result}}"), Colour::Good),
    ("loaded", Some("{{result}}"), Colour::Good),
    ("error", Some("{{result}}"), Colour::Fault),
    ("failed", Some("{{result}}"), Colour::Fault),
];

/// Teal, pink, brown, gold, slate and salmon.
const OTHERS: [&str; 6] = ["#1aa6a6", "#e84393", "#9c6b4a", "#c8a200", "#708090", "#f29191"];

/// The first shade for series with unknown names. Of all hues that differ enough from [`RESERVED`], seven shades of
/// this hue differ most from each other.
const SHADES: &str = "#b39500";

/// Legends with known series. The names of the series are in the order of their colours.
const KNOWN: [(&str, &[&str]); 14] = [
    ("P50", &["P50", "P99"]),
    ("{{protocol}}", &["http1", "http2", "tunnel", "websocket"]),
    ("{{reason}}", &["closed", "connect_timeout", "handshake", "protocol", "refused", "response_timeout"]),
    // The first list contains results of a push, the second one results of a snapshot.
    ("{{result}}", &["garbage", "refused", "timeout", "unreachable", "untrusted"]),
    ("{{result}}", &["invalid", "malformed", "stale", "too_large", "unchanged"]),
    ("requests in the overflow", &["requests in the overflow", "keys given up"]),
    ("busiest / mean", &["busiest / mean"]),
    ("Fleet", &["Fleet", "Shared"]),
    ("P50 Fleet", &["P50 Fleet", "P99 Fleet", "P50 Shared", "P99 Shared"]),
    ("leased", &["leased", "returned", "lost"]),
    ("{{outcome}}", &["counted", "refused"]),
    ("units sent", &["units sent"]),
    ("{{kind}}", &["abandon", "allow_all", "deny_all", "tokens"]),
    ("absent pods", &["absent pods", "leaders that collect"]),
];

/// Selects the series of these legends that have a fixed colour.
pub(super) fn fixed<'a>(legends: &'a [&'a str]) -> impl Iterator<Item = (&'static str, Colour)> + 'a {
    let states = FIXED.into_iter().filter(|(name, label, _)| legends.contains(&label.unwrap_or(name)));
    let known = KNOWN.into_iter().filter(|(legend, _)| legends.contains(legend));
    let others = known.flat_map(|(_, names)| names.iter().enumerate().map(|(at, name)| (*name, Colour::Other(at))));
    states.map(|(name, _, colour)| (name, colour)).chain(others)
}

/// The colours of series with other names, such as names of rules and pods. They are shades, because every palette of
/// Grafana contains colours of [`RESERVED`], and an override needs a known name.
pub(super) fn shades() -> Value {
    json!({"mode": "shades", "fixedColor": SHADES})
}

impl Colour {
    /// Grafana's name of the colour. The light and the dark theme render it differently.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Allowed => "semi-dark-green",
            Self::Limited => "semi-dark-orange",
            Self::Shadow => "semi-dark-purple",
            Self::Waiting | Self::Change => "semi-dark-blue",
            Self::Bypassed => "#8e8e8e",
            Self::Good => "light-green",
            Self::Warning => "light-yellow",
            Self::Fault => "semi-dark-red",
            Self::Plain => "text",
            Self::Other(at) => OTHERS[at],
        }
    }

    /// The override that gives this colour to the series with this name.
    pub(super) fn of_series(self, name: &str) -> Value {
        json!({
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": self.id()}}],
        })
    }
}

/// The distance of two colours in CIELAB (CIE 1976). Each colour is given as red, green and blue from 0 to 255.
pub(crate) fn distance(one: [u8; 3], other: [u8; 3]) -> f64 {
    let (one, other) = (lab(one), lab(other));
    one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
}

/// Converts a colour from sRGB to CIELAB, for the white point D65.
fn lab(colour: [u8; 3]) -> [f64; 3] {
    let [r, g, b] = colour.map(|value| {
        let value = f64::from(value) / 255.0;
        if value > 0.04045 { ((value + 0.055) / 1.055).powf(2.4) } else { value / 12.92 }
    });
    let [x, y, z] = [
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    ]
    .map(|value| if value > 0.008_856 { value.cbrt() } else { 7.787 * value + 16.0 / 116.0 });
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(colour: &str) -> [u8; 3] {
        let value = u32::from_str_radix(&colour[1..], 16).expect("a colour");
        [16, 8, 0].map(|shift| u8::try_from((value >> shift) & 0xff).expect("one byte"))
    }

    #[test]
    fn distances_are_those_of_cielab() {
        // The distance of white and black is 100. Red is at (53.2, 80.1, 67.2).
        assert!((distance([255; 3], [0; 3]) - 100.0).abs() < 0.1);
        assert!((distance([255, 0, 0], [0; 3]) - 53.2_f64.hypot(80.1).hypot(67.2)).abs() < 0.2);
    }

    /// Compares with the values of these colours in both themes of Grafana.
    #[test]
    fn no_other_series_looks_like_a_decision_or_a_fault() {
        let reserved = [
            "#56a64b", "#37872d", "#ff780a", "#fa6400", "#a352cc", "#8f3bb8", "#3274d9", "#1f60c4", "#e02f44",
            "#c4162a",
        ];
        for (at, other) in OTHERS.iter().enumerate() {
            for colour in reserved.iter().chain(&OTHERS[..at]) {
                let distance = distance(hex(other), hex(colour));
                assert!(distance > APART, "{other} is {distance:.1} from {colour}");
            }
        }
    }
}
