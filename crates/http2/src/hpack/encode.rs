//! Writes fields: those of the static table by their index, all others in full and for no table.

use super::{integer, static_table};

/// Appends a field.
pub(crate) fn encode(name: &str, value: &[u8], out: &mut Vec<u8>) {
    let index = match static_table::find(name, value) {
        Some((index, true)) => return integer::encode(index, 7, 0x80, out),
        Some((index, false)) => index,
        None => 0,
    };
    integer::encode(index, 4, 0, out);
    if index == 0 {
        string(name.as_bytes(), out);
    }
    string(value, out);
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    integer::encode(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_as_short_as_they_can_be_without_a_table() {
        for (name, value, expected) in [
            (":method", "GET", &b"\x82"[..]),
            (":method", "PUT", b"\x02\x03PUT"),
            (":path", "/v1", b"\x04\x03/v1"),
            ("if-none-match", "a", b"\x0f\x1a\x01a"),
            ("x", "yz", b"\x00\x01x\x02yz"),
            ("etag", "", b"\x0f\x13\x00"),
        ] {
            let mut out = Vec::new();
            encode(name, value.as_bytes(), &mut out);
            assert_eq!(out, expected, "{name}: {value}");
        }
    }
}
