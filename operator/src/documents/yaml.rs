//! Parses YAML to plain values, with the place of every field and within fixed bounds.
//!
//! A syntax error ends its document, but the next document is parsed. The depth and the values that aliases repeat are
//! bounded, because a hostile text must not delay the reader or exhaust its stack.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use granit_parser::{Event, Marker, Parser, ScalarStyle, StrInput, StructureStyle, Tag};
use serde_json::{Map, Number, Value};

use super::cluster;

/// The maximum depth of nested lists and fields. A policy needs 12.
const DEPTH: usize = 64;
/// The maximum number of values in a document, including those that aliases repeat. A policy that fits a cluster has
/// fewer.
const VALUES: usize = 1 << 20;

/// A place in a text, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl From<Marker> for TextPosition {
    fn from(marker: Marker) -> Self {
        Self { line: marker.line().max(1), column: marker.col() + 1 }
    }
}

#[derive(Debug)]
pub(super) struct Tree {
    /// The value, or `None` if it cannot be read.
    pub(super) value: Option<Value>,
    /// Faults in the form of the document, each as place, path and message.
    pub(super) faults: Vec<(TextPosition, String, String)>,
    /// Unquoted words that kubectl does not read as text, in the same form.
    pub(super) misread: Vec<(TextPosition, String, String)>,
    start: TextPosition,
    /// The place of each field, by its path, such as `spec.rules[0].name`.
    places: BTreeMap<String, TextPosition>,
}

impl Tree {
    /// Returns the place of a field, or of its parent if the field is absent.
    pub(super) fn place(&self, path: &str) -> TextPosition {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return *place;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.start,
            }
        }
    }
}

/// Parses every document of a text, in order.
pub(super) fn read(text: &str) -> Vec<Tree> {
    // Windows editors begin a text with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = granit_parser::options! { flow_nesting_limit: DEPTH, block_nesting_limit: DEPTH };
    options.set_emit_comments(false);
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut documents = Vec::new();
    loop {
        let mut builder = Builder::new(&mut parser, text);
        let stop = match builder.document() {
            Ok(Some(tree)) => {
                documents.push(tree);
                continue;
            }
            Ok(None) => return documents,
            Err(stop) => stop,
        };
        let mut tree = builder.tree;
        tree.faults.push((stop.place, String::new(), stop.message));
        documents.push(tree);
        if !matches!(parser.proceed_next_document(), Ok(true)) {
            return documents;
        }
    }
}

/// The error that stops parsing a document.
struct Stop {
    place: TextPosition,
    message: String,
}

struct Builder<'a, 'text> {
    text: &'text str,
    parser: &'a mut Parser<'text, StrInput<'text>>,
    tree: Tree,
    anchors: HashMap<usize, Node>,
    values: usize,
    brackets: usize,
}

/// A value, with the number of values and the depth that an alias to it adds.
#[derive(Clone)]
struct Node {
    value: Value,
    values: usize,
    depth: usize,
}

impl<'a, 'text> Builder<'a, 'text> {
    fn new(parser: &'a mut Parser<'text, StrInput<'text>>, text: &'text str) -> Self {
        let start = TextPosition { line: 1, column: 1 };
        let tree = Tree { value: None, faults: Vec::new(), misread: Vec::new(), start, places: BTreeMap::new() };
        Self { text, parser, tree, anchors: HashMap::new(), values: 0, brackets: 0 }
    }

    fn next(&mut self) -> Result<Option<(Event<'text>, TextPosition)>, Stop> {
        match self.parser.next_event() {
            None => Ok(None),
            Some(Ok((event, span))) => {
                let is_node = event.is_node() && span.byte_range().is_some_and(|range| self.is_behind_tab(range.start));
                if is_node {
                    // This parser accepts the tab as a blank, but a cluster refuses it.
                    let message = "a line must not begin with a tab: indent it with blanks".to_owned();
                    return Err(Stop { place: span.start.into(), message });
                }
                Ok(Some((event, span.start.into())))
            }
            Some(Err(error)) => Err(Stop { place: (*error.marker()).into(), message: error.info() }),
        }
    }

