//! Reads the fields of a binary message without decoding them.
//!
//! prost allocates a value for each element of a list before anybody can count the elements: 4 bytes become 300. So the
//! elements are counted here first.

use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field},
};

/// Returns how many bytes at the start of a message are complete fields.
pub(super) fn whole_fields(message: &[u8]) -> usize {
    let mut rest = message;
    loop {
        let before = rest.len();
        // Only a scan finds the end of a group, and each piece that arrives would repeat it. Envoy sends no groups.
        let is_whole = decode_key(&mut rest).is_ok_and(|(tag, kind)| {
            kind != WireType::StartGroup && skip_field(kind, tag, &mut rest, DecodeContext::default()).is_ok()
        });
        if !is_whole {
            return message.len() - before;
        }
    }
}

/// The values of one field of a message: texts, bytes or messages.
pub(super) struct Values<'m> {
    tag: u32,
    rest: &'m [u8],
}

impl<'m> Values<'m> {
    pub(super) fn of(message: &'m [u8], tag: u32) -> Self {
        Self { tag, rest: message }
    }

    /// Reads one field, and returns its value if it has the tag.
    fn field(&mut self) -> Result<Option<&'m [u8]>, DecodeError> {
        let (tag, kind) = decode_key(&mut self.rest)?;
        let field = self.rest;
        skip_field(kind, tag, &mut self.rest, DecodeContext::default())?;
        if tag != self.tag {
            return Ok(None);
        }
        check_wire_type(WireType::LengthDelimited, kind)?;
        let mut value = &field[..field.len() - self.rest.len()];
        let _length = decode_varint(&mut value)?;
        Ok(Some(value))
    }
}

impl<'m> Iterator for Values<'m> {
    type Item = Result<&'m [u8], DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.field() {
                Ok(None) => {}
                Ok(Some(value)) => return Some(Ok(value)),
                Err(error) => {
                    self.rest = &[];
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a group could be looked for again with each piece of a message.
    #[test]
    fn a_group_is_never_a_whole_field() {
        let (text, group) = ([0x12, 1, b'a'], [0x13, 0x08, 0, 0x14]);
        assert_eq!(whole_fields(&[&text[..], &text, &[0x12, 2, b'a']].concat()), 6);
        assert_eq!(whole_fields(&[&text[..], &group, &text].concat()), 3);
        assert_eq!(whole_fields(&group), 0);
    }
}
