//! The meaning of colours, in every panel of every board.
//!
//! No fixed colour is in the palette of other series, so no other series has the colour of a decision.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Allowed,
    Limited,
    Shadow,
    Waiting,
    Bypassed,
    /// As it should be.
    Good,
    /// Needs attention, or is in progress.
    Warning,
    /// Needs repair.
    Fault,
    /// Neither good nor bad.
    Plain,
    /// A time at which something was changed.
    Change,
}

/// Series with these names have these colours; for some, the name is a label's value.
pub(crate) const FIXED: [(&str, Option<&str>, Colour); 11] = [
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
    ("error", Some("{{result}}"), Colour::Fault),
];

impl Colour {
    /// Grafana's name; light and dark themes have their own shades.
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
        }
    }

    /// The override that gives this colour to series with a name.
    pub(super) fn of_series(self, name: &str) -> Value {
        json!({
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": self.id()}}],
        })
    }
}
