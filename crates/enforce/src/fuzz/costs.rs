//! Costs in a header of a request or a response: a whole number, at most the largest cost. Any other text costs 1. Only a
//! response can cost 0.

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_fuzz::{Choices, Target};

use crate::cost::HeaderCost;

const PIECES: &[&str] = &[
    "0", "1", "9", "42", "18446744073709551615", "18446744073709551616", "00", "-", "+", ".", "e3", " ", "\t", ",",
    "x", "_", "0x1f", "\u{664}", "\u{e4}", "\u{a0}", "99999999999999999999999999",
];

#[test]
fn any_told_cost_is_the_number_of_the_definition() {
    Target::new("costs").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let most = *choices.one(&[1, 2, 100, 1 << 32, u64::MAX]);
        let count = choices.below(3);
        let values: Vec<String> = (0..count).map(|_| choices.text(PIECES, 4)).collect();
        let header = HeaderCost { name: HeaderName::from_static("x-cost"), most };
        let mut headers = HeaderMap::new();
        for value in &values {
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|error| error.to_string())?;
            headers.append("x-cost", value);
        }
        let value = headers.get("x-cost").map(HeaderValue::as_bytes);
        let found = (header.of_request(value), header.of_response(value));
        let of_response = values.first().map_or(1, |value| defined(value, most));
        let expected = (if of_response == 0 { 1 } else { of_response }, of_response);
        if found != expected {
            return Err(format!("{values:?} with at most {most} is {found:?}, and should be {expected:?}"));
        }
    }
    Ok(())
}

/// Parses any number of digits, one by one.
fn defined(value: &str, most: u64) -> u64 {
    let digits = value.trim_matches([' ', '\t']);
    let mut number: u128 = 0;
    for byte in digits.bytes() {
        if !byte.is_ascii_digit() {
            return 1;
        }
        number = (number * 10 + u128::from(byte - b'0')).min(u128::from(u64::MAX));
    }
    if digits.is_empty() { 1 } else { u64::try_from(number.min(u128::from(most))).unwrap_or(most) }
}
