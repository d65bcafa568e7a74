//! Fuzzes quantities, compared with exact integers of billionths.

use weir_fuzz::{Choices, Target};

use super::{Quantity, amount};

const PIECES: &[&str] = &[
    "0", "1", "9", "12", "500", "1024", ".", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ei", "e",
    "e3", "E2", "-", "+", "e-3", "i", " ", "B", "x", "inf", "NaN", "\u{661}", "_",
];

#[test]
fn any_quantity_is_the_number_of_its_definition() {
    Target::new("quantities").run(1_000, |bytes| {
        let mut choices = Choices(bytes);
        let mut last: Option<(String, u128)> = None;
        while !choices.is_over() {
            let text = choices.text(PIECES, 5);
            let (found, parsed, expected) = (amount(&text), text.parse::<Quantity>(), billionths(&text));
            if found.is_some() != expected.is_some() || parsed.is_ok() != expected.is_some_and(|it| it > 0) {
                return Err(format!("{text:?} is {found:?} and {parsed:?}, and should be {expected:?} billionths"));
            }
            let (Ok(quantity), Some(expected)) = (parsed, expected) else { continue };
            if quantity.text() != text {
                return Err(format!("{text:?} is stored as {:?}", quantity.text()));
            }
            if let Some((other, billionths)) = &last {
                let other: Quantity =
                    other.parse().map_err(|()| format!("{other:?} is not accepted the second time"))?;
                // The two are compared only if floating point can distinguish them.
                let difference = expected.abs_diff(*billionths);
                let close = 0 < difference && difference <= expected.max(*billionths) >> 40;
                if !close && quantity.exceeds(&other) != (expected > *billionths) {
                    return Err(format!("{text:?} against {:?}: {}", other.text(), quantity.exceeds(&other)));
                }
            }
            last = Some((text, expected));
        }
        Ok(())
    });
}

/// Returns the number of billionths, rounded up as in Kubernetes. All values above the maximum give the same number.
fn billionths(text: &str) -> Option<u128> {
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.contains('.') || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let (factor, power): (u128, i32) = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            let plain = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if !(1..=2).contains(&plain.len()) || !plain.bytes().all(|it| it.is_ascii_digit()) {
                return None;
            }
            (1, digits.parse().ok()?)
        }
    };
    let digits = format!("{whole}{part}").trim_start_matches('0').to_owned();
    let power = power + 9 - i32::try_from(part.len()).ok()?;
    let mut value = if digits.is_empty() { 0 } else { digits.parse::<u128>().ok()?.saturating_mul(factor) };
    for _ in 0..power.unsigned_abs() {
        value = if power < 0 { value.div_ceil(10) } else { value.saturating_mul(10) };
    }
    Some(value)
}
