//! Counts tests from the output of test runners.
//!
//! A runner that failed without a reported failure counts as one failure, so that a crash never counts as passed.

use std::{fmt, ops::AddAssign};

/// The numbers of tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

/// The way in which the output of a step is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// The step is one check.
    One,
    /// The step prints lines `test result:` of cargo test.
    CargoTests,
    /// The step prints lines `ok NAME` and `FAILED NAME` of weir-e2e.
    Scenarios,
    /// The step only prepares other steps. It counts only if it fails.
    Nothing,
}

impl Tally {
    pub(super) const FAILURE: Self = Self { passed: 0, failed: 1 };

    /// Counts the tests in the `output` of a step. `success` is true if the step succeeded.
    pub(super) fn of(count: Count, output: &str, success: bool) -> Self {
        let mut tally = match count {
            Count::One => Self { passed: u64::from(success), failed: u64::from(!success) },
            Count::CargoTests => cargo_tests(output),
            Count::Scenarios => scenarios(output),
            Count::Nothing => Self::default(),
        };
        if !success && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failed {
            0 => write!(f, "{} passed", self.passed),
            failed => write!(f, "{} passed, {failed} failed", self.passed),
        }
    }
}

/// Adds up the lines of all test binaries, such as `test result: ok. 9 passed; 0 failed; 0 ignored; …`.
fn cargo_tests(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
        for part in line.split(['.', ';']) {
            match part.trim().split_once(' ') {
                Some((number, "passed")) => tally.passed += number.parse::<u64>().unwrap_or(0),
                Some((number, "failed")) => tally.failed += number.parse::<u64>().unwrap_or(0),
                _ => {}
            }
        }
    }
    tally
}

fn scenarios(output: &str) -> Tally {
    let begins = |word: &str| output.lines().filter(|line| line.starts_with(word)).count() as u64;
    Tally { passed: begins("ok "), failed: begins("FAILED ") }
}

/// Names what failed in the `output` of a failed step, each with its reason.
pub(super) fn failures(count: Count, output: &str) -> Vec<String> {
    let failures: Vec<_> = match count {
        Count::CargoTests => {
            let failed = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
            output.lines().filter_map(failed).map(|name| with_reason(name, output)).collect()
        }
        Count::Scenarios => output.lines().filter_map(|line| line.strip_prefix("FAILED ")).map(str::to_owned).collect(),
        Count::One | Count::Nothing => Vec::new(),
    };
    if failures.is_empty() {
        let last = output.lines().rev().map(str::trim).find(|line| !line.is_empty());
        return vec![last.unwrap_or("no output").to_owned()];
    }
    failures
}

/// Adds the error that a test returned, or the place and the first line of the message with which it panicked.
fn with_reason(test: String, output: &str) -> String {
    let own = output.lines().skip_while(|line| *line != format!("---- {test} stdout ----")).skip(1);
    let mut lines = own.take_while(|line| !line.starts_with("---- "));
    if let Some(error) = lines.clone().find(|line| line.starts_with("Error: ")) {
        return format!("{test}: {error}");
    }
    let place = lines.find_map(|line| line.split_once(" panicked at ")).map(|(_, place)| place);
    match (place, lines.next()) {
        (Some(place), Some(message)) => format!("{test}: {place} {message}"),
        _ => test,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARGO: &str = "\
running 9 tests
test a ... ok
test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.14s
error: 1 target failed
";

    #[test]
    fn every_test_binary_of_a_run_counts() {
        assert_eq!(Tally::of(Count::CargoTests, CARGO, false), Tally { passed: 12, failed: 2 });
    }

    #[test]
    fn a_run_that_did_not_compile_is_a_failure() {
        assert_eq!(Tally::of(Count::CargoTests, "error: could not compile", false), Tally::FAILURE);
        assert_eq!(
            Tally::of(Count::Scenarios, "ok first-light 3.0 s\npanicked", false),
            Tally { passed: 1, failed: 1 }
        );
        assert_eq!(Tally::of(Count::Nothing, "", false), Tally::FAILURE);
    }

    #[test]
    fn failures_have_names_and_reasons() {
        let output = "\
test a::good ... ok
test a::bad ... FAILED
test a::ended ... FAILED
test a::wrong ... FAILED

---- a::ended stdout ----
---- a::bad stdout ----
a line of the test

thread 'a::bad' (7) panicked at src/a.rs:9:5:
no answer: Late
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- a::wrong stdout ----
Error: 3 questions failed
";
        let wanted = ["a::bad: src/a.rs:9:5: no answer: Late", "a::ended", "a::wrong: Error: 3 questions failed"];
        assert_eq!(failures(Count::CargoTests, output), wanted);
        assert_eq!(failures(Count::Scenarios, "ok a 3.0 s\nFAILED b: no (3.0 s)\n"), ["b: no (3.0 s)"]);
        assert_eq!(failures(Count::CargoTests, "error: could not compile\n\n"), ["error: could not compile"]);
        assert_eq!(failures(Count::One, ""), ["no output"]);
    }

    #[test]
    fn a_check_is_one_and_a_preparation_none() {
        assert_eq!(Tally::of(Count::One, "", true), Tally { passed: 1, failed: 0 });
        assert_eq!(Tally::of(Count::One, CARGO, false), Tally::FAILURE);
        assert_eq!(Tally::of(Count::Nothing, CARGO, true), Tally::default());
    }

    #[test]
    fn scenarios_are_counted_by_their_lines() {
        let output = "chart installed, 4.0 s\nok three-pods 12.0 s\n     a figure: ok\nFAILED retune: no (3.0 s)\nok scale 9.0 s\n";
        assert_eq!(Tally::of(Count::Scenarios, output, false), Tally { passed: 2, failed: 1 });
    }
}