    /// Returns true if a tab indents this position. Inside brackets a tab is not indentation.
    fn is_behind_tab(&self, offset: usize) -> bool {
        let line = self.text[..offset].rsplit('\n').next().unwrap_or_default();
        self.brackets == 0 && line.chars().take_while(|it| it.is_whitespace()).any(|it| it == '\t')
    }

    /// Parses the next document. Returns `None` at the end of the text.
    fn document(&mut self) -> Result<Option<Tree>, Stop> {
        let mut value = None;
        while let Some((event, place)) = self.next()? {
            match event {
                Event::StreamStart => {}
                Event::StreamEnd => return Ok(None),
                Event::DocumentStart(..) => self.tree.start = place,
                Event::DocumentEnd => {
                    let fresh = Builder::new(self.parser, self.text).tree;
                    let tree = std::mem::replace(&mut self.tree, fresh);
                    return Ok(Some(Tree { value: Some(value.unwrap_or_default()), ..tree }));
                }
                event => {
                    self.tree.start = place;
                    value = Some(self.node(event, place, "", 0)?.value);
                }
            }
        }
        Ok(None)
    }

    fn fault(&mut self, place: TextPosition, path: &str, message: impl Into<String>) {
        self.tree.faults.push((place, path.to_owned(), message.into()));
    }

    fn node(&mut self, event: Event<'text>, place: TextPosition, path: &str, depth: usize) -> Result<Node, Stop> {
        self.count(1, place)?;
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref()).unwrap_or_else(|message| {
                    self.fault(place, path, message);
                    Value::Null
                });
                if style == ScalarStyle::Plain
                    && tag.is_none()
                    && value.is_string()
                    && let Some(read) = cluster::misread(&text)
                {
                    let message = format!("kubectl reads {text} as {read}: write it in quotes");
                    self.tree.misread.push((place, path.to_owned(), message));
                }
                (anchor, Node { value, values: 1, depth: 0 })
            }
            Event::SequenceStart(style, anchor, _) => {
                let brackets = usize::from(style == StructureStyle::Flow);
                self.brackets += brackets;
                let node = self.list(path, depth)?;
                self.brackets -= brackets;
                (anchor, node)
            }
            Event::MappingStart(style, anchor, _) => {
                let brackets = usize::from(style == StructureStyle::Flow);
                self.brackets += brackets;
                let node = self.mapping(path, depth)?;
                self.brackets -= brackets;
                (anchor, node)
            }
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(Stop { place, message: "an alias must not be within its own value".to_owned() });
                };
                self.count(node.values, place)?;
                if depth + node.depth > DEPTH {
                    let message = format!("must not be nested more than {DEPTH} deep, including what aliases repeat");
                    return Err(Stop { place, message });
                }
                (0, node)
            }
            other => return Err(Stop { place, message: format!("{other:?} is not expected here") }),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn count(&mut self, values: usize, place: TextPosition) -> Result<(), Stop> {
        self.values += values;
        if self.values > VALUES {
            let message = format!("must not have more than {VALUES} values, including those that aliases repeat");
            return Err(Stop { place, message });
        }
        Ok(())
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Node, Stop> {
        let (mut items, mut values, mut below) = (Vec::new(), 1, 0);
        while let Some((event, place)) = self.next()? {
            if event == Event::SequenceEnd {
                break;
            }
            let path = format!("{path}[{}]", items.len());
            self.tree.places.insert(path.clone(), place);
            let node = self.node(event, place, &path, depth + 1)?;
            (values, below) = (values + node.values, below.max(node.depth));
            items.push(node.value);
        }
        Ok(Node { value: Value::Array(items), values, depth: below + 1 })
    }

    fn mapping(&mut self, path: &str, depth: usize) -> Result<Node, Stop> {
        let (mut fields, mut values, mut below) = (Map::new(), 1, 0);
        let mut merged = Vec::new();
        while let Some((event, place)) = self.next()? {
            let (name, is_plain) = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, anchor, tag) => {
                    if anchor != 0 {
                        let value = Value::String(text.to_string());
                        self.anchors.insert(anchor, Node { value, values: 1, depth: 0 });
                    }
                    (text.into_owned(), style == ScalarStyle::Plain && tag.is_none())
                }
                key => match self.node(key, place, path, depth + 1)?.value {
                    Value::String(name) => (name, false),
                    other => {
                        self.fault(place, path, format!("the name of a field must be text, not {other}"));
                        (String::new(), false)
                    }
                },
            };
            let Some((event, value_place)) = self.next()? else { break };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let is_merge = is_plain && name == "<<";
            if is_plain && let Some(read) = cluster::misread_name(&name, &plain(&name)) {
                let message = format!("kubectl reads the name {name} as {read}: write it in quotes");
                self.tree.misread.push((place, path.clone(), message));
            }
            let earlier = (!is_merge).then(|| self.tree.places.insert(path.clone(), place)).flatten();
            let node = self.node(event, value_place, &path, depth + 1)?;
            (values, below) = (values + node.values, below.max(node.depth));
            if is_merge {
                merged.push((place, path, node.value));
            } else if fields.insert(name, node.value).is_some() {
                let before = earlier.map(|earlier| format!(" (first on line {})", earlier.line)).unwrap_or_default();
                self.fault(place, &path, format!("appears twice{before}: keep one of them"));
            }
        }
        // Merged fields never replace a field of the mapping itself.
        for (place, path, source) in merged {
            let sources = if let Value::Array(sources) = source { sources } else { vec![source] };
            for source in sources {
                let Value::Object(source) = source else {
                    self.fault(place, &path, format!("must be a mapping or a list of mappings, not {source}"));
                    continue;
                };
                for (name, value) in source {
                    fields.entry(name).or_insert(value);
                }
            }
        }
        Ok(Node { value: Value::Object(fields), values, depth: below + 1 })
    }
}

