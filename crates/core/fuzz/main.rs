//! Runs scripts of random bytes (see `script.rs`) for a while, in release: `cargo xtask fuzz core --seconds 60`.
//!
//! A failing script is reduced, printed as hex and run again with `--replay HEX`. Add it to `corpus.txt`, which
//! `tests/corpus.rs` runs.

mod script;

use weir_fuzz::Target;

/// The most bytes of one script.
const LONGEST: usize = 520;

fn main() {
    Target::new("core").corpus(include_str!("corpus.txt")).longest(LONGEST).run(10_000, script::run);
}
