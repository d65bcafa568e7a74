//! What a contender decides on the requests of a world.

/// A decision on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Decision {
    pub(in super::super) begun: u64,
    pub(in super::super) ended: u64,
    pub(in super::super) is_admitted: bool,
}

impl Decision {
    pub(in super::super) fn at_once(at: u64, is_admitted: bool) -> Self {
        Self { begun: at, ended: at, is_admitted }
    }
}

/// The decisions on all requests, in the order of the requests, and the messages that they needed.
#[derive(Debug)]
pub(in super::super) struct Run {
    pub(in super::super) decisions: Vec<Decision>,
    pub(in super::super) messages: u64,
}