/// Converts a scalar by the core schema of YAML 1.2.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag.map(|tag| tag.core_suffix().unwrap_or_default()) {
        Some("str") => return Ok(text.into()),
        Some(kind @ ("int" | "float" | "bool" | "null")) => {
            let value = plain(text);
            let fits = match kind {
                "bool" => value.is_boolean(),
                "null" => value.is_null(),
                _ => value.is_number(),
            };
            return if fits { Ok(value) } else { Err(format!("{text:?} is not a !!{kind}")) };
        }
        // A cluster ignores `!` and application tags.
        Some(_) => return Ok(text.into()),
        None => {}
    }
    Ok(if style == ScalarStyle::Plain { plain(text) } else { text.into() })
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| text.into(), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'+' => ("", &text[1..]),
        b'-' => ("-", &text[1..]),
        _ => ("", text),
    };
    let radix = |prefix, radix| {
        let digits = digits.strip_prefix(prefix).filter(|digits| !digits.starts_with(['+', '-']))?;
        i64::from_str_radix(&format!("{sign}{digits}"), radix).ok().map(Number::from)
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte))
        && digits.bytes().any(|byte| byte.is_ascii_digit())
        && digits.as_bytes().first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.');
    if !is_number {
        return [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, base)| radix(prefix, base));
    }
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    // In parsers without unmarked octal numbers, 007 is text.
    if is_whole && digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    let text = format!("{sign}{digits}");
    if is_whole && let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    if is_whole && let Ok(whole) = text.parse::<u64>() {
        return Some(whole.into());
    }
    text.parse().ok().and_then(Number::from_f64)
}

#[cfg(test)]
#[path = "yaml_fuzz.rs"]
mod fuzz;

#[cfg(test)]
#[path = "yaml_tests.rs"]
mod tests;
