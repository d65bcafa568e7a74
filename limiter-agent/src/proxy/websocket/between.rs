//! What the two directions of a connection tell each other: notices for the client, and that it is to be closed.
//!
//! Both directions are one task, so nothing here is locked.

use std::cell::{Cell, OnceCell, RefCell};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    client::Violation,
    frame::{self, Code},
};

/// Notices that wait, in bytes. They wait while a message of the app is under way, or the client does not read.
pub(super) const MAX_NOTICES: usize = 4 * 1024;

/// Why the connection is closed from here.
#[derive(Clone, Debug)]
pub(super) enum Closing {
    /// A message was refused; with what the client is told.
    Refused(String),
    Violation(Violation),
    Drain,
}

impl Closing {
    pub(super) fn to_client(&self) -> Vec<u8> {
        let (code, reason) = match self {
            Self::Refused(notice) => (Code::Policy, notice.clone()),
            Self::Violation(violation) => (Code::Protocol, violation.to_string()),
            Self::Drain => (Code::GoingAway, "the server is shutting down".to_owned()),
        };
        frame::close(code, &reason, None)
    }

    /// As a client says that it leaves: the app has done nothing wrong.
    pub(super) fn to_app(&self) -> Vec<u8> {
        let reason = match self {
            Self::Refused(_) => "closed by a rate limit",
            Self::Violation(_) => "the client broke the protocol",
            Self::Drain => "the proxy is shutting down",
        };
        frame::close(Code::GoingAway, reason, Some(rand::random()))
    }
}

/// What the two directions tell each other.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// Frames for the client that wait for a place between the app's messages.
    notices: RefCell<Vec<u8>>,
    /// There are some.
    noticed: Notify,
    /// There is room for more, or never will be.
    room: Notify,
    /// No notice can be placed at present.
    occupied: Cell<bool>,
    reason: OnceCell<Closing>,
    closing: CancellationToken,
}

impl Between {
    /// The first reason counts.
    pub(super) fn close(&self, reason: Closing) {
        let _ = self.reason.set(reason);
        self.closing.cancel();
    }

    /// The reason, once there is one.
    pub(super) async fn closing(&self) -> &Closing {
        self.closing.cancelled().await;
        self.reason.get().expect("set before it is told")
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Leaves a notice for the client.
    ///
    /// If there is no room, it waits for the client to read. Not so while a message of the app is under way, which may
    /// last and need the client's answers to end: then the client is told by the notices that wait, and this is left out.
    pub(super) async fn notice(&self, notice: &str) {
        let frame = frame::text(notice);
        while !self.leave(&frame) && !self.occupied.get() {
            self.room.notified().await;
        }
    }

    /// Once a notice was left.
    pub(super) async fn noticed(&self) {
        self.noticed.notified().await;
    }

    pub(super) fn has_notices(&self) -> bool {
        !self.notices.borrow().is_empty()
    }

    /// Those that wait, as frames.
    pub(super) fn take_notices(&self) -> Vec<u8> {
        self.notices.take()
    }

    /// Whether there was room for it.
    fn leave(&self, frame: &[u8]) -> bool {
        let mut notices = self.notices.borrow_mut();
        let room = notices.is_empty() || notices.len() + frame.len() <= MAX_NOTICES;
        if room {
            notices.extend(frame);
            self.noticed.notify_one();
        }
        room
    }

    /// Whether no notice can be placed for now, or ever again.
    pub(super) fn occupy(&self, occupied: bool) {
        self.occupied.set(occupied);
        self.room.notify_one();
    }
}
