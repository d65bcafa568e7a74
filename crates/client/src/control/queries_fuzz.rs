//! Compares the query parser of the control API with a simple parser that follows the definition of
//! `application/x-www-form-urlencoded` in the URL standard, byte by byte. The requests about keys have bytes as values,
//! and refuse wrong escapes.

use axum::http::Uri;
use weir_fuzz::{Choices, Target};

use super::{Query, Wait, bans};

const PIECES: &[&str] = &[
    "waitMillis", "policy", "rule", "key", "=", "=", "=", "&", "&", "1000", "0", "1", "18446744073709551615",
    "18446744073709551616", "-1", "+", "%2B", "%31", "%3d", "%26", "%", "%zz", "%77aitMillis", "1e3", "0x10", ".5",
    "\u{e4}", "%C3%A4", "%ff", ";", "?", "true", "null", "[]", " ",
];

#[test]
fn any_query_of_the_control_api_has_the_values_of_its_definition_or_is_refused() {
    Target::new("controls").run(1_000, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            let name = *choices.one(&["waitMillis", "policy", "rule", "key"]);
            let usual = format!("{name}={}", choices.text(PIECES, 3));
            let more = if choices.rarely(3) { format!("&{}", choices.text(PIECES, 5)) } else { String::new() };
            let usual = usual + &more;
            let text = if choices.rarely(3) { choices.text(PIECES, 9) } else { usual };
            query(&text)?;
        }
        Ok(())
    });
}

fn query(asked: &str) -> Result<(), String> {
    let Ok(uri) = format!("/v1/x?{asked}").parse::<Uri>() else { return Ok(()) };
    let (pairs, is_escaped) = pairs(uri.query().unwrap_or_default());
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let value = |wanted: &str| -> Result<Option<u64>, ()> {
        let mut values = pairs.iter().filter(|(name, _)| name == wanted.as_bytes());
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some((_, value)), None) => number(&text(value)).map(Some).ok_or(()),
            (Some(_), Some(_)) => Err(()),
        }
    };
    let is_known = pairs.iter().all(|(name, _)| name == b"waitMillis");
    let expected = value("waitMillis").map(Option::unwrap_or_default).ok().filter(|_| is_known);
    let found = Query::<Wait>::try_from_uri(&uri).ok().map(|Query(wait)| wait.wait_millis);
    if found != expected {
        return Err(format!("leave?{asked} waits {found:?}, expected {expected:?}"));
    }
    let named = |wanted: &[u8]| -> Vec<Vec<u8>> {
        pairs.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.clone()).collect()
    };
    let (policies, rules) = (named(b"policy"), named(b"rule"));
    let is_known = pairs.iter().all(|(name, _)| [&b"policy"[..], b"rule", b"key"].contains(&&name[..]));
    let is_text = policies.iter().chain(&rules).all(|name| str::from_utf8(name).is_ok());
    let is_valid = is_escaped && is_known && is_text && policies.len() <= 1 && rules.len() <= 1;
    let expected = is_valid.then(|| (policies.first().map(text), rules.first().map(text), named(b"key")));
    let found = bans::selection(uri.query().unwrap_or_default()).ok().map(|it| (it.policy, it.rule, it.key));
    if found != expected {
        return Err(format!("bans?{asked} selects {found:?}, expected {expected:?}"));
    }
    Ok(())
}

/// Parses a 64-bit number: digits after an optional plus sign.
fn number(value: &str) -> Option<u64> {
    let digits = value.strip_prefix('+').unwrap_or(value);
    let add = |number: u128, digit: u8| digit.is_ascii_digit().then(|| number * 10 + u128::from(digit - b'0'));
    let number = digits.bytes().try_fold(0, |number, digit| add(number, digit).filter(|it| *it < 1 << 64))?;
    u64::try_from(number).ok().filter(|_| !digits.is_empty())
}

/// A name and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// Returns all names and values, and whether all escapes are right. A wrong escape stands for itself.
fn pairs(query: &str) -> (Vec<Pair>, bool) {
    let parts = query.split('&').filter(|part| !part.is_empty());
    let mut is_escaped = true;
    let mut decoded = |text: &str| {
        let (bytes, is_right) = decoded(text);
        is_escaped &= is_right;
        bytes
    };
    let pairs = parts
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect();
    (pairs, is_escaped)
}

fn decoded(text: &str) -> (Vec<u8>, bool) {
    let (mut rest, mut bytes, mut is_right) = (text.as_bytes(), Vec::new(), true);
    while let Some((&first, behind)) = rest.split_first() {
        let hex = |at: usize| behind.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two digits"));
                rest = &behind[2..];
                continue;
            }
            (b'+', ..) => bytes.push(b' '),
            (b'%', ..) => {
                is_right = false;
                bytes.push(first);
            }
            _ => bytes.push(first),
        }
        rest = behind;
    }
    (bytes, is_right)
}
