//! Path globs. `*` matches any text within a segment. `**` as a whole segment matches zero or more segments.
//!
//! Matching is iterative and backtracks only to the last wildcard, so the worst case is the length of the pattern times
//! the length of the path. A final slash of the path is ignored: `/login` matches `/login/`, too.

use std::str::FromStr;

use super::path;

/// One entry of a `paths` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    segments: Vec<Segment>,
    form: Form,
}

/// The form of a glob. The most common forms are compared as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// A glob of literals.
    Whole(Box<str>),
    /// A glob of literals, followed by `**`.
    Below(Box<str>),
    Mixed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// `**`.
    Any,
    /// The literals around and between the `*` characters of a segment: `n` of these characters separate `n + 1`
    /// literals.
    Pieces(Vec<String>),
}

/// A segment of a glob, as the index compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step<'a> {
    /// Exactly this segment.
    Literal(&'a str),
    /// Exactly one segment, with any content.
    One,
    /// Any number of segments.
    Any,
}

/// The error for an invalid glob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidGlob {
    #[error("must start with `/`")]
    Relative,
    #[error("`**` must be a whole segment, as in `/api/**`")]
    PartOfSegment,
    #[error("can never match: paths are compared without query, so write it without `?` and `#` (or as `%3F`, `%23`)")]
    Query,
    #[error("can never match: paths are compared with `.`, `..` and `//` resolved, so write it without them")]
    NotResolved,
}

impl Glob {
    /// Whether the glob matches `path`, which must have the normal form of [`path::normalise`].
    pub(crate) fn matches(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        match &self.form {
            Form::Whole(whole) => path.strip_prefix(&**whole).is_some_and(|rest| matches!(rest, "" | "/")),
            Form::Below(top) if top.is_empty() => true,
            Form::Below(top) => path.strip_prefix(&**top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Form::Mixed => self.matches_mixed(path),
        }
    }

    fn matches_mixed(&self, path: &str) -> bool {
        self.matches_all(path) || path.strip_suffix('/').is_some_and(|path| self.matches_all(path))
    }

    /// Returns the segments of the glob, in order.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        self.segments.iter().map(|segment| match segment {
            Segment::Any => Step::Any,
            Segment::Pieces(pieces) => match pieces.as_slice() {
                [whole] => Step::Literal(whole),
                _ => Step::One,
            },
        })
    }

    fn matches_all(&self, path: &str) -> bool {
        let mut segments = path.split('/');
        let mut at = 0;
        // The state to return to if a literal does not match: the pattern after the last `**`, and the part of the path
        // that this `**` has not consumed yet.
        let mut retry = None;
        loop {
            let before = segments.clone();
            let Some(segment) = segments.next() else {
                return self.segments[at..].iter().all(|rest| *rest == Segment::Any);
            };
            match self.segments.get(at) {
                Some(Segment::Any) => {
                    at += 1;
                    segments = before;
                    let mut rest = segments.clone();
                    rest.next();
                    retry = Some((at, rest));
                }
                Some(Segment::Pieces(pieces)) if fits(pieces, segment) => at += 1,
                _ => {
                    let Some((after, rest)) = retry else { return false };
                    at = after;
                    segments = rest.clone();
                    let mut rest = rest;
                    // When `**` has consumed the whole path, no attempt remains.
                    retry = rest.next().map(|_| (after, rest));
                }
            }
        }
    }
}

