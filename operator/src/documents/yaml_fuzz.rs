//! Fuzzes the reading of YAML. Reading stays within bounds, every location is within the text, and the values equal
//! those of another library.

use serde::Deserialize;
use serde_json::Value;
use weir_fuzz::{Choices, Target, mutated};

use super::{DEPTH, VALUES, read};

const SEEDS: &[&str] = &[
    include_str!("../../../examples/quickstart.yaml"),
    "a: &x [1, 2]\nb: *x\nc: {d: *x}\n---\n- |\n  text\n- >-\n  folded\n  text\n- 'it''s'\n- \"\\u00e4\\n\"\n",
    "base: &b {a: 1, c: 2}\nmore:\n  <<: *b\n  c: 3\n---\n!!str 1: 0x1f\nt: !!int '7'\n? k\n: v\n",
    "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]\n",
];

const PIECES: &[&str] = &[
    "a", "b", ": ", ":", "\n", "\n", "\n  ", "\n- ", "- ", "[", "]", "{", "}", ", ", "&x ", "*x", "*x ", "!!str ",
    "!!int ", "? ", "| ", "|\n", ">-\n", "'", "\"", "#", " #", "---\n", "...\n", "<<: ", "1", "0x1f", "true", "~",
    "\t", "\\", "%YAML 1.2\n", "\u{e4}", "\u{feff}",
];

#[test]
fn any_text_is_read_within_bounds_and_as_another_library_reads_it() {
    Target::new("policies").run(200, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            let text = if choices.rarely(3) {
                choices.text(PIECES, 24)
            } else {
                let (seed, other) = (choices.one(SEEDS), choices.one(SEEDS));
                let changed = mutated(seed.as_bytes(), other.as_bytes(), &mut choices.random());
                String::from_utf8_lossy(&changed).into_owned()
            };
            // Libraries disagree on whether an unterminated last line has a line end.
            let text = text + "\n";
            check(&text).map_err(|wrong| format!("{text:?}: {wrong}"))?;
        }
        Ok(())
    });
}

fn check(text: &str) -> Result<(), String> {
    let documents = read(text);
    let lines: Vec<&str> = text.split('\n').collect();
    for tree in &documents {
        let places = tree.places.values().chain(tree.faults.iter().map(|(place, ..)| place)).chain([&tree.start]);
        for place in places {
            // The end of a text is a valid location, too. Other line breaks do not raise the number of lines.
            let line = lines.get(place.line - 1);
            if place.line > text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() + 2
                || place.column == 0
            {
                return Err(format!("{place} is not in the text"));
            }
            if !text.contains('\r') && line.is_some_and(|line| place.column > line.chars().count() + 2) {
                return Err(format!("{place} is beyond the end of its line"));
            }
        }
        if let Some(value) = &tree.value {
            let (values, depth) = size(value);
            if values > VALUES || depth > DEPTH + 1 {
                return Err(format!("a document has {values} values, {depth} deep"));
            }
        }
        // A path that does not exist must lead to the value that should contain it.
        let _ = (tree.place("spec.rules[0].name"), tree.place(""));
    }
    // If the other library reads the text without an error, the values must be equal, unless a fault explains the
    // difference.
    let others: Result<Vec<Value>, _> = serde_yaml::Deserializer::from_str(text).map(Value::deserialize).collect();
    let faultless = documents.iter().all(|tree| tree.faults.is_empty());
    let values: Vec<&Value> = documents.iter().filter_map(|tree| tree.value.as_ref()).collect();
    // Libraries disagree on merges, tags, names without text and documents without content.
    let is_common = !["<<", "!", "%", "?", "~", "---", "...", "\u{feff}", "\t"].iter().any(|sign| text.contains(sign));
    if let Ok(others) = others
        && faultless
        && is_common
        && !values.iter().any(|value| has_nameless(value))
        && !values.iter().copied().eq(&others)
        && !(values.is_empty() && others == [Value::Null])
    {
        return Err(format!("the values are {values:?}, but the other library reads {others:?}"));
    }
    Ok(())
}

/// Returns true if a value contains a field whose name is `~`, which the parser uses for a name without text.
fn has_nameless(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(has_nameless),
        Value::Object(fields) => fields.iter().any(|(name, value)| name == "~" || has_nameless(value)),
        _ => false,
    }
}

fn size(value: &Value) -> (usize, usize) {
    let inner: Vec<(usize, usize)> = match value {
        Value::Array(list) => list.iter().map(size).collect(),
        Value::Object(fields) => fields.values().map(size).collect(),
        _ => return (1, 0),
    };
    let deepest = inner.iter().map(|(_, depth)| *depth).max().unwrap_or_default();
    (1 + inner.iter().map(|(values, _)| values).sum::<usize>(), deepest + 1)
}
