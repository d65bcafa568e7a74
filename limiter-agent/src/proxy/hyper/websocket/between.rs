//! The state that the two directions of a connection share: notices for the client, and the reason to close.
//!
//! One task runs both directions, so this state needs no lock.

use std::cell::{Cell, RefCell};

use tokio::sync::{Notify, SetOnce};
use tokio_util::sync::CancellationToken;

use super::{
    client::Violation,
    frame::{self, Code},
};

/// The maximum number of bytes of waiting notices. Notices wait while the app sends a message, or while the client does
/// not read.
pub(super) const MAX_NOTICES: usize = 4 * 1024;

/// The reason why the agent closes the connection.
#[derive(Clone, Debug)]
pub(super) enum Closing {
    /// A message was refused. The value is the text for the client.
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

    /// The close frame for the app. It has the code of a client that leaves, because the app violated nothing.
    pub(super) fn to_app(&self) -> Vec<u8> {
        let reason = match self {
            Self::Refused(_) => "closed by a rate limit",
            Self::Violation(_) => "the client broke the protocol",
            Self::Drain => "the proxy is shutting down",
        };
        frame::close(Code::GoingAway, reason, Some(rand::random()))
    }
}

/// The state that the two directions share.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// Frames for the client that wait for a gap between the app's messages.
    notices: RefCell<Vec<u8>>,
    /// Notified when a notice was added.
    noticed: Notify,
    /// Notified when there is space for more notices, or when there will never be any.
    room: Notify,
    /// No notice can be inserted now.
    occupied: Cell<bool>,
    closing: SetOnce<Closing>,
    app_left: CancellationToken,
}

impl Between {
    /// Closes the connection. Only the first reason is kept.
    pub(super) fn close(&self, reason: Closing) {
        let _ = self.closing.set(reason);
    }

    /// Returns the reason once there is one.
    pub(super) async fn closing(&self) -> &Closing {
        self.closing.wait().await
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.initialized()
    }

    /// Records that the app has closed its side.
    pub(super) fn leave_app(&self) {
        self.app_left.cancel();
    }

    /// Returns once the app has closed its side.
    pub(super) async fn app_left(&self) {
        self.app_left.cancelled().await;
    }

    /// Queues a notice for the client.
    ///
    /// If the queue is full, this function waits until the client reads. If the app is in the middle of a message, the
    /// function drops the notice instead: the message can take a long time, and its end can depend on data of the
    /// client. The notices in the queue are enough to inform the client.
    pub(super) async fn notice(&self, notice: &str) {
        let frame = frame::text(notice);
        while !self.leave(&frame) && !self.occupied.get() {
            self.room.notified().await;
        }
    }

    /// Returns once a notice was queued.
    pub(super) async fn noticed(&self) {
        self.noticed.notified().await;
    }

    pub(super) fn has_notices(&self) -> bool {
        !self.notices.borrow().is_empty()
    }

    /// Takes the queued notices, as frames.
    pub(super) fn take_notices(&self) -> Vec<u8> {
        self.notices.take()
    }

    /// Queues a frame. Returns false if the queue is full.
    fn leave(&self, frame: &[u8]) -> bool {
        let mut notices = self.notices.borrow_mut();
        let room = notices.is_empty() || notices.len() + frame.len() <= MAX_NOTICES;
        if room {
            notices.extend(frame);
            self.noticed.notify_one();
        }
        room
    }

    /// Sets whether notices cannot be inserted, for now or forever.
    pub(super) fn occupy(&self, occupied: bool) {
        self.occupied.set(occupied);
        self.room.notify_one();
    }
}