/// Whether a segment consists of the pieces in order, with any text between them.
fn fits(pieces: &[String], segment: &str) -> bool {
    let [first, between @ .., last] = pieces else {
        return pieces.first().is_some_and(|whole| whole == segment);
    };
    let Some(mut rest) = segment.strip_prefix(first.as_str()) else { return false };
    // The leftmost match of each piece leaves the most text for the next pieces.
    for piece in between {
        match rest.find(piece.as_str()) {
            Some(place) => rest = &rest[place + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last.as_str())
}

impl FromStr for Glob {
    type Err = InvalidGlob;

    fn from_str(text: &str) -> Result<Self, InvalidGlob> {
        let relative = text.strip_prefix('/').ok_or(InvalidGlob::Relative)?;
        if text.contains(['?', '#']) {
            return Err(InvalidGlob::Query);
        }
        let count = relative.split('/').count();
        let segments = relative.split('/').enumerate().map(|(index, segment)| {
            if segment == "**" {
                return Ok(Segment::Any);
            }
            if segment.contains("**") {
                return Err(InvalidGlob::PartOfSegment);
            }
            let pieces: Vec<String> = segment.split('*').map(spelled).collect();
            match pieces.as_slice() {
                [whole] if whole == "." || whole == ".." => Err(InvalidGlob::NotResolved),
                [whole] if whole.is_empty() && index + 1 < count => Err(InvalidGlob::NotResolved),
                _ => Ok(Segment::Pieces(pieces)),
            }
        });
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        let form = Form::of(&segments);
        Ok(Self { segments, form })
    }
}

impl Form {
    fn of(segments: &[Segment]) -> Self {
        let (literals, below) = match segments {
            [literals @ .., Segment::Any] => (literals, true),
            all => (all, false),
        };
        let literals = literals.iter().map(|segment| match segment {
            Segment::Pieces(pieces) if pieces.len() == 1 => Some(pieces[0].as_str()),
            _ => None,
        });
        match literals.collect::<Option<Vec<_>>>().map(|literals| literals.join("/").into()) {
            Some(top) if below => Self::Below(top),
            Some(whole) => Self::Whole(whole),
            None => Self::Mixed,
        }
    }
}

fn spelled(piece: &str) -> String {
    let mut spelled = String::with_capacity(piece.len());
    path::respell(piece, &mut spelled);
    spelled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_match_by_segment() {
        for (glob, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/api/**", "/api", true),
            ("/api/**", "/api/", true),
            ("/api/**", "/api/a/b", true),
            ("/api/**", "/apis", false),
            ("/api/*", "/api/a", true),
            ("/api/*", "/api/a/b", false),
            ("/api/*", "/api", false),
            ("/api/*", "/api/", true),
            ("/login", "/login/", true),
            ("/login/", "/login", false),
            ("/a/**/z", "/a/z", true),
            ("/a/**/z", "/a/b/c/z", true),
            ("/a/**/z", "/a/b/c/z/y", false),
            ("/a/**/b/**/c", "/a/x/b/y/b/c", true),
            ("/*/**", "/a/b/c", true),
            ("/*/**", "/", true),
            ("/**/**", "/a/b/c", true),
            ("/a/b/**", "/a/b/c/d", true),
            ("/a/b/**", "/a/bc", false),
            ("/a/b/**", "/a", false),
            ("/a/b", "/a/b/", true),
            ("/a/b", "/a/b/c", false),
            ("/a/b", "/a/bc", false),
            ("/a/b/", "/a/b/", true),
            ("/*.json", "/x.json", true),
            ("/*.json", "/.json", true),
            ("/*.json", "/x.jsonl", false),
            ("/v*/a*b*c", "/v1/aXbYc", true),
            ("/v*/a*b*c", "/v1/acb", false),
            ("/ab*ba", "/aba", false),
            ("/caf\u{e9}", "/caf%C3%A9", true),
            ("/%7Euser", "/~user", true),
            ("/%2A", "/*", true),
            ("/%2A", "/a", false),
        ] {
            let parsed: Glob = glob.parse().expect(glob);
            assert_eq!(parsed.matches(path), expected, "{glob} on {path}");
        }
    }

    #[test]
    fn globs_that_cannot_match_are_refused() {
        for (glob, expected) in [
            ("", InvalidGlob::Relative),
            ("api", InvalidGlob::Relative),
            ("**", InvalidGlob::Relative),
            ("/api**", InvalidGlob::PartOfSegment),
            ("/***", InvalidGlob::PartOfSegment),
            ("/a?b=1", InvalidGlob::Query),
            ("/a#b", InvalidGlob::Query),
            ("/a//b", InvalidGlob::NotResolved),
            ("/a/../b", InvalidGlob::NotResolved),
            ("/a/%2e", InvalidGlob::NotResolved),
        ] {
            assert_eq!(glob.parse::<Glob>(), Err(expected), "{glob}");
        }
    }

    /// Compares the matcher with `weir_wire::takes_every_path`, which operator and agents share.
    #[test]
    fn every_path_is_what_no_path_escapes() {
        let pieces = ["", "a", "*", "**", "a*"];
        let longer = |all: &[String]| -> Vec<String> {
            all.iter().flat_map(|start| pieces.map(|piece| format!("{start}/{piece}"))).collect()
        };
        let (mut all, mut level) = (Vec::new(), vec![String::new()]);
        for _ in 0..4 {
            level = longer(&level);
            all.extend(level.iter().cloned());
        }
        let mut every = 0;
        for text in &all {
            let Ok(glob) = text.parse::<Glob>() else { continue };
            let escapes = ["/", "/b", "/b/", "/b/c", "/b/c/", "/b/c/d/e", "*"].iter().find(|path| !glob.matches(path));
            assert_eq!(weir_wire::takes_every_path(&[text]), escapes.is_none(), "{text}: {escapes:?}");
            every += usize::from(escapes.is_none());
        }
        assert!(every > 4, "{every} of {}", all.len());
    }

    /// A direct and slow implementation of the definition of globs.
    fn naive(glob: &[&str], path: &[&str]) -> bool {
        match (glob, path) {
            ([], []) => true,
            (["**", rest @ ..], _) => naive(rest, path) || (!path.is_empty() && naive(glob, &path[1..])),
            ([first, glob @ ..], [segment, path @ ..]) => {
                naive_segment(first.as_bytes(), segment.as_bytes()) && naive(glob, path)
            }
            _ => false,
        }
    }

    fn naive_segment(glob: &[u8], segment: &[u8]) -> bool {
        match (glob, segment) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                naive_segment(rest, segment) || (!segment.is_empty() && naive_segment(glob, &segment[1..]))
            }
            ([first, glob @ ..], [byte, segment @ ..]) => first == byte && naive_segment(glob, segment),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn agrees_with_the_definition(
            glob in prop::collection::vec(prop_oneof![Just("**".to_owned()), "\\*?[ab]{1,2}\\*?[ab]{0,2}", Just("*".to_owned())], 1..5),
            path in prop::collection::vec("[ab]{1,4}", 0..6),
            slash in any::<bool>(),
        ) {
            let text = format!("/{}", glob.join("/"));
            let parsed: Glob = text.parse().expect("made of valid segments");
            let glob: Vec<&str> = glob.iter().map(String::as_str).collect();
            let mut segments: Vec<&str> = path.iter().map(String::as_str).collect();
            let whole = if segments.is_empty() { vec![""] } else { segments.clone() };
            let mut expected = naive(&glob, &whole);
            if slash || segments.is_empty() {
                segments.push("");
                expected |= naive(&glob, &segments);
            }
            let path = format!("/{}", segments.join("/"));
            prop_assert_eq!(parsed.matches(&path), expected, "{} on {}", text, path);
        }
    }
}
