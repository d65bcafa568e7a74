//! Random bytes for whatever is made from bytes: a moment of them in every test run, more by `cargo xtask fuzz`.
//!
//! A script turns bytes into input and says what does not hold; a panic is a failure like others. Bytes that fail are made
//! smaller and printed as hex, for `--replay` and for the corpus of the target.
//!
//! The scripts are beside what they are about: `apply/fuzz.rs`, `crates/enforce/src/matching/fuzz.rs`, `proxy/websocket/fuzz.rs`.

use std::{
    panic::{catch_unwind, take_hook},
    time::{Duration, SystemTime},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

/// What the bytes of a test run come from that is not told for how long.
const SEED: u64 = 6455;

/// The most bytes of one script.
const LENGTH: usize = 384;

type Script = fn(&[u8]) -> Result<(), String>;

/// Runs what once failed, and then new bytes for a while: so many times if it is not told for how long.
pub(crate) fn run(target: &str, corpus: &str, times: u64, script: Script) {
    let told = |name: &str| std::env::var(name).ok();
    if let Some(hex) = told("WEIR_FUZZ_REPLAY") {
        return report(target, &decode(&hex), script);
    }
    for line in corpus.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        report(target, &decode(line), script);
    }
    let seconds = told("WEIR_FUZZ_SECONDS").map(|text| text.parse().expect("a number of seconds"));
    if let Some(seconds) = seconds {
        // Told once, at its smallest.
        drop(take_hook());
        std::panic::set_hook(Box::new(|_| {}));
        fuzz(target, script, StdRng::from_os_rng(), &running_for(Duration::from_secs(seconds)));
    } else {
        fuzz(target, script, StdRng::seed_from_u64(SEED), &|runs| runs < times);
    }
}

#[expect(clippy::disallowed_methods, reason = "how long to go on is told in seconds")]
fn running_for(time: Duration) -> impl Fn(u64) -> bool {
    let until = SystemTime::now() + time;
    move |_| SystemTime::now() < until
}

fn fuzz(target: &str, script: Script, mut random: StdRng, more: &dyn Fn(u64) -> bool) {
    let mut runs = 0;
    while more(runs) {
        let mut bytes = vec![0; random.random_range(8..LENGTH)];
        random.fill(&mut bytes[..]);
        if outcome(&bytes, script).is_err() {
            report(target, &smaller(bytes, script), script);
        }
        runs += 1;
    }
    println!("{runs} scripts of {target} held");
}

fn report(target: &str, bytes: &[u8], script: Script) {
    if let Err(wrong) = outcome(bytes, script) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{wrong}\nrun it again with: cargo xtask fuzz {target} --replay {hex}");
        panic!("{wrong}\nrun it again with: cargo xtask fuzz {target} --replay {hex}");
    }
}

fn outcome(bytes: &[u8], script: Script) -> Result<(), String> {
    catch_unwind(|| script(bytes)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("a panic: {}", message.unwrap_or_default()))
    })
}

/// Leaves out and zeroes what is not needed to fail.
fn smaller(mut bytes: Vec<u8>, script: Script) -> Vec<u8> {
    for size in [128, 32, 8, 4, 2, 1] {
        let mut at = 0;
        while at < bytes.len() {
            let end = (at + size).min(bytes.len());
            let (mut without, mut zeroed) = (bytes.clone(), bytes.clone());
            without.drain(at..end);
            zeroed[at..end].fill(0);
            if outcome(&without, script).is_err() {
                bytes = without;
            } else {
                if zeroed != bytes && outcome(&zeroed, script).is_err() {
                    bytes = zeroed;
                }
                at = end;
            }
        }
    }
    bytes
}

fn decode(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.trim().chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).expect("hexadecimal digits");
    digits.chunks(2).map(byte).collect()
}

/// Choices made by bytes; once there are none left, always the first.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(u16::from_be_bytes([self.byte(), self.byte()])) % count.max(1)
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// One in so many.
    pub(crate) fn rarely(&mut self, times: u8) -> bool {
        self.byte() % times == 1
    }
}
