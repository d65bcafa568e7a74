//! Compares paths and globs with a direct and slow implementation of their definitions.

use std::borrow::Cow;

use weir_fuzz::{Choices, Target};

use super::{
    Conditions, Glob, Index, Matcher, RequestView,
    glob::InvalidGlob,
    path::{AmbiguousPaths, is_ambiguous, normalise},
};

/// Pieces of paths in several spellings.
const PIECES: &[&str] = &[
    "/", "/", "a", "b", "ab", ".", "..", "%2e", "%2E", "%2f", "%2F", "%61", "%25", "%2561", "%", "%4", "%zz", "//",
    "*", "%2a", "~", ":", "@", "\"", "\u{e9}", "%c3%a9", "\\", "/./", "/../", "{", "|", " ", ";x=1", "..;a", "%3b",
    "%5c", "+", "%00", "^", "%7e", "a.b", "...",
];
const GLOBS: &[&str] =
    &["/", "/", "/", "*", "**", "a", "b", "a*b", "*a", "%61", "%2f", ".", "..", "?", "#", "\u{e9}", "%2A", "~", "ab"];

#[test]
fn any_path_and_glob_agree_with_the_definition() {
    Target::new("paths").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let path = text(&mut choices, PIECES);
        normal(&path)?;
        let globs: Vec<String> = (0..choices.below(12)).map(|_| text(&mut choices, GLOBS)).collect();
        for glob in &globs {
            matches(glob, &path)?;
            // A random path rarely matches, so a matching path is generated, too.
            let made = instance(glob, &mut choices);
            matches(glob, &made)?;
            indexed(&globs, &made)?;
        }
        indexed(&globs, &path)?;
    }
    Ok(())
}

/// Generates a path. In rare cases, it does not start with a slash.
fn text(choices: &mut Choices<'_>, pieces: &[&str]) -> String {
    let start = if choices.rarely(30) { "" } else { "/" };
    let rest: String = (0..choices.below(9)).map(|_| *choices.one(pieces)).collect();
    format!("{start}{rest}")
}

/// Generates a path that the glob matches. In rare cases, the path has an additional segment.
fn instance(glob: &str, choices: &mut Choices<'_>) -> String {
    const SEGMENTS: &[&str] = &["a", "b", "ab", "a.b", "%61", "c", "~", ":"];
    let mut made: Vec<String> = Vec::new();
    for segment in glob.split('/').skip(1) {
        if choices.rarely(16) {
            made.push((*choices.one(SEGMENTS)).to_owned());
        }
        match segment {
            "**" => made.extend((0..choices.below(4)).map(|_| (*choices.one(SEGMENTS)).to_owned())),
            segment => {
                let mut pieces = segment.split('*').map(str::to_owned);
                let first = pieces.next().unwrap_or_default();
                made.push(pieces.fold(first, |made, piece| made + *choices.one(SEGMENTS) + &piece));
            }
        }
    }
    let end = if choices.rarely(8) { "/" } else { "" };
    format!("/{}{end}", made.join("/"))
}

fn normal(path: &str) -> Result<(), String> {
    let found = normalise(path, AmbiguousPaths::Keep);
    if path.starts_with('/') && found != defined(path) {
        return Err(format!("{path:?} is {found:?}, and should be {:?}", defined(path)));
    }
    // A path is ambiguous if its normal form depends on `AmbiguousPaths`. Other paths can be ambiguous, too.
    let decoded = normalise(path, AmbiguousPaths::Decode);
    if decoded != found && !is_ambiguous(path) {
        return Err(format!("{path:?} is {found:?} and {decoded:?}, and should be ambiguous"));
    }
    if decoded != normalise(&decoded, AmbiguousPaths::Decode) {
        return Err(format!("{path:?} is {decoded:?}, which is not a normal form"));
    }
    if matches!(found, Cow::Borrowed(_)) && found != path {
        return Err(format!("{path:?} was borrowed as {found:?}"));
    }
    Ok(())
}

/// Normalises a path by the definitions of segments (RFC 3986 section 3.3) and of dot segments (section 5.2.4).
fn defined(path: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    let segments: Vec<String> = path.split('/').skip(1).map(spelled).collect();
    for segment in &segments {
        match segment.as_str() {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name.to_owned()),
        }
    }
    let open = segments.last().is_some_and(|last| matches!(last.as_str(), "" | "." | ".."));
    let end = if open || kept.is_empty() { "/" } else { "" };
    kept.iter().map(|segment| format!("/{segment}")).collect::<String>() + end
}

