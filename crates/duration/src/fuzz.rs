//! Compares the parser with a second parser, which checks the text character by character, as GEP-2257 defines it. Seconds and
//! milliseconds have more digits than there.

use weir_fuzz::{Choices, Target};

use super::parse_millis;

const PIECES: &[&str] = &[
    "0", "1", "9", "24", "99999", "100000", "999999999", "1000000000", "00001", "h", "m", "s", "ms", "us", "ns", "d",
    "H", "M", " ", ".", "-", "+", "e", "_", "\u{e4}", "\u{661}", "\0", "1h", "30m", "500ms", "24h",
];

#[test]
fn any_duration_is_the_sum_of_its_parts_or_none() {
    Target::new("durations").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let text = choices.text(PIECES, 10);
        let expected = defined(&text);
        let found = parse_millis(&text);
        if found != expected {
            return Err(format!("{text:?} is {found:?}, and should be {expected:?} ms"));
        }
    }
    Ok(())
}

fn defined(text: &str) -> Option<u64> {
    let (mut total, mut parts) = (0, 0);
    let mut signs = text.chars().peekable();
    while signs.peek().is_some() {
        let mut digits = String::new();
        while let Some(digit) = signs.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let (unit, most) = match signs.next()? {
            'h' => (3_600_000, 5),
            'm' if signs.next_if_eq(&'s').is_some() => (1, 9),
            'm' => (60_000, 5),
            's' => (1_000, 9),
            _ => return None,
        };
        if digits.is_empty() || digits.len() > most {
            return None;
        }
        total += digits.parse::<u64>().ok()? * unit;
        parts += 1;
    }
    (1..=4).contains(&parts).then_some(total)
}
