//! Logs a problem only once, even if it occurs often. If a problem is fixed and then occurs again, it is logged again.

use std::fmt::Display;

/// The problem that was logged last.
#[derive(Debug, Default)]
pub(crate) struct LogOnce(String);

impl LogOnce {
    /// Returns the problem, if it differs from the last one.
    pub(crate) fn changed(&mut self, outcome: Result<(), impl Display>) -> Option<&str> {
        let problem = outcome.err().map(|error| error.to_string()).unwrap_or_default();
        let is_news = !problem.is_empty() && problem != self.0;
        self.0 = problem;
        is_news.then_some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_once_until_it_is_fixed() {
        let mut log_once = LogOnce::default();
        for (outcome, expected) in [
            (Ok(()), None),
            (Err("a"), Some("a")),
            (Err("a"), None),
            (Err("b"), Some("b")),
            (Ok(()), None),
            (Err("b"), Some("b")),
        ] {
            assert_eq!(log_once.changed(outcome), expected, "{outcome:?}");
        }
    }
}
