//! Runs scripts of random bytes (see `script.rs`) for a while: `cargo xtask fuzz core --seconds 60`.
//!
//! A failing script is reduced, printed as hex and run again with `--replay HEX`. Add it to `corpus.txt`, which
//! `tests/corpus.rs` runs.

mod script;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const LENGTH: usize = 512;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    if let Some(hex) = option("--replay") {
        return report(&decode(&hex));
    }
    let number = |name, or| option(name).map_or(or, |text| text.parse().expect("a number"));
    let seed = number("--seed", RandomState::new().hash_one("weir"));
    println!("fuzzing with seed {seed}");
    fuzz(seed, Duration::from_secs(number("--seconds", 10)))
}

#[expect(clippy::disallowed_methods, reason = "the duration of the run is given in seconds")]
fn fuzz(seed: u64, time: Duration) -> ExitCode {
    let (begun, mut random, mut scripts) = (Instant::now(), Random(seed), 0_u64);
    // A panic is a failure like others: it is reported once, for the reduced script.
    std::panic::set_hook(Box::new(|_| {}));
    while begun.elapsed() < time {
        let length = 8 + usize::try_from(random.next()).unwrap_or(0) % LENGTH;
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.next().to_le_bytes()).flatten().take(length).collect();
        if outcome(&bytes).is_err() {
            return report(&smaller(bytes));
        }
        scripts += 1;
    }
    println!("{scripts} scripts held");
    ExitCode::SUCCESS
}

fn report(bytes: &[u8]) -> ExitCode {
    match outcome(bytes) {
        Ok(()) => {
            println!("it holds");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{wrong}\nrun it again with: cargo run -p weir-core --example fuzz -- --replay {hex}");
            ExitCode::FAILURE
        }
    }
}

fn outcome(bytes: &[u8]) -> Result<(), String> {
    catch_unwind(|| script::run(bytes)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        Err(message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    })
}

/// Removes and zeroes bytes that the failure does not need.
fn smaller(mut bytes: Vec<u8>) -> Vec<u8> {
    for size in [128, 32, 8, 4, 2, 1] {
        let mut at = 0;
        while at < bytes.len() {
            let end = (at + size).min(bytes.len());
            let (mut without, mut zeroed) = (bytes.clone(), bytes.clone());
            without.drain(at..end);
            zeroed[at..end].fill(0);
            if outcome(&without).is_err() {
                bytes = without;
            } else {
                if outcome(&zeroed).is_err() {
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

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
