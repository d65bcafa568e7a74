//! The texts of statuses, Events and logs: bounded, and with the causes of errors.

use std::{error::Error, iter};

/// Shortens a text to `most` bytes. Bounds of the schema are in characters, so this bound is at least as strict.
pub(crate) fn shorten(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub('…'.len_utf8())));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// Returns the text of an error with its causes: libraries put the important part ("connection refused") into the last
/// one. A cause that the text already contains is not repeated.
pub(crate) fn chain(error: &dyn Error) -> String {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_shortened_between_characters() {
        for (text, most, expected) in
            [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc…"), ("abéfgh", 6, "ab…"), ("", 6, "")]
        {
            assert_eq!(shorten(text.to_owned(), most), expected, "{text}");
        }
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Cause(&'static str, #[source] Option<Box<Cause>>);

        let error =
            Cause("no answer", Some(Box::new(Cause("answer", Some(Box::new(Cause("connection refused", None)))))));
        assert_eq!(chain(&error), "no answer: connection refused");
    }
}
