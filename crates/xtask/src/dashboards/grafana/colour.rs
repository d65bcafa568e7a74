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
pub(crate) const FIXED: [(&str, Option<&str>, Colour); 16] = [
    ("allowed", None, Colour::Allowed),
    ("limited", None, Colour::Limited),
    ("shadow", None, Colour::Shadow),
    ("waiting", None, Colour::Waiting),
    ("bypassed", None, Colour::Bypassed),
    ("enforcing", Some("{{state}}"), Colour::Good),
    ("pending", Some("{{state}}"), Colour::Warning),
    ("unread", Some("{{reason}}"), Colour::Warning),
    ("drifted", Some("{{state}}"), Colour::Fault),
    ("applied", Some("{{result}}"), Colour::Good),
    ("ok", Some("{{result}}"), Colour::Good),
    ("loaded", Some("{{result}}"), Colour::Good),
    ("issued", Some("{{result}}"), Colour::Good),
    ("injected", Some("{{outcome}}"), Colour::Good),
    ("error", Some("{{result}}"), Colour::Fault),
    ("failed", Some("{{result}}"), Colour::Fault),
];

/// Slate, gold, grey-green, lilac, azure, beige and moss.
const OTHERS: [&str; 7] = ["#5a6189", "#dabc64", "#576757", "#c8b7e2", "#5e84ed", "#d3b9ad", "#466e1d"];

/// The first shade for series with unknown names. Of all hues that differ enough from [`RESERVED`], seven shades of
/// this hue differ most from each other.
const SHADES: &str = "#b39500";

/// Legends with known series. The names of the series are in the order of their colours.
const KNOWN: [(&str, &[&str]); 17] = [
    ("P50", &["P50", "P99"]),
    ("{{protocol}}", &["http1", "http2", "tunnel", "websocket"]),
    (
        "{{reason}}",
        &["closed", "connect_timeout", "descriptors", "handshake", "protocol", "refused", "response_timeout"],
    ),
    // Results of a push, and of a snapshot.
    ("{{result}}", &["garbage", "refused", "timeout", "unreachable", "untrusted"]),
    ("{{result}}", &["invalid", "malformed", "stale", "too_large", "unchanged"]),
    // Results of a request for a certificate. The place of a name that is in two lists is the same in both.
    ("{{result}}", &["busy", "malformed", "no_pod", "unauthenticated", "unavailable"]),
    ("requests in the overflow", &["requests in the overflow", "keys given up"]),
    ("busiest / mean", &["busiest / mean"]),
    ("Fleet", &["Fleet", "Shared"]),
    ("leased", &["leased", "returned", "lost"]),
    // The first two are outcomes of a question, the others those of a review.
    ("{{outcome}}", &["counted", "refused", "untouched", "declined", "unfit", "wrong"]),
    ("units sent", &["units sent"]),
    ("{{kind}}", &["abandon", "allow_all", "deny_all", "tokens"]),
    ("absent pods", &["absent pods", "leaders that collect"]),
    ("contested", &["contested"]),
    ("connections closed", &["connections closed", "conditions not run"]),
    ("bans", &["bans", "refusals not counted"]),
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
    /// The colour, or Grafana's name of a colour that the light and the dark theme render differently.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Allowed => "#82c985",
            Self::Limited => "#fb9a23",
            Self::Shadow => "#7946e0",
            Self::Waiting => "#4c9dd1",
            Self::Change => "semi-dark-blue",
            Self::Bypassed => "#6d6d6d",
            Self::Good => "light-green",
            Self::Warning => "light-yellow",
            Self::Fault => "#ba2e19",
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
    let [r, g, b] = colour.map(linear);
    let [x, y, z] = [
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    ]
    .map(|value| if value > 0.008_856 { value.cbrt() } else { 7.787 * value + 16.0 / 116.0 });
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// Converts a value of sRGB to a share of the light.
fn linear(value: u8) -> f64 {
    let value = f64::from(value) / 255.0;
    if value > 0.04045 { ((value + 0.055) / 1.055).powf(2.4) } else { value / 12.92 }
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

    /// What people see of linear red, green and blue: with normal vision, without red cones, and without green cones
    /// (Machado, Oliveira and Fernandes, 2009).
    const VISIONS: [(&str, [[f64; 3]; 3]); 3] = [
        ("normal", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "deuteranopia",
            [[0.367_322, 0.860_646, -0.227_968], [0.280_085, 0.672_501, 0.047_413], [-0.011_820, 0.042_940, 0.968_881]],
        ),
    ];

    /// The colour that a person with this vision sees.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 255")]
    fn seen(colour: &str, vision: &[[f64; 3]; 3]) -> [u8; 3] {
        let light = hex(colour).map(linear);
        vision.map(|row| {
            let value: f64 = row.iter().zip(light).map(|(share, light)| share * light).sum();
            let value = value.clamp(0.0, 1.0);
            let value = if value > 0.003_130_8 { 1.055 * value.powf(1.0 / 2.4) - 0.055 } else { 12.92 * value };
            (value * 255.0).round() as u8
        })
    }

    /// Checks that readers can distinguish all these colours.
    fn assert_apart(colours: &[&str], visions: &[(&str, [[f64; 3]; 3])]) {
        for (at, one) in colours.iter().enumerate() {
            for other in &colours[..at] {
                for (name, vision) in visions {
                    let distance = distance(seen(one, vision), seen(other, vision));
                    assert!(distance > APART, "{one} is {distance:.1} from {other} with {name} vision");
                }
            }
        }
    }

    #[test]
    fn readers_of_each_vision_tell_decisions_apart_and_other_series_too() {
        let decisions = RESERVED.into_iter().chain([Colour::Bypassed]).map(Colour::id);
        assert_apart(&decisions.collect::<Vec<_>>(), &VISIONS);
        assert_apart(&OTHERS, &VISIONS);
    }

    #[test]
    fn no_other_series_looks_like_a_decision_or_a_fault() {
        for other in OTHERS {
            for reserved in RESERVED {
                assert_apart(&[other, reserved.id()], &VISIONS[..1]);
            }
        }
    }

    #[test]
    fn every_known_series_has_a_colour() {
        assert!(KNOWN.iter().all(|(_, names)| names.len() <= OTHERS.len()));
    }
}
