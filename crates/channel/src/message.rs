//! The messages, and the tag of each.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use weir_wire::{Answer, ApplyReply, Goodbye, LevelsSent, Question, Rejection, Status, StatusRequest};

use crate::frame::{Frame, Outgoing};

/// The tags of the messages, for programs that write frames without this crate's types.
pub mod tag {
    /// The tag of [`ToAgent::Hello`](crate::ToAgent::Hello).
    pub const HELLO: u8 = 0;
    /// The tag of [`ToAgent::Snapshot`](crate::ToAgent::Snapshot).
    pub const SNAPSHOT: u8 = 1;
    /// The tag of [`ToAgent::StatusRequest`](crate::ToAgent::StatusRequest).
    pub const STATUS_REQUEST: u8 = 2;
    /// The tag of [`ToAgent::Answers`](crate::ToAgent::Answers).
    pub const ANSWERS: u8 = 3;
    /// The tag of [`ToOperator::Status`](crate::ToOperator::Status).
    pub const STATUS: u8 = 16;
    /// The tag of [`ToOperator::Unchanged`](crate::ToOperator::Unchanged).
    pub const UNCHANGED: u8 = 17;
    /// The tag of [`ToOperator::Acknowledgement`](crate::ToOperator::Acknowledgement).
    pub const ACKNOWLEDGEMENT: u8 = 18;
    /// The tag of [`ToOperator::Rejection`](crate::ToOperator::Rejection).
    pub const REJECTION: u8 = 19;
    /// The tag of [`ToOperator::Goodbye`](crate::ToOperator::Goodbye).
    pub const GOODBYE: u8 = 20;
    /// The tag of [`ToOperator::Questions`](crate::ToOperator::Questions).
    pub const QUESTIONS: u8 = 21;
    /// The tag of [`ToOperator::LevelsSent`](crate::ToOperator::LevelsSent).
    pub const LEVELS_SENT: u8 = 22;
}

/// A message from the operator to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToAgent {
    /// The first message on a connection without TLS. It selects this protocol, and has no other effect.
    Hello,
    /// The rules that the agent should enforce, as JSON of [`weir_wire::Snapshot`]. The agent parses this JSON, so that
    /// it can reject a fault with the name of the field.
    Snapshot(Vec<u8>),
    /// The interval at which the agent should send its status.
    StatusRequest(StatusRequest),
    /// The answers to questions about rules of scope Fleet, at most [`weir_wire::MOST_QUESTIONS`]. A message without
    /// answers says that the agent's share is over; the operator sends it again after it missed the agent.
    Answers(Vec<Answer>),
    /// A message that only later versions define.
    Unknown(u8),
}

/// A message from an agent to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToOperator {
    /// The snapshot in force, and the statistics of its rules.
    Status(Box<Status>),
    /// Nothing has changed since the last status, except for the time.
    Unchanged,
    /// The snapshot is in force.
    Acknowledgement(ApplyReply),
    /// The snapshot is not in force.
    Rejection(Box<Rejection>),
    /// The agent is about to close the connection.
    Goodbye(Goodbye),
    /// Questions about rules of scope Fleet, at most [`weir_wire::MOST_QUESTIONS`].
    Questions(Vec<Question>),
    /// The agent has sent all its levels or all units of its shares. When the channel opens, the agent sends a question
    /// for each level that it knows. When its share is over, the agent sends a question for each key that its share
    /// admitted.
    LevelsSent(LevelsSent),
    /// A message that only later versions define.
    Unknown(u8),
}

/// The reason why a message with a known tag is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{kind}: {error}")]
pub struct InvalidMessage {
    kind: &'static str,
    error: serde_json::Error,
}

/// Returns the frame of a snapshot. Its JSON is `start` followed by `shared`, which all agents with this content can
/// share. `None` if the JSON is longer than a frame.
pub fn snapshot(start: &str, shared: Bytes) -> Option<Outgoing> {
    Outgoing::ending_with(tag::SNAPSHOT, start.as_bytes(), shared)
}

impl ToAgent {
    /// Reads a frame.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]
    pub fn parse(frame: Frame) -> Result<Self, InvalidMessage> {
        Ok(match frame.tag {
            tag::HELLO => Self::Hello,
            tag::SNAPSHOT => Self::Snapshot(frame.payload),
            tag::STATUS_REQUEST => Self::StatusRequest(json("a status request", &frame.payload)?),
            tag::ANSWERS => Self::Answers(json("answers", &frame.payload)?),
            tag => Self::Unknown(tag),
        })
    }

    /// Returns the frame of this message. `None` if the message is longer than a frame.
    pub fn frame(&self) -> Option<Outgoing> {
        match self {
            Self::Hello => Outgoing::new(tag::HELLO, &[]),
            Self::Snapshot(snapshot) => Outgoing::new(tag::SNAPSHOT, snapshot),
            Self::StatusRequest(request) => frame(tag::STATUS_REQUEST, request),
            Self::Answers(answers) => frame(tag::ANSWERS, answers),
            Self::Unknown(tag) => Outgoing::new(*tag, &[]),
        }
    }
}

impl ToOperator {
    /// Reads a frame.
    ///
    /// # Errors
    ///
    /// [`InvalidMessage`]
    pub fn parse(frame: &Frame) -> Result<Self, InvalidMessage> {
        let payload = &frame.payload;
        Ok(match frame.tag {
            tag::STATUS => Self::Status(json("a status", payload)?),
            tag::UNCHANGED => Self::Unchanged,
            tag::ACKNOWLEDGEMENT => Self::Acknowledgement(json("an acknowledgement", payload)?),
            tag::REJECTION => Self::Rejection(json("a rejection", payload)?),
            tag::GOODBYE => Self::Goodbye(json("a goodbye", payload)?),
            tag::QUESTIONS => Self::Questions(json("questions", payload)?),
            tag::LEVELS_SENT => Self::LevelsSent(json("the end of levels", payload)?),
            tag => Self::Unknown(tag),
        })
    }

