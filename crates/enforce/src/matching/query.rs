//! The query of a request target: `name=value` pairs, separated by `&`.
//!
//! Names and values are compared byte by byte after decoding, as in a form: `+` and `%20` are a blank, and `%2B` is a
//! plus. Most apps read them so. A parameter without `=` has an empty value. A name or a value is copied only if it was
//! encoded.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// Returns all parameters, in order.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    })
}

/// Returns the values of the parameters of this name, in order.
pub(super) fn values<'a, 'b>(query: &'a str, name: &'b [u8]) -> impl Iterator<Item = Cow<'a, [u8]>> + use<'a, 'b> {
    pairs(query).filter(move |(known, _)| **known == *name).map(|(_, value)| value)
}

fn decoded(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        return percent_decode(text.replace('+', " ").as_bytes()).collect();
    }
    percent_decode(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_once() {
        for (query, name, expected) in [
            ("", "a", vec![]),
            ("a=1&b=2&a=3", "a", vec!["1", "3"]),
            ("a", "a", vec![""]),
            ("a=", "a", vec![""]),
            ("&&a=b=c&", "a", vec!["b=c"]),
            ("%61=%2561", "a", vec!["%61"]),
            ("a+b=c+d&a%20b=%2B&a%2Bb=+%2B+", "a b", vec!["c d", "+"]),
            ("a+b=c+d&a%20b=%2B&a%2Bb=+%2B+", "a+b", vec![" + "]),
            ("+=%", " ", vec!["%"]),
            ("a=%zz%4", "a", vec!["%zz%4"]),
            ("A=1", "a", vec![]),
        ] {
            let found: Vec<String> =
                values(query, name.as_bytes()).map(|value| String::from_utf8_lossy(&value).into_owned()).collect();
            assert_eq!(found, expected, "{query}");
        }
    }
}
