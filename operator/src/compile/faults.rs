//! Collects the faults of a policy with their paths.

use std::fmt::Display;

use weir_expressions::MAX_EXPRESSION_BYTES;

use crate::world::Fault;

/// The maximum memory in bytes that all expressions of a policy take while they are compiled. It bounds the time, which
/// the policies of all namespaces share.
const MAX_WORK: u64 = 2 * MAX_EXPRESSION_BYTES;

/// The work for a refused regular expression, in bytes. No automaton is larger.
const REFUSED: u64 = 1024 * 1024;

#[derive(Default)]
pub(super) struct Faults {
    found: Vec<Fault>,
    /// The memory of the policy's regular expressions in each pod, in bytes.
    expression_bytes: u64,
    /// The work of compiling them and those that were refused, in bytes.
    work: u64,
}

/// The cost of a compiled expression.
pub(super) struct Expression {
    /// Its memory in each pod, in bytes.
    pub(super) bytes: u64,
    /// The memory that it took while it was compiled, in bytes.
    pub(super) work: u64,
}

impl Faults {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.found.push(Fault { path: path.into(), message: message.into() });
    }

    /// Checks an expression that contains at most `count` regular expressions, and adds its memory and its work.
    /// Expressions are not compiled after the first one that does not fit.
    pub(super) fn expression<E: Display>(
        &mut self,
        path: String,
        count: usize,
        compile: impl FnOnce() -> Result<Expression, E>,
    ) {
        if self.expression_bytes > MAX_EXPRESSION_BYTES || self.work > MAX_WORK {
            return;
        }
        match compile() {
            Ok(Expression { bytes, work }) => {
                self.expression_bytes = self.expression_bytes.saturating_add(bytes);
                self.work = self.work.saturating_add(work);
            }
            Err(invalid) => {
                self.work = self.work.saturating_add(REFUSED.saturating_mul(count as u64));
                return self.add(path, invalid.to_string());
            }
        }
        if self.expression_bytes > MAX_EXPRESSION_BYTES {
            let message = format!(
                "with it, the regular expressions of this policy take more than {} MiB in each pod: use smaller \
                 repetitions, or fewer expressions",
                MAX_EXPRESSION_BYTES / 1024 / 1024
            );
            self.add(path, message);
        } else if self.work > MAX_WORK {
            let message = "with it, compiling the regular expressions of this policy takes too long: use smaller \
                           repetitions, or fewer expressions";
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