    /// Returns the frame of this message. `None` if the message is longer than a frame.
    pub fn frame(&self) -> Option<Outgoing> {
        match self {
            Self::Status(status) => frame(tag::STATUS, status),
            Self::Unchanged => Outgoing::new(tag::UNCHANGED, &[]),
            Self::Acknowledgement(reply) => frame(tag::ACKNOWLEDGEMENT, reply),
            Self::Rejection(rejection) => frame(tag::REJECTION, rejection),
            Self::Goodbye(goodbye) => frame(tag::GOODBYE, goodbye),
            Self::Questions(questions) => frame(tag::QUESTIONS, questions),
            Self::LevelsSent(sent) => frame(tag::LEVELS_SENT, sent),
            Self::Unknown(tag) => Outgoing::new(*tag, &[]),
        }
    }
}

fn frame(tag: u8, message: &impl Serialize) -> Option<Outgoing> {
    let payload = serde_json::to_vec(message).expect("messages are plain data, which always have a JSON form");
    Outgoing::new(tag, &payload)
}

fn json<T: DeserializeOwned>(kind: &'static str, payload: &[u8]) -> Result<T, InvalidMessage> {
    serde_json::from_slice(payload).map_err(|error| InvalidMessage { kind, error })
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use weir_wire::{BanChange, BanPart, Outcome, RejectionKind, SnapshotInForce};

    use super::*;
    use crate::frame::HEAD_BYTES;

    fn sent(frame: Outgoing) -> Frame {
        let mut buffer = frame.into_buf();
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Frame { tag: bytes[HEAD_BYTES - 1], payload: bytes[HEAD_BYTES..].to_vec() }
    }

    fn question() -> Question {
        Question {
            id: 7,
            counters: "shop/api.all".to_owned(),
            hash: "ff".to_owned(),
            stamp: 3,
            limits: "0 3 1 1000 5 0".to_owned(),
            requests: 1,
            cost: 1,
            patience_micros: 0,
            prefetch: 0,
            guard_micros: 0,
            lookahead_micros: 0,
            owed: 0,
            credit: 0,
            seen: None,
            returned: None,
            ban: Some(BanPart { for_micros: 5, change: BanChange::Start(2), seen: 0 }),
        }
    }

    #[test]
    fn messages_keep_their_tags_and_arrive_as_they_were_sent() {
        // Programs of other versions offer the same name.
        assert_eq!(crate::ALPN, b"weir/1");
        let in_force = SnapshotInForce { sequence: 1, revision: "a".to_owned(), since_unix_millis: 2 };
        let rejection =
            Rejection { error: RejectionKind::Stale, message: "old".to_owned(), faults: Vec::new(), in_force: None };
        let status = Status { in_force: Some(in_force.clone()), ..Status::default() };
        let goodbye = Goodbye { reason: "full".to_owned(), retry_after_millis: 5 };
        for (tag, message) in [
            (16, ToOperator::Status(Box::new(status))),
            (17, ToOperator::Unchanged),
            (18, ToOperator::Acknowledgement(ApplyReply { in_force })),
            (19, ToOperator::Rejection(Box::new(rejection))),
            (20, ToOperator::Goodbye(goodbye)),
            (21, ToOperator::Questions(vec![question()])),
            (22, ToOperator::LevelsSent(LevelsSent { is_complete: true, time: None, releases: 1 })),
            (99, ToOperator::Unknown(99)),
        ] {
            let frame = sent(message.frame().unwrap());
            assert_eq!((frame.tag, ToOperator::parse(&frame).unwrap()), (tag, message));
        }
        for (tag, message) in [
            (0, ToAgent::Hello),
            (1, ToAgent::Snapshot(b"{}".to_vec())),
            (2, ToAgent::StatusRequest(StatusRequest { every_millis: 1000 })),
            (3, ToAgent::Answers(vec![Answer { id: 7, outcome: Outcome::Refused("no".to_owned()) }])),
            (99, ToAgent::Unknown(99)),
        ] {
            let frame = sent(message.frame().unwrap());
            assert_eq!((frame.tag, ToAgent::parse(frame).unwrap()), (tag, message));
        }
        assert_eq!(sent(snapshot("{", Bytes::from_static(b"}")).unwrap()), Frame { tag: 1, payload: b"{}".to_vec() });
    }

    #[test]
    fn a_known_tag_with_another_content_is_refused_and_an_unknown_tag_is_not() {
        for tag in [16, 18, 19, 20] {
            let error = ToOperator::parse(&Frame { tag, payload: b"[]".to_vec() }).unwrap_err().to_string();
            assert!(error.starts_with("a"), "{error}");
        }
        assert!(ToOperator::parse(&Frame { tag: 21, payload: b"{}".to_vec() }).is_err());
        assert!(ToAgent::parse(Frame { tag: 3, payload: b"{}".to_vec() }).is_err());
        assert!(ToAgent::parse(Frame { tag: 2, payload: b"{}".to_vec() }).is_err());
        let later = Frame { tag: 23, payload: b"\xff".to_vec() };
        assert_eq!(ToOperator::parse(&later).unwrap(), ToOperator::Unknown(23));
        assert_eq!(ToAgent::parse(later).unwrap(), ToAgent::Unknown(23));
    }
}
