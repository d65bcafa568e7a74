//! Faults, and the paths that locate them.

use std::fmt;

use weir_expressions::MAX_EXPRESSION_BYTES;
use weir_wire::Fault;

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Faults {
    found: Vec<Fault>,
    /// The memory of all regular expressions so far, in bytes.
    expression_bytes: u64,
}

impl Faults {
    pub(super) fn add(&mut self, path: &Path, message: impl Into<String>) {
        self.found.push(Fault { path: path.to_string(), message: message.into() });
    }

    /// Adds the memory that an expression takes. Returns false if all expressions take too much memory, which is a
    /// fault of the first expression that does not fit.
    pub(super) fn add_expression(&mut self, path: &Path, bytes: u64) -> bool {
        self.expression_bytes = self.expression_bytes.saturating_add(bytes);
        if self.has_too_large_expressions() {
            let message = format!(
                "with it, the regular expressions of all policies take more than {} MiB: use smaller repetitions and \
                 fewer expressions, or let fewer policies target this pod",
                MAX_EXPRESSION_BYTES / 1024 / 1024
            );
            self.add(path, message);
        }
        !self.has_too_large_expressions()
    }

    /// Whether the expressions so far take too much memory. Then no other expression may be compiled.
    pub(super) fn has_too_large_expressions(&self) -> bool {
        self.expression_bytes > MAX_EXPRESSION_BYTES
    }

    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    pub(super) fn or<T>(self, value: T) -> Result<T, Vec<Fault>> {
        if self.found.is_empty() { Ok(value) } else { Err(self.found) }
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
