//! The static table (RFC 7541, Appendix A).

/// Names and values by index; the first has the index 1.
#[rustfmt::skip]
const TABLE: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

/// The entry of an index.
pub(super) fn entry(index: usize) -> Option<(&'static str, &'static str)> {
    TABLE.get(index.checked_sub(1)?).copied()
}

/// Where to find a field: its index, and whether the value is the same too.
pub(super) fn find(name: &str, value: &[u8]) -> Option<(usize, bool)> {
    // The table is in the order of the names' first bytes, and no further.
    let first = *name.as_bytes().first()?;
    let start = TABLE.partition_point(|(found, _)| found.as_bytes()[0] < first);
    let mut named = None;
    for ((found, whole), index) in TABLE[start..].iter().zip(start + 1..) {
        if found.as_bytes()[0] != first {
            break;
        }
        if *found == name {
            if !whole.is_empty() && whole.as_bytes() == value {
                return Some((index, true));
            }
            named.get_or_insert((index, false));
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_index_of_the_standard() {
        let spots = [
            (1, ":authority", ""),
            (8, ":status", "200"),
            (15, "accept-charset", ""),
            (16, "accept-encoding", "gzip, deflate"),
        ];
        let more =
            [(28, "content-length", ""), (34, "etag", ""), (41, "if-none-match", ""), (61, "www-authenticate", "")];
        for (index, name, value) in spots.into_iter().chain(more) {
            assert_eq!(entry(index), Some((name, value)));
        }
        assert_eq!((entry(0), entry(62)), (None, None));
        assert_eq!(find(":method", b"GET"), Some((2, true)));
        assert_eq!(find(":method", b"PUT"), Some((2, false)));
        assert_eq!(find(":scheme", b"https"), Some((7, true)));
        assert_eq!(find("etag", b""), Some((34, false)));
        assert_eq!(find("x", b""), None);
        assert_eq!(find("", b""), None);
    }

    #[test]
    fn every_entry_is_found_by_its_name_and_whole_if_it_has_a_value() {
        for (place, (name, value)) in TABLE.iter().enumerate() {
            let first = TABLE.iter().position(|(other, _)| other == name).unwrap();
            let whole = if value.is_empty() { (first + 1, false) } else { (place + 1, true) };
            assert_eq!(find(name, value.as_bytes()), Some(whole), "{name}: {value}");
            assert_eq!(find(name, b"?"), Some((first + 1, false)), "{name}");
        }
    }
}
