//! Runs every script that found a fault (`fuzz/corpus.txt`), and a small number of new scripts.
#![cfg(not(loom))]

#[path = "../fuzz/script.rs"]
mod script;

use proptest::prelude::*;

#[test]
fn what_once_failed_holds() {
    let mut scripts = 0;
    for line in include_str!("../fuzz/corpus.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let digits: Vec<char> = line.chars().collect();
        let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).expect("hexadecimal digits");
        let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        script::run(&bytes).unwrap_or_else(|wrong| panic!("{line}: {wrong}"));
        scripts += 1;
    }
    assert!(scripts > 0, "an empty corpus shows nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_hold(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        prop_assert_eq!(script::run(&bytes), Ok(()));
    }
}
