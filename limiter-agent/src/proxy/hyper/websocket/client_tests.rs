//! Tests the parsing of frames that another implementation wrote, in pieces of any size.

use proptest::{collection::vec, prelude::*, sample::Index};
use tokio_tungstenite::tungstenite::protocol::frame::{
    FrameHeader,
    coding::{Control, Data, OpCode},
};

use super::*;

/// The result for all bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    passed: Vec<u8>,
    dropped: usize,
    messages: usize,
    violation: Option<Violation>,
    closed: bool,
}

/// Parses `bytes` in pieces that end at `cuts`. Each message gets the next verdict of `verdicts`. After the last one,
/// the list starts again.
fn run(bytes: &[u8], cuts: &[usize], verdicts: &[bool]) -> Outcome {
    let mut frames = ClientFrames::default();
    let mut outcome = Outcome::default();
    let mut at = 0;
    'pieces: for &end in cuts.iter().chain([&bytes.len()]) {
        loop {
            match frames.next(&bytes[at..end]) {
                Ok(Step::Pass(length)) => {
                    outcome.passed.extend(&bytes[at..at + length]);
                    at += length;
                }
                Ok(Step::Drop(length)) => {
                    outcome.dropped += length;
                    at += length;
                }
                Ok(Step::Message) => {
                    if verdicts[outcome.messages % verdicts.len()] {
                        frames.admit();
                    } else {
                        frames.refuse();
                    }
                    outcome.messages += 1;
                }
                Ok(Step::More) => break,
                Err(violation) => {
                    assert!(frames.takes_control(), "a close can be inserted here");
                    outcome.violation = Some(violation);
                    break 'pieces;
                }
            }
        }
    }
    outcome.closed = frames.closed();
    outcome
}

/// A frame in its wire form, written by tungstenite.
fn frame(last: bool, opcode: OpCode, payload: &[u8]) -> Vec<u8> {
    let mask = [0xa1, 0xb2, 0xc3, 0xd4];
    let header = FrameHeader { is_final: last, opcode, mask: Some(mask), ..FrameHeader::default() };
    let mut bytes = Vec::new();
    header.format(payload.len() as u64, &mut bytes).unwrap();
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// Payloads with lengths around those at which the header's form changes.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![0..4_usize, 124..128_usize, 65_534..65_538_usize].prop_map(|length| vec![b'x'; length])
}

fn control() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![Just(Control::Ping), Just(Control::Pong)];
    (opcode, vec(any::<u8>(), 0..=125)).prop_map(|(opcode, payload)| frame(true, OpCode::Control(opcode), &payload))
}

/// A frame of a message: the control frames before it, and its payload.
type Fragment = (Vec<Vec<u8>>, Vec<u8>);

fn message() -> impl Strategy<Value = (Data, Vec<Fragment>)> {
    let opcode = prop_oneof![Just(Data::Text), Just(Data::Binary)];
    (opcode, vec((vec(control(), 0..2), payload()), 1..4))
}

proptest! {
    #[test]
    fn admitted_messages_and_control_frames_pass_as_they_came(
        messages in vec(message(), 0..6),
        closes in any::<bool>(),
        verdicts in vec(any::<bool>(), 1..6),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        let mut dropped = 0;
        for (number, (opcode, frames)) in messages.iter().enumerate() {
            for (index, (controls, payload)) in frames.iter().enumerate() {
                for control in controls {
                    bytes.extend(control);
                    expected.extend(control);
                }
                let opcode = OpCode::Data(if index == 0 { *opcode } else { Data::Continue });
                let frame = frame(index + 1 == frames.len(), opcode, payload);
                bytes.extend(&frame);
                if verdicts[number % verdicts.len()] {
                    expected.extend(&frame);
                } else {
                    dropped += frame.len();
                }
            }
        }
        if closes {
            let close = frame(true, OpCode::Control(Control::Close), &[0x03, 0xe8]);
            bytes.extend(&close);
            expected.extend(&close);
            let more = frame(true, OpCode::Data(Data::Text), b"after the end");
            bytes.extend(&more);
            dropped += more.len();
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let outcome = run(&bytes, &cuts, &verdicts);
        let expected =
            Outcome { passed: expected, dropped, messages: messages.len(), violation: None, closed: closes };
        prop_assert!(outcome == expected, "{} of {} bytes passed", outcome.passed.len(), expected.passed.len());
    }

    /// For all input, in all pieces, the app never gets bytes that it could misinterpret.
    #[test]
    fn only_valid_frames_in_order_pass(
        bytes in anything(),
        verdicts in vec(any::<bool>(), 1..4),
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let outcome = run(&bytes, &cuts, &verdicts);
        prop_assert_eq!(&outcome, &run(&bytes, &[], &verdicts), "the result must not depend on the pieces");
        let each: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&outcome, &run(&bytes, &each, &verdicts), "the result must not depend on the pieces, even single bytes");

        let (mut at, mut in_message, mut closed) = (0, false, false);
        while at < outcome.passed.len() {
            prop_assert!(!closed, "nothing follows a close");
            let mut rest = std::io::Cursor::new(&outcome.passed[at..]);
            let (header, length) = FrameHeader::parse(&mut rest).unwrap().expect("a whole header");
            prop_assert!(header.mask.is_some() && !header.rsv1 && !header.rsv2 && !header.rsv3);
            match header.opcode {
                OpCode::Control(control) => {
                    prop_assert!(header.is_final && length <= 125);
                    closed = control == Control::Close;
                }
                OpCode::Data(Data::Continue) => {
                    prop_assert!(in_message);
                    in_message = !header.is_final;
                }
                OpCode::Data(_) => {
                    prop_assert!(!in_message);
                    in_message = !header.is_final;
                }
            }
            let whole = rest.position() + length;
            prop_assert!(whole <= (outcome.passed.len() - at) as u64 || outcome.violation.is_none());
            at = at.saturating_add(usize::try_from(whole).unwrap_or(usize::MAX));
        }
    }
}

