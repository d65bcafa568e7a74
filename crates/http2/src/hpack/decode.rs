//! Reads the fields of a head, from a peer that was told that it has no dynamic table.

use super::{huffman, integer, static_table, unreadable};
use crate::error::Fault;

/// Gives each field of a head to `take`, in order.
pub(crate) fn decode(mut input: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Result<(), Fault>) -> Result<(), Fault> {
    // Only for what is Huffman-coded.
    let (mut name_buffer, mut value_buffer) = (Vec::new(), Vec::new());
    let mut is_first = true;
    while let Some(&first) = input.first() {
        if first & 0x80 != 0 {
            let (name, value) = entry(integer::decode(&mut input, 7)?)?;
            take(name.as_bytes(), value.as_bytes())?;
        } else if first & 0xe0 == 0x20 {
            // An announcement of the table's size, which stands before all fields (RFC 7541, section 4.2).
            let size = integer::decode(&mut input, 5)?;
            if !is_first || size > 0 {
                return Err(unreadable("a head asks for a table that was not allowed"));
            }
            continue;
        } else {
            // With a table of no size, a field to be remembered is forgotten at once (section 4.4).
            let prefix = if first & 0x40 != 0 { 6 } else { 4 };
            let name = match integer::decode(&mut input, prefix)? {
                0 => string(&mut input, &mut name_buffer)?,
                index => entry(index)?.0.as_bytes(),
            };
            take(name, string(&mut input, &mut value_buffer)?)?;
        }
        is_first = false;
    }
    Ok(())
}

fn entry(index: usize) -> Result<(&'static str, &'static str), Fault> {
    static_table::entry(index).ok_or(unreadable("a head speaks of a field that is in no table"))
}

/// What stands in `input`, or what that stands for, in `buffer`.
fn string<'a: 'b, 'b>(input: &mut &'a [u8], buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Fault> {
    let is_huffman = input.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer::decode(input, 7)?;
    let (text, rest) = input.split_at_checked(length).ok_or(unreadable("a head ends in the middle of a field"))?;
    *input = rest;
    if !is_huffman {
        return Ok(text);
    }
    buffer.clear();
    huffman::decode(text, buffer)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::super::huffman::tests::encode as huffman;
    use super::*;
    use crate::error::Reason;

    fn fields(input: &[u8]) -> Result<Vec<(String, String)>, Reason> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        decode(input, |name, value| {
            fields.push((text(name), text(value)));
            Ok(())
        })
        .map_err(|fault| fault.reason)?;
        Ok(fields)
    }

    #[test]
    fn every_representation_is_read() {
        let coded = [&[0x00, 0x88][..], &huffman(b"custom-key"), &[0x89], &huffman(b"custom-value")].concat();
        for (input, expected) in [
            (&b""[..], vec![]),
            (b"\x88", vec![(":status", "200")]),
            (b"\x20\x88", vec![(":status", "200")]),
            (b"\x20\x20\x8b", vec![(":status", "304")]),
            (b"\x48\x03301", vec![(":status", "301")]),
            (b"\x08\x03301", vec![(":status", "301")]),
            (b"\x18\x03301", vec![(":status", "301")]),
            (b"\x40\x01a\x01b", vec![("a", "b")]),
            (b"\x00\x01a\x00\x10\x01c\x01d", vec![("a", ""), ("c", "d")]),
            (&coded, vec![("custom-key", "custom-value")]),
        ] {
            let expected = expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            assert_eq!(fields(input), Ok(expected), "{input:x?}");
        }
    }

    #[test]
    fn what_needs_a_table_or_is_cut_off_is_refused() {
        for input in [
            &b"\x80"[..],                    // Index 0.
            b"\xbe",                         // Index 62, the first of the dynamic table.
            b"\x7e\x01a",                    // The same as a name.
            b"\x21",                         // A table of one byte.
            b"\x3f\xe1\x1f",                 // A table of 4096 bytes.
            b"\x88\x20",                     // A size after a field.
            b"\x00\x01a\x02b",               // A value that is cut off.
            b"\x00\x01a",                    // No value.
            b"\x00\x05a",                    // A name that is cut off.
            b"\x00\x7f\x80\x80\x80\x80\x01", // A length beyond all bounds.
            b"\x00\x01a\x81\x00",            // The wrong padding.
        ] {
            assert_eq!(fields(input), Err(Reason::COMPRESSION_ERROR), "{input:x?}");
        }
    }
}
