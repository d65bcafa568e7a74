//! Random input for the parsers of untrusted bytes: the harness of all targets of `cargo xtask fuzz`.
//!
//! A target is a test with a script. The script makes input from bytes, passes the input to a parser and compares the
//! outcome with an oracle. `cargo test` runs each target briefly with a fixed seed. `cargo xtask fuzz` runs one target
//! for a given time. A panic is a failure, too. The harness reduces the bytes of a failure and prints them as hex, for
//! `--replay` and for the corpus of the target.
//!
//! Only tests are allowed to use this crate.

mod choices;
mod clock;
#[cfg(feature = "json")]
pub mod json;
mod mutate;
mod random;
mod smaller;

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    time::{Duration, SystemTime},
};

use self::smaller::smaller;
pub use self::{choices::Choices, mutate::mutated, random::Random};

/// The environment variable for the length of a run, in seconds.
const SECONDS: &str = "WEIR_FUZZ_SECONDS";

/// The environment variable for the only input to run, in the form that a failure prints.
const REPLAY: &str = "WEIR_FUZZ_REPLAY";

/// The seed of a run without a length in seconds. This seed is the same in every test run.
const SEED: u64 = 6455;

/// The largest number of random bytes in one input.
const LONGEST: usize = 384;

/// The end of a run.
#[derive(Clone, Copy, Debug)]
enum Until {
    Times(u64),
    Moment(SystemTime),
}

/// The settings from the environment. Targets whose input is a seed, such as `http`, use this directly.
#[derive(Clone, Debug)]
pub struct Request {
    /// The only input to run.
    pub replay: Option<String>,
    until: Option<SystemTime>,
}

impl Request {
    /// Reads `WEIR_FUZZ_SECONDS` and `WEIR_FUZZ_REPLAY`.
    ///
    /// # Panics
    ///
    /// If the seconds are not a number.
    #[must_use]
    pub fn read() -> Self {
        let told = |name: &str| std::env::var(name).ok();
        let seconds = told(SECONDS).map(|text| text.parse().expect("WEIR_FUZZ_SECONDS is a number of seconds"));
        let until = seconds.map(|seconds| clock::now() + Duration::from_secs(seconds));
        Self { replay: told(REPLAY), until }
    }

    /// Returns true if the run has a length in seconds.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.until.is_some()
    }

    /// Returns true if the time has passed. Never true for a run without a length in seconds.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| clock::now() >= until)
    }

    /// Returns the seed: random for a run with a length in seconds, otherwise `fixed`.
    #[must_use]
    pub fn seed(&self, fixed: u64) -> u64 {
        if self.is_timed() { RandomState::new().hash_one("weir") } else { fixed }
    }
}

/// One target.
#[derive(Clone, Copy, Debug)]
#[must_use = "a target runs only with `run`"]
pub struct Target<'a> {
    name: &'a str,
    corpus: &'a str,
    seeds: &'a [&'a [u8]],
    longest: usize,
}

impl<'a> Target<'a> {
    /// Returns a target. `name` is the target's name in `cargo xtask fuzz`.
    pub fn new(name: &'a str) -> Self {
        Self { name, corpus: "", seeds: &[], longest: LONGEST }
    }

    /// Sets inputs that failed before, as lines of hex. They run first. Lines that start with `#` are comments.
    pub fn corpus(self, corpus: &'a str) -> Self {
        Self { corpus, ..self }
    }

