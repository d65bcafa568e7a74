//! Quotes numbers and booleans where the file or a policy means a text.
//!
//! envoyproxy/ratelimit keeps a value as it is written: `0x10`, `1.10` and `True` are texts of four letters. A reader of
//! YAML only returns the number or the boolean, so these words get quotes before the file is read.

use granit_parser::{Event, Parser, ScalarStyle};

use crate::documents;

/// The fields with a text.
const TEXTS: [&str; 4] = ["domain", "key", "value", "name"];
/// The deepest file. The reader of the file refuses deeper ones with a message.
const DEPTH: usize = 64;

/// What comes next in an open list or map.
#[derive(Clone, Copy)]
enum Next {
    Item,
    Field,
    /// A value, which is text or not.
    Value(bool),
}

/// Returns a file with quotes around words in fields of text. The numbers of its lines do not change.
///
/// A word with an anchor or a tag gets no quotes: an alias of the anchor can be in a field with a number.
pub(super) fn quoted(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = granit_parser::options! { flow_nesting_limit: DEPTH, block_nesting_limit: DEPTH };
    options.set_emit_comments(false);
    let (mut quoted, mut copied, mut open) = (String::new(), 0, Vec::new());
    // The reader of the file reports an error.
    for (event, span) in Parser::new_from_str_with_options(text, options).map_while(Result::ok) {
        if matches!(event, Event::SequenceEnd | Event::MappingEnd) {
            open.pop();
            continue;
        }
        if !event.is_node() {
            continue;
        }
        let place = open.last().copied().unwrap_or(Next::Item);
        if let Some(next) = open.last_mut() {
            *next = match (place, &event) {
                (Next::Item, _) => Next::Item,
                (Next::Field, Event::Scalar(name, ..)) => Next::Value(TEXTS.contains(&&**name)),
                (Next::Field, _) => Next::Value(false),
                (Next::Value(_), _) => Next::Field,
            };
        }
        match (event, place, span.byte_range()) {
            (Event::SequenceStart(..), ..) => open.push(Next::Item),
            (Event::MappingStart(..), ..) => open.push(Next::Field),
            (Event::Scalar(word, ScalarStyle::Plain, 0, None), Next::Value(true), Some(range))
                if is_word(&word) && text.get(range.clone()) == Some(&*word) =>
            {
                quoted.extend([&text[copied..range.start], "'", &*word, "'"]);
                copied = range.end;
            }
            _ => {}
        }
    }
    quoted + &text[copied..]
}

/// Returns a policy with quotes around the words that kubectl does not read as text, such as `yes`. The policy has each
/// field on its own line, as `serde_yaml` writes it.
pub(super) fn quoted_for_kubectl(policy: &str) -> String {
    let mut lines: Vec<String> = policy.split_inclusive('\n').map(ToOwned::to_owned).collect();
    let mut places: Vec<_> = documents::read(policy).cluster_findings.iter().map(|finding| finding.place).collect();
    places.sort();
    // Quotes move only the words behind them.
    for place in places.into_iter().rev() {
        let Some(line) = lines.get_mut(place.line - 1) else { continue };
        let Some((start, _)) = line.char_indices().nth(place.column - 1) else { continue };
        let end = line[start..].find([':', '\n']).map_or(line.len(), |length| start + length);
        line.insert(end, '\'');
        line.insert(start, '\'');
    }
    lines.concat()
}

/// Returns true for every number and boolean. The result for other texts has no effect, because quotes do not change a
/// text.
fn is_word(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.bytes().all(letters) && !matches!(text, "" | "null" | "Null" | "NULL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_in_fields_of_text_get_quotes() {
        for (text, expected) in [
            ("\u{feff}domain: 5 # five\r\nkey: -1.50\r\n", "domain: '5' # five\r\nkey: '-1.50'\r\n"),
            ("- {value: 0x10,key: True}", "- {value: '0x10',key: 'True'}"),
            (
                "? value\n: 7\nunit: 7\nlimit: {name: 7, rate: 7}",
                "? value\n: '7'\nunit: 7\nlimit: {name: '7', rate: 7}",
            ),
            ("größe: ü\nvalue: [7, {value: 7}]\nkey: 7", "größe: ü\nvalue: [7, {value: '7'}]\nkey: '7'"),
            ("[value, 7]: 1\nvalue: {[key]: 7}", "[value, 7]: 1\nvalue: {[key]: 7}"),
            ("value: ~\nkey: null\nname:\ndomain: ''", "value: ~\nkey: null\nname:\ndomain: ''"),
            ("value: &a 7\nkey: !!int 7\nname: '7'", "value: &a 7\nkey: !!int 7\nname: '7'"),
            ("value: a\n  7\nkey: [", "value: a\n  7\nkey: ["),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
