//! The styles of the lines that the demo prints.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
}

impl Style {
    /// The code that begins this style on a terminal.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[1;32m",
            Self::Bad => "\x1b[1;31m",
        }
    }

    /// The class of this style in an SVG.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Bold => "bold",
            Self::Dim => "dim",
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }
}