    /// Sets valid inputs, which run before new inputs. Most new inputs are variations of them, and the others are
    /// random bytes.
    pub fn seeds(self, seeds: &'a [&'a [u8]]) -> Self {
        Self { seeds, ..self }
    }

    /// Sets the largest number of random bytes in one input.
    pub fn longest(self, longest: usize) -> Self {
        Self { longest, ..self }
    }

    /// Runs the corpus, the seeds and then `times` new inputs. If the environment sets a number of seconds, the run
    /// takes this time instead.
    ///
    /// # Panics
    ///
    /// If the script fails. The message contains the reduced input.
    pub fn run(self, times: u64, script: impl Fn(&[u8]) -> Result<(), String>) {
        let request = Request::read();
        if let Some(hex) = &request.replay {
            return self.report(&decode(hex), &script);
        }
        for line in self.corpus.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            self.report(&decode(line), &script);
        }
        for seed in self.seeds {
            self.report(seed, &script);
        }
        let random = Random::new(request.seed(SEED));
        let until = request.until.map_or(Until::Times(times), Until::Moment);
        if request.is_timed() {
            // A panic is printed once, for the smallest input.
            drop(take_hook());
            set_hook(Box::new(|_| {}));
        }
        let runs = self.new_inputs(random, until, &script);
        println!("{runs} inputs of {} passed", self.name);
    }

    fn new_inputs(self, mut random: Random, until: Until, script: &dyn Fn(&[u8]) -> Result<(), String>) -> u64 {
        let mut runs = 0;
        while until.is_not_over(runs) {
            let input = self.input(&mut random);
            if outcome(&input, script).is_err() {
                self.report(&smaller(input, |bytes| outcome(bytes, script).is_err()), script);
            }
            runs += 1;
        }
        runs
    }

    fn input(self, random: &mut Random) -> Vec<u8> {
        if self.seeds.is_empty() || random.below(8) == 0 {
            let length = 8 + random.below(self.longest.saturating_sub(8).max(1));
            return random.bytes(length);
        }
        let seed = self.seeds[random.below(self.seeds.len())];
        let other = self.seeds[random.below(self.seeds.len())];
        mutated(seed, other, random)
    }

    fn report(self, bytes: &[u8], script: &dyn Fn(&[u8]) -> Result<(), String>) {
        if let Err(wrong) = outcome(bytes, script) {
            let told = format!("{wrong}\nrun it again with: cargo xtask fuzz {} --replay {}", self.name, encode(bytes));
            println!("{told}");
            panic!("{told}");
        }
    }
}

impl Until {
    fn is_not_over(self, runs: u64) -> bool {
        match self {
            Self::Times(times) => runs < times,
            Self::Moment(moment) => clock::now() < moment,
        }
    }
}

fn outcome(bytes: &[u8], script: &dyn Fn(&[u8]) -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| script(bytes))).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("a panic: {}", message.unwrap_or_default()))
    })
}

/// Returns the hex form of bytes, for the corpus and for `--replay`.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Returns the bytes of a line of hex.
///
/// # Panics
///
/// If the text is not hex.
#[must_use]
pub fn decode(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.trim().chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).expect("hexadecimal digits");
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, panic::catch_unwind};

    use super::*;

    fn told(run: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = catch_unwind(run).expect_err("the run fails");
        panic.downcast_ref::<String>().cloned().expect("a message")
    }

    #[test]
    fn a_failure_is_told_with_its_smallest_input() {
        let wrong = |bytes: &[u8]| if bytes.contains(&0x2a) { Err("a star".to_owned()) } else { Ok(()) };
        let message = told(move || Target::new("stars").run(1_000, wrong));
        assert_eq!(message, "a star\nrun it again with: cargo xtask fuzz stars --replay 2a");
    }

    #[test]
    fn a_panic_is_a_failure() {
        let wrong = |bytes: &[u8]| {
            assert!(bytes.len() < 20, "{} bytes", bytes.len().min(20));
            Ok(())
        };
        let message = told(move || Target::new("long").run(1_000, wrong));
        let zeros = "00".repeat(20);
        assert_eq!(message, format!("a panic: 20 bytes\nrun it again with: cargo xtask fuzz long --replay {zeros}"));
    }

    #[test]
    fn the_corpus_and_the_seeds_run_first_and_a_test_run_repeats() {
        let inputs = || {
            let inputs = RefCell::new(Vec::new());
            Target::new("any").corpus("# once\n0102\n\n").seeds(&[b"seed"]).run(20, |bytes| {
                inputs.borrow_mut().push(bytes.to_vec());
                Ok(())
            });
            inputs.into_inner()
        };
        let first = inputs();
        assert_eq!((first.len(), &first[0][..], &first[1][..]), (22, &[1, 2][..], &b"seed"[..]));
        assert_eq!(first, inputs());
        let near =
            first[2..].iter().filter(|input| input.windows(2).any(|pair| b"seed".windows(2).any(|it| it == pair)));
        assert!(near.count() >= 8, "most are near the seed: {first:02x?}");
    }

    #[test]
    fn hex_is_read_as_it_is_written() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&bytes)), bytes);
    }
}
