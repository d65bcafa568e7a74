//! Values of response headers and bodies of refusals, with placeholders.

/// The placeholders, with the names that users write between braces.
const PLACEHOLDERS: [(&str, Placeholder); 5] = [
    ("remaining", Placeholder::Remaining),
    ("limit", Placeholder::Limit),
    ("resetAfter", Placeholder::ResetAfter),
    ("policy", Placeholder::Policy),
    ("rule", Placeholder::Rule),
];

/// A placeholder for a value that is known when the response is sent, or when the rule comes into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// The number of remaining requests of the tightest limit.
    Remaining,
    /// The number of requests that the tightest limit admits in its period.
    Limit,
    /// The seconds until the whole quota of the tightest limit is available again. In a refusal, the seconds until a
    /// retry can succeed.
    ResetAfter,
    /// The namespace and the name of the policy.
    Policy,
    /// The name of the rule.
    Rule,
}

/// A part of a header's value or of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A literal text. In a header, it has only visible ASCII and spaces.
    Text(String),
    /// A placeholder, which is replaced by a value.
    Placeholder(Placeholder),
}

/// The error for an invalid value, in one line that explains how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// The value has characters other than visible ASCII and spaces.
    #[error("must be of visible ASCII characters and spaces")]
    Characters,
    /// The value has a brace without its counterpart.
    #[error("has a brace without its counterpart: use braces only around a placeholder, such as {{remaining}}")]
    Brace,
    /// The value has an unknown placeholder.
    #[error(
        "has {{{0}}}, which does not exist: the placeholders are {{remaining}}, {{limit}}, {{resetAfter}}, {{policy}} and {{rule}}"
    )]
    Unknown(String),
}

impl Placeholder {
    /// Whether the value of the placeholder comes from a limit.
    pub fn is_of_limit(self) -> bool {
        matches!(self, Self::Remaining | Self::Limit | Self::ResetAfter)
    }
}

/// Parses a value such as `{remaining} of {limit}`.
///
/// # Errors
///
/// If the value has characters other than visible ASCII and spaces, an unknown placeholder, or a brace without its
/// counterpart.
pub fn template(text: &str) -> Result<Vec<Piece>, InvalidTemplate> {
    if !text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Err(InvalidTemplate::Characters);
    }
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some(brace) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(brace);
        let (name, after) =
            from.strip_prefix('{').and_then(|inner| inner.split_once('}')).ok_or(InvalidTemplate::Brace)?;
        if name.contains('{') {
            return Err(InvalidTemplate::Brace);
        }
        let known = PLACEHOLDERS.iter().find(|(known, _)| *known == name);
        let (_, placeholder) = known.ok_or_else(|| InvalidTemplate::Unknown(name.to_owned()))?;
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        pieces.push(Piece::Placeholder(*placeholder));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

/// Parses a body such as `{"retryIn": {resetAfter}}`. Only the exact name of a placeholder between braces is one. All
/// other braces are text, because JSON has braces.
pub fn body_template(text: &str) -> Vec<Piece> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    for (brace, _) in text.match_indices('{') {
        let inner = &text[brace + 1..];
        let is_named = |name: &str| inner.strip_prefix(name).is_some_and(|rest| rest.starts_with('}'));
        let Some((name, placeholder)) = PLACEHOLDERS.iter().find(|(name, _)| is_named(name)) else { continue };
        if start < brace {
            pieces.push(Piece::Text(text[start..brace].to_owned()));
        }
        pieces.push(Piece::Placeholder(*placeholder));
        start = brace + name.len() + 2;
    }
    if start < text.len() {
        pieces.push(Piece::Text(text[start..].to_owned()));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_braces_of_a_body_stay_unless_they_name_a_placeholder() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let reset = Piece::Placeholder(Placeholder::ResetAfter);
        for plain in
            ["{}", "{ resetAfter }", "{resetafter}", "{\"limit\":1}", "{limit", "limit}", "{left}", "{{}}", "é{"]
        {
            assert_eq!(body_template(plain), [text(plain)], "{plain}");
        }
        assert_eq!(body_template(""), []);
        assert_eq!(body_template("{resetAfter}{resetAfter}"), [reset.clone(), reset.clone()]);
        assert_eq!(body_template("{{resetAfter}}"), [text("{"), reset.clone(), text("}")]);
        assert_eq!(
            body_template("{\"in\":{resetAfter},\"of\":\"é {limit}\"}"),
            [text("{\"in\":"), reset, text(",\"of\":\"é "), Piece::Placeholder(Placeholder::Limit), text("\"}")]
        );
    }

    #[test]
    fn a_value_is_text_and_placeholders() {
        let text = |text: &str| Piece::Text(text.to_owned());
        for (value, expected) in [
            ("", vec![]),
            ("free", vec![text("free")]),
            ("{remaining}", vec![Piece::Placeholder(Placeholder::Remaining)]),
            (
                "{policy}/{rule}: {limit}, {resetAfter}s",
                vec![
                    Piece::Placeholder(Placeholder::Policy),
                    text("/"),
                    Piece::Placeholder(Placeholder::Rule),
                    text(": "),
                    Piece::Placeholder(Placeholder::Limit),
                    text(", "),
                    Piece::Placeholder(Placeholder::ResetAfter),
                    text("s"),
                ],
            ),
        ] {
            assert_eq!(template(value), Ok(expected), "{value}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        for (value, part) in [
            ("{left}", "has {left}, which does not exist: the placeholders are {remaining}, {limit}"),
            ("{Remaining}", "does not exist"),
            ("{}", "has {}, which"),
            ("{remaining", "without its counterpart"),
            ("remaining}", "without its counterpart"),
            ("{{remaining}}", "without its counterpart"),
            ("a\nb", "visible ASCII"),
            ("caf\u{e9}", "visible ASCII"),
        ] {
            let invalid = template(value).expect_err(value).to_string();
            assert!(invalid.contains(part), "{value}: {invalid}");
        }
    }
}
