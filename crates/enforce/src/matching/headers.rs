//! The header fields of a request, as rules read them.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header fields of a request: in a map, or as lines in their original order.
#[derive(Clone, Copy, Debug)]
pub enum Headers<'a> {
    /// A map of the `http` crate.
    Map(&'a HeaderMap),
    /// The original lines.
    Lines(&'a [FieldLine<'a>]),
}

/// A header field in its original form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'a> {
    /// The name: an HTTP token, in upper or lower case.
    pub name: &'a [u8],
    /// The value, without the whitespace around it.
    pub value: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Returns the value of the first field of this name.
    #[inline]
    pub(crate) fn get(self, name: &HeaderName) -> Option<&'a [u8]> {
        match self {
            Self::Map(map) => map.get(name).map(HeaderValue::as_bytes),
            Self::Lines(lines) => {
                let name = name.as_str().as_bytes();
                lines.iter().find(|line| line.is(name)).map(|line| line.value)
            }
        }
    }

    /// Returns the values of all fields of this name, in order.
    pub(crate) fn all<'b>(self, name: &'b HeaderName) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'b> {
        let (map, lines) = match self {
            Self::Map(map) => (Some(map.get_all(name)), [].as_slice()),
            Self::Lines(lines) => (None, lines),
        };
        let name = name.as_str().as_bytes();
        let mapped = map.into_iter().flatten().map(HeaderValue::as_bytes);
        mapped.chain(lines.iter().filter(move |line| line.is(name)).map(|line| line.value))
    }

    /// Returns all fields. Names can be in upper or lower case.
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let (map, lines) = match self {
            Self::Map(map) => (Some(map), [].as_slice()),
            Self::Lines(lines) => (None, lines),
        };
        let mapped = map.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_bytes()));
        mapped.chain(lines.iter().map(|line| (str::from_utf8(line.name).expect("a name is a token"), line.value)))
    }
}

impl FieldLine<'_> {
    /// Whether the field has this name, which must be in lower case.
    #[inline]
    fn is(&self, name: &[u8]) -> bool {
        // Most names arrive in lower case. Then the first comparison is enough.
        let same = |(byte, known): (&u8, &u8)| byte == known || byte.to_ascii_lowercase() == *known;
        self.name.len() == name.len() && self.name.iter().zip(name).all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_and_lines_say_the_same() {
        let lines: [(&str, &[u8]); 4] = [("Host", b"a"), ("X-Tier", b"free"), ("accept", b"*/*"), ("x-tier", b"\xff")];
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        let tier = HeaderName::from_static("x-tier");
        let came = lines.map(|(name, value)| FieldLine { name: name.as_bytes(), value });
        for headers in [Headers::Map(&map), Headers::Lines(&came)] {
            assert_eq!(headers.get(&tier), Some(&b"free"[..]));
            assert_eq!(headers.get(&HeaderName::from_static("x")), None);
            assert_eq!(headers.all(&tier).collect::<Vec<_>>(), [&b"free"[..], b"\xff"]);
            assert_eq!(headers.all(&tier).next_back(), Some(&b"\xff"[..]));
            let mut all: Vec<_> = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
            all.sort();
            let mut expected: Vec<_> = lines.iter().map(|(name, value)| (name.to_ascii_lowercase(), *value)).collect();
            expected.sort();
            assert_eq!(all, expected);
        }
    }
}
