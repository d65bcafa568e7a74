//! Collects the faults of a policy with their paths.

use std::fmt::Display;

use weir_expressions::MAX_EXPRESSION_BYTES;

use crate::world::Fault;

#[derive(Default)]
pub(super) struct Faults {
    found: Vec<Fault>,
    /// The memory of the policy's regular expressions in each pod, in bytes.
    expression_bytes: u64,
}

impl Faults {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.found.push(Fault { path: path.into(), message: message.into() });
    }

    /// Checks an expression and adds its memory. Expressions are not compiled after the first one that does not fit.
    pub(super) fn expression<E: Display>(&mut self, path: String, bytes: impl FnOnce() -> Result<u64, E>) {
        if self.expression_bytes > MAX_EXPRESSION_BYTES {
            return;
        }
        match bytes() {
            Ok(bytes) => self.expression_bytes = self.expression_bytes.saturating_add(bytes),
            Err(invalid) => return self.add(path, invalid.to_string()),
        }
        if self.expression_bytes > MAX_EXPRESSION_BYTES {
            let message = format!(
                "with it, the regular expressions of this policy take more than {} MiB in each pod: use smaller \
                 repetitions, or fewer expressions",
                MAX_EXPRESSION_BYTES / 1024 / 1024
            );
            self.add(path, message);
        }
    }

    pub(super) fn expression_bytes(&self) -> u64 {
        self.expression_bytes
    }

    /// Converts a number that must fit the type and be at least `least`. Zero is refused where it would have no
    /// meaning.
    pub(super) fn number<T>(&mut self, path: String, value: i64, least: i64) -> T
    where
        T: TryFrom<i64> + Default,
    {
        match T::try_from(value) {
            Ok(number) if value >= least => number,
            _ => {
                self.add(path, format!("{value} is out of range: must be at least {least}"));
                T::default()
            }
        }
    }

    pub(super) fn or<T>(self, value: Option<T>) -> Result<T, Vec<Fault>> {
        match value {
            Some(value) if self.found.is_empty() => Ok(value),
            _ => Err(self.found),
        }
    }
}
