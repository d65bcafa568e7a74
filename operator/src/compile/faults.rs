//! Collects the faults of a policy with their paths.

use crate::world::Fault;

#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Fault { path: path.into(), message: message.into() });
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
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self.0),
        }
    }
}
