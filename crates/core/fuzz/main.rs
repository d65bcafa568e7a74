//! Runs scripts of random bytes (see `script.rs`) for some time, in release mode: `cargo xtask fuzz core --seconds 60`.
//!
//! A failing script is reduced and printed as hex. `--replay HEX` runs it again. Add the script to `corpus.txt`, which
//! `tests/corpus.rs` runs.

mod script;

use weir_fuzz::Target;

/// The largest number of bytes in a script.
const LONGEST: usize = 520;

fn main() {
    Target::new("core").corpus(include_str!("corpus.txt")).longest(LONGEST).run(10_000, script::run);
}