/// Writes each byte that a segment can contain unchanged, and other bytes percent-encoded in upper case.
fn spelled(segment: &str) -> String {
    let mut rest = segment.as_bytes();
    let mut out = String::new();
    while let Some((&first, behind)) = rest.split_first() {
        let hex = std::str::from_utf8(behind.get(..2).unwrap_or_default()).unwrap_or_default();
        let number = u8::from_str_radix(hex, 16).ok().filter(|_| first == b'%' && !hex.contains('+') && hex.len() == 2);
        let byte = number.unwrap_or(first);
        rest = if number.is_some() { &behind[2..] } else { behind };
        let plain = char::from(byte);
        if plain.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@".contains(plain) {
            out.push(plain);
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

fn matches(glob: &str, path: &str) -> Result<(), String> {
    let parsed: Result<Glob, InvalidGlob> = glob.parse();
    let Some(segments) = sound(glob) else {
        return if parsed.is_ok() { Err(format!("{glob:?} was accepted and can never match")) } else { Ok(()) };
    };
    let parsed = parsed.map_err(|error| format!("{glob:?} was refused: {error}"))?;
    if !path.starts_with('/') {
        return Ok(());
    }
    let normal = defined(path);
    let of = |path: &str| path.split('/').skip(1).map(str::to_owned).collect::<Vec<_>>();
    let expected = all(&segments, &of(&normal))
        || normal.strip_suffix('/').is_some_and(|path| !path.is_empty() && all(&segments, &of(path)))
        // The root path without its slash is one empty segment.
        || (normal == "/" && all(&segments, &[String::new()]));
    let found = parsed.matches(&normal);
    if weir_wire::takes_every_path(&[glob]) && !found {
        return Err(format!("{glob:?} does not match {normal:?}, although it should match every path"));
    }
    if found == expected { Ok(()) } else { Err(format!("{glob:?} on {normal:?} is {found}, and should be {expected}")) }
}

/// Returns the segments of a glob, or `None` if the glob can never match.
fn sound(glob: &str) -> Option<Vec<String>> {
    let segments: Vec<&str> = glob.strip_prefix('/')?.split('/').collect();
    let last = segments.len() - 1;
    let sound = |(index, segment): (usize, &&str)| {
        let whole = !segment.contains('*');
        let dots = whole && matches!(spelled(segment).as_str(), "." | "..");
        let gap = segment.is_empty() && index < last;
        let stars = *segment != "**" && segment.contains("**");
        !(dots || gap || stars)
    };
    let possible = !glob.contains(['?', '#']) && segments.iter().enumerate().all(sound);
    // A percent-encoded star is a literal. Wildcards are replaced by bytes that no path contains.
    let marked = |segment: &&str| match *segment {
        "**" => ANY.to_owned(),
        segment => segment.split('*').map(spelled).collect::<Vec<_>>().join("\0"),
    };
    possible.then(|| segments.iter().map(marked).collect())
}

/// The replacement of `**`, which matches any number of segments.
const ANY: &str = "\u{1}";

fn all(glob: &[String], path: &[String]) -> bool {
    match (glob, path) {
        ([], []) => true,
        ([any, rest @ ..], _) if any == ANY => all(rest, path) || (!path.is_empty() && all(glob, &path[1..])),
        ([first, glob @ ..], [segment, path @ ..]) => one(first.as_bytes(), segment.as_bytes()) && all(glob, path),
        _ => false,
    }
}

fn one(glob: &[u8], segment: &[u8]) -> bool {
    match (glob, segment) {
        ([], []) => true,
        ([0, rest @ ..], _) => one(rest, segment) || (!segment.is_empty() && one(glob, &segment[1..])),
        ([first, glob @ ..], [byte, segment @ ..]) => first == byte && one(glob, segment),
        _ => false,
    }
}

/// Checks that the index omits no matching rule.
fn indexed(globs: &[String], path: &str) -> Result<(), String> {
    let Ok(request) = http::Request::builder().uri(path).body(()) else { return Ok(()) };
    let globs = globs.iter().filter_map(|glob| glob.parse().ok());
    let matcher = |glob: Glob| Matcher::new(vec![Conditions { paths: vec![glob], ..Conditions::default() }]);
    let matchers: Vec<Matcher> = globs.map(matcher).collect();
    let index = Index::new(matchers.iter());
    let view = RequestView::new(&request, std::net::Ipv4Addr::LOCALHOST.into());
    let mut buffer = Vec::new();
    let named: Vec<usize> = index.candidates(&view, &mut buffer).iter().map(|id| index.entry(*id).0).collect();
    match matchers.iter().enumerate().find(|(place, matcher)| matcher.matches(&view) && !named.contains(place)) {
        Some((_, matcher)) => Err(format!("the index omits {matcher:?} for {path:?}")),
        None => Ok(()),
    }
}
