//! Finds signs that the parser misreads.

/// Whether a sign follows the same sign: the parser reads `!!a` as `!a`, and `--a` as `-a`. Signs in texts and comments
/// do not count. The answer can be wrong only for an expression that is refused anyway.
pub(crate) fn has_two_signs(text: &str) -> bool {
    let mut rest = text.as_bytes();
    let (mut before, mut is_raw) = (b' ', false);
    while let [byte, after @ ..] = rest {
        rest = match byte {
            b'/' if after.starts_with(b"/") => {
                rest = after.iter().position(|byte| *byte == b'\n').map_or(&[], |end| &after[end..]);
                continue;
            }
            b'\'' | b'"' => after_quoted(rest, is_raw),
            _ => after,
        };
        is_raw = matches!(byte, b'r' | b'R');
        if !byte.is_ascii_whitespace() {
            if *byte == before && matches!(byte, b'!' | b'-') {
                return true;
            }
            before = *byte;
        }
    }
    false
}

/// Returns what follows the quoted text at the beginning. In a raw text, a backslash is an ordinary character.
fn after_quoted(quoted: &[u8], is_raw: bool) -> &[u8] {
    let is_long = quoted.starts_with(&[quoted[0]; 3]);
    let (quote, mut rest) = quoted.split_at(if is_long { 3 } else { 1 });
    while let [byte, after @ ..] = rest {
        if let Some(after) = rest.strip_prefix(quote) {
            return after;
        }
        rest = if *byte == b'\\' && !is_raw { after.get(1..).unwrap_or_default() } else { after };
    }
    rest
}

#[cfg(test)]
mod tests {
    use crate::{InvalidPredicate, predicate};

    const TEXTS: [&str; 16] = [
        "''", "'--'", "'!!'", "'- -'", r#""it's --""#, r"'\'--'", r"'\\'", r"r'\'", r#"R"\""#, "'''a\n--'''",
        r"r'''\'''", "''''''", r#""""!! 'b'""""#, "'//'", "'a' // it's --\n", "string(b'--')",
    ];

    #[test]
    fn signs_in_texts_and_comments_do_not_count() {
        for text in TEXTS {
            for whole in [format!("request.path == {text}"), format!("{text} != request.path && {text} != ''")] {
                predicate(&whole).unwrap_or_else(|invalid| panic!("{whole}: {invalid}"));
            }
        }
    }

    #[test]
    fn signs_after_texts_and_comments_count() {
        for signs in ["!!true", "! \n!true", "! // it's\n!true", "1 - -1 == 2", "--1 == 1"] {
            let whole = TEXTS.iter().flat_map(|text| [format!("{text} == '' || {signs}"), format!("//'\n{signs}")]);
            for whole in whole {
                assert_eq!(predicate(&whole).err(), Some(InvalidPredicate::TwoSigns), "{whole}");
            }
        }
    }
}
