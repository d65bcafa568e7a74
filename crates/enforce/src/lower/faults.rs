//! Faults, and the paths that locate them.

use std::fmt;

use weir_wire::Fault;

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, path: &Path, message: impl Into<String>) {
        self.0.push(Fault { path: path.to_string(), message: message.into() });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn or<T>(self, value: T) -> Result<T, Vec<Fault>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

/// A location in a snapshot, such as `policies[0].rules[1].limits[0].requests`.
#[derive(Clone, Debug, Default)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn field(&self, name: &str) -> Self {
        let dot = if self.0.is_empty() { "" } else { "." };
        Self(format!("{}{dot}{name}", self.0))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
