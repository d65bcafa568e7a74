//! Compares regular expressions for paths with a matcher that implements the definition of each operator without an
//! automaton.

use std::collections::BTreeSet;

use weir_fuzz::{Choices, Target};

use super::path_regex;

const PIECES: &[&str] = &[
    "a", "/", "1", ".", "*", "+", "?", "|", "(", ")", "(?:", "(?i)", "(?=", "(?P<n>", "[", "]", "[^", "[a-c]", "{2}",
    "{2,}", "{0,3}", "{1000}", "^", "$", r"\d", r"\w", r"\.", r"\b", r"\1", r"\p{L}", r"\x", r"\", "-", "{", "}",
    "\u{e4}", "\n", "\0",
];

#[test]
fn any_regex_is_refused_in_one_line_or_matches_by_its_definition() {
    Target::new("regexes").run(100, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let text = choices.text(PIECES, 20);
        if let Err(invalid) = path_regex(&text)
            && invalid.to_string().contains('\n')
        {
            return Err(format!("{text:?} is refused by {invalid:?}"));
        }
        let tree = Tree::any(&mut choices, 4);
        let Ok(regex) = path_regex(&tree.text()) else { continue };
        for _ in 0..4 {
            let path = choices.text(&["a", "b", "A", "/", "v1", "c", "0", "."], 8);
            let (found, expected) = (regex.is_match(&path), tree.occurs_in(path.as_bytes()));
            if found != expected {
                return Err(format!("{:?} on {path:?} is {found}, and should be {expected}", tree.text()));
            }
        }
    }
    Ok(())
}

enum Tree {
    Byte(u8),
    Any,
    Class(bool, u8, u8),
    Start,
    End,
    Row(Vec<Tree>),
    Either(Vec<Tree>),
    Times(Box<Tree>, usize, Option<usize>),
}

impl Tree {
    fn any(choices: &mut Choices<'_>, depth: usize) -> Self {
        let parts = |choices: &mut Choices<'_>| -> Vec<Self> {
            let count = choices.below(4);
            (0..count).map(|_| Self::any(choices, depth - 1)).collect()
        };
        match choices.below(if depth == 0 { 6 } else { 12 }) {
            0 | 1 => Self::Byte(*choices.one(b"abcAv10/.")),
            2 => Self::Any,
            3 => {
                let (from, to) = *choices.one(&[(b'a', b'b'), (b'0', b'9'), (b'A', b'Z'), (b'/', b'/'), (b'b', b'v')]);
                Self::Class(choices.rarely(3), from, to)
            }
            4 => Self::Start,
            5 => Self::End,
            6 | 7 => Self::Row(parts(choices)),
            8 | 9 => Self::Either(parts(choices)),
            _ => {
                let least = choices.below(3);
                let most = (!choices.rarely(2)).then(|| least + choices.below(3));
                Self::Times(Box::new(Self::any(choices, depth - 1)), least, most)
            }
        }
    }

    fn text(&self) -> String {
        let list = |parts: &[Self], between: &str| {
            let parts: Vec<String> = parts.iter().map(Self::text).collect();
            format!("(?:{})", parts.join(between))
        };
        match self {
            Self::Byte(byte) => format!(r"\x{byte:02x}"),
            Self::Any => ".".to_owned(),
            Self::Class(negated, from, to) => format!(r"[{}\x{from:02x}-\x{to:02x}]", if *negated { "^" } else { "" }),
            Self::Start => "^".to_owned(),
            Self::End => "$".to_owned(),
            Self::Row(parts) => list(parts, ""),
            Self::Either(parts) => list(parts, "|"),
            Self::Times(inner, 0, None) => format!("(?:{})*", inner.text()),
            Self::Times(inner, 1, None) => format!("(?:{})+", inner.text()),
            Self::Times(inner, least, None) => format!("(?:{}){{{least},}}", inner.text()),
            Self::Times(inner, least, Some(most)) => format!("(?:{}){{{least},{most}}}", inner.text()),
        }
    }

    fn occurs_in(&self, path: &[u8]) -> bool {
        !self.ends(path, &(0..=path.len()).collect()).is_empty()
    }

    /// Returns the offsets at which a match can end if it begins at one of these offsets.
    fn ends(&self, path: &[u8], from: &BTreeSet<usize>) -> BTreeSet<usize> {
        let one = |is: &dyn Fn(u8) -> bool| -> BTreeSet<usize> {
            from.iter().filter(|at| path.get(**at).is_some_and(|byte| is(*byte))).map(|at| at + 1).collect()
        };
        match self {
            Self::Byte(byte) => one(&|it| it == *byte),
            Self::Any => one(&|it| it != b'\n'),
            Self::Class(negated, low, high) => one(&|it| (*low..=*high).contains(&it) != *negated),
            Self::Start => from.iter().copied().filter(|at| *at == 0).collect(),
            Self::End => from.iter().copied().filter(|at| *at == path.len()).collect(),
            Self::Row(parts) => parts.iter().fold(from.clone(), |from, part| part.ends(path, &from)),
            Self::Either(parts) if parts.is_empty() => from.clone(),
            Self::Either(parts) => parts.iter().flat_map(|part| part.ends(path, from)).collect(),
            Self::Times(inner, least, most) => {
                let again = |from: &BTreeSet<usize>| inner.ends(path, from);
                let mut now = (0..*least).fold(from.clone(), |now, _| again(&now));
                let mut all = now.clone();
                for _ in 0..most.map_or(path.len() + 1, |most| most - least) {
                    now = again(&now);
                    all.extend(&now);
                }
                all
            }
        }
    }
}
