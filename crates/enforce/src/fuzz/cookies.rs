//! Cookies in a key: pairs separated by semicolons, over all lines. The first cookie of a name is used (RFC 6265
//! section 5.4), without blanks, and without one pair of quotation marks around the value.

use http::HeaderValue;
use weir_core::Time;
use weir_fuzz::{Choices, Target};

use crate::{
    jwt::Tokens,
    key::{KeySpec, Part},
    matching::RequestView,
};

const PIECES: &[&str] = &[
    "a", "b", "ab", "session", "=", "=", "=", ";", ";", "; ", " ", "\t", "\"", ",", "1", "%3D", "\u{e4}", "a=1", "=a",
];

#[test]
fn any_cookie_is_the_one_that_the_definition_finds() {
    Target::new("cookies").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let count = choices.below(4);
        let lines: Vec<String> = (0..count).map(|_| choices.text(PIECES, 9)).collect();
        let mut request = http::Request::new(());
        for line in &lines {
            let value = HeaderValue::from_bytes(line.as_bytes()).map_err(|error| error.to_string())?;
            request.headers_mut().append(http::header::COOKIE, value);
        }
        let view = RequestView::new(&request, std::net::Ipv4Addr::LOCALHOST.into());
        for name in ["a", "b", "ab", "session"] {
            let spec = KeySpec::new(vec![Part::Cookie(name.into())]);
            let now = || Time::from_nanos(0);
            let tokens = Tokens::new(None, &now);
            let found = spec.show(&view, &tokens);
            let expected = defined(&lines, name);
            if found != [expected.clone()] {
                return Err(format!("{name} of {lines:?} is {found:?}, and should be {expected:?}"));
            }
            // The key must equal the key of an override with this value, or the key of a request without the cookie.
            let (mut written, mut named) = (Vec::new(), Vec::new());
            spec.write(&view, &tokens, &mut written);
            if let Some(value) = &expected {
                Part::Cookie(name.into()).write_named(value, &mut named).map_err(|wrong| wrong.to_string())?;
            }
            if expected.is_some() != (written == named) {
                return Err(format!("{name} of {lines:?} has the key {written:02x?}, and an override {named:02x?}"));
            }
        }
    }
    Ok(())
}

fn defined(lines: &[String], name: &str) -> Option<String> {
    // RFC 9113 section 8.2.3 requires that the cookie lines of HTTP/2 are joined with "; ".
    let joined = lines.join("; ");
    let mut pairs = joined.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(known, _)| known.trim_matches([' ', '\t']) == name)?;
    let value = value.trim_matches([' ', '\t']);
    let is_quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
    Some(if is_quoted { &value[1..value.len() - 1] } else { value }.to_owned())
}