/// Bytes that are valid frames more often than random bytes would be.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let begins = prop_oneof![
        8 => prop_oneof![Just(0x01_u8), Just(0x81), Just(0x02), Just(0x00), Just(0x80), Just(0x89), Just(0x88)],
        1 => any::<u8>(),
    ];
    let length = prop_oneof![16 => 0x80..0x86_u8, 1 => any::<u8>()];
    let one = (begins, length, any::<[u8; 4]>()).prop_flat_map(|(first, second, mask)| {
        let length = usize::from(second & 0x7f);
        vec(any::<u8>(), if length < 126 { length..=length } else { 0..=12 })
            .prop_map(move |rest| [&[first, second][..], &mask, &rest].concat())
    });
    vec(one, 0..24).prop_map(|frames| frames.concat())
}

#[test]
fn each_violation_is_found_at_the_header() {
    let mask = [1, 2, 3, 4];
    let masked = |first: u8, second: u8| [&[first, 0x80 | second][..], &mask].concat();
    for (bytes, violation) in [
        (masked(0xc1, 0), Violation::Reserved),
        (masked(0xa1, 0), Violation::Reserved),
        (masked(0x99, 0), Violation::Reserved),
        (masked(0x83, 0), Violation::Opcode),
        (masked(0x8b, 0), Violation::Opcode),
        (vec![0x81, 0], Violation::Unmasked),
        (vec![0x88, 0], Violation::Unmasked),
        (vec![0x81, 0xfe, 0, 125, 1, 2, 3, 4], Violation::Length),
        (vec![0x81, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4], Violation::Length),
        (vec![0x81, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], Violation::Length),
        (vec![0x89, 0xfe, 0, 126, 1, 2, 3, 4], Violation::LongControl),
        (masked(0x09, 0), Violation::FragmentedControl),
        (masked(0x80, 0), Violation::Continuation),
        (masked(0x00, 0), Violation::Continuation),
        ([masked(0x01, 0), masked(0x81, 0)].concat(), Violation::Interleaved),
        ([masked(0x01, 0), masked(0x89, 0), masked(0x02, 0)].concat(), Violation::Interleaved),
        ([masked(0x01, 0), masked(0x80, 0), masked(0x80, 0)].concat(), Violation::Continuation),
    ] {
        for verdict in [true, false] {
            let outcome = run(&bytes, &[], &[verdict]);
            assert_eq!(outcome.violation, Some(violation), "{bytes:x?}");
        }
    }
}

#[test]
fn each_message_is_decided_once() {
    // The first frame announces 2^30 bytes. The decision must not wait for them.
    let first = [&[0x02, 0xff][..], &(1_u64 << 30).to_be_bytes(), &[0; 4]].concat();
    let mut frames = ClientFrames::default();
    assert_eq!(frames.next(&first[..13]), Ok(Step::More));
    assert_eq!(frames.next(&first), Ok(Step::Message));
    assert_eq!(frames.next(&first), Ok(Step::Message), "until there is a decision");
    frames.refuse();
    assert_eq!(frames.next(&first), Ok(Step::Drop(14)));
    assert!(frames.takes_control(), "the app has received nothing of the message");
    let part = vec![0; 1 << 16];
    for _ in 0..1 << 14 {
        assert_eq!(frames.next(&part), Ok(Step::Drop(1 << 16)));
    }
    assert_eq!(frames.next(&[]), Ok(Step::More));
    let end = [0x80, 0x80, 0, 0, 0, 0];
    assert_eq!(frames.next(&end), Ok(Step::Drop(6)));
    assert_eq!(frames.next(&[0x81, 0x80, 0, 0, 0, 0]), Ok(Step::Message));
}
