//! Each rule of the protocol, on bytes.

use http::{Method, StatusCode};

use super::*;
use crate::frame::flag::{ACK, END_HEADERS, END_STREAM, PADDED};
use crate::frame::kind::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::hpack;

#[path = "codec_endurance_tests.rs"]
mod endurance;
#[path = "codec_streamed_tests.rs"]
mod streamed;

/// A frame: kind, flags, stream, payload.
type Frame = (u8, u8, u32, Vec<u8>);

fn bytes(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, flags, stream, payload) in frames {
        let length = u32::try_from(payload.len()).unwrap();
        bytes.extend_from_slice(&length.to_be_bytes()[1..]);
        bytes.extend_from_slice(&[*kind, *flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
    }
    bytes
}

fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk() {
        let head = FrameHead::read(*head);
        let (payload, rest) = rest.split_at(head.length as usize);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        bytes = rest;
    }
    frames
}

/// All that it has to send.
fn drain(codec: &mut Codec) -> Vec<u8> {
    let mut sent = Vec::new();
    loop {
        let next = codec.outgoing().to_vec();
        if next.is_empty() {
            return sent;
        }
        codec.sent(next.len());
        sent.extend(next);
    }
}

fn give(codec: &mut Codec, given: &[Frame]) -> Result<(), Error> {
    codec.receive(&bytes(given))
}

fn settings(entries: &[(u16, u32)]) -> Frame {
    let entries = entries.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
    (SETTINGS, 0, 0, entries.collect())
}

fn window_update(stream: u32, increment: u32) -> Frame {
    (WINDOW_UPDATE, 0, stream, increment.to_be_bytes().to_vec())
}

fn goaway(last: u32, reason: Reason) -> Frame {
    (GOAWAY, 0, 0, [last.to_be_bytes(), reason.code().to_be_bytes()].concat())
}

fn rst(stream: u32, reason: Reason) -> Frame {
    (RST_STREAM, 0, stream, reason.code().to_be_bytes().to_vec())
}

fn head(flags: u8, stream: u32, fields: &[(&str, &str)]) -> Frame {
    let mut block = Vec::new();
    for (name, value) in fields {
        hpack::encode(name, value.as_bytes(), &mut block);
    }
    (HEADERS, flags | END_HEADERS, stream, block)
}

fn data(flags: u8, stream: u32, part: &[u8]) -> Frame {
    (DATA, flags, stream, part.to_vec())
}

fn request(method: Method, body: Bytes) -> Request<'static> {
    let fields = const { &[(http::header::IF_NONE_MATCH, b"W/\"a\"".as_slice())] };
    Request { method, authority: "10.0.0.1:8481", path: "/v1/status", fields, body }
}

/// Both have said their first words.
fn greeted() -> Codec {
    let mut codec = Codec::new();
    give(&mut codec, &[settings(&[]), (SETTINGS, ACK, 0, vec![])]).unwrap();
    drain(&mut codec);
    codec
}

/// A question was sent, on stream 1.
fn asked(method: Method, body: &'static [u8]) -> Codec {
    let mut codec = greeted();
    codec.start(request(method, Bytes::from_static(body))).unwrap();
    drain(&mut codec);
    codec
}

fn get() -> Codec {
    asked(Method::GET, b"")
}

/// The code that the peer is told at the end.
fn told(codec: &mut Codec) -> Option<u32> {
    match frames(&drain(codec)).last() {
        Some((GOAWAY, 0, 0, payload)) => Some(u32::from_be_bytes(payload[4..].try_into().unwrap())),
        _ => None,
    }
}

/// What it holds beside an exchange.
fn held(codec: &Codec) -> usize {
    codec.out.capacity() + codec.partial.capacity() + codec.block.as_ref().map_or(0, |block| block.bytes.capacity())
}

#[test]
fn the_first_words_are_those_of_the_standard() {
    let sent = drain(&mut Codec::new());
    let rest = sent.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let ours = settings(&[(1, 0), (2, 0), (4, 1 << 20), (5, 16_384), (6, 16_384)]);
    assert_eq!(frames(rest), [ours, window_update(0, (1 << 20) - 65_535)]);
}

#[test]
fn a_question_is_asked_in_full() {
    let mut codec = greeted();
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    let sent = frames(&drain(&mut codec));
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "10.0.0.1:8481"),
        (":path", "/v1/status"),
        ("if-none-match", "W/\"a\""),
    ];
    assert_eq!(sent, [head(END_STREAM, 1, &fields)]);
    give(&mut codec, &[head(END_STREAM, 1, &[(":status", "304")])]).unwrap();
    codec.take_outcome().unwrap().unwrap();

    codec.start(request(Method::PUT, Bytes::from_static(b"body"))).unwrap();
    let sent = frames(&drain(&mut codec));
    let with_length = [&[(":method", "PUT")], &fields[1..], &[("content-length", "4")]].concat();
    assert_eq!(sent, [head(0, 3, &with_length), data(END_STREAM, 3, b"body")]);
}

#[test]
fn what_cannot_be_sent_is_refused_and_nothing_is_sent() {
    let mut codec = greeted();
    let long = vec![b'a'; 17_000];
    let good = request(Method::GET, Bytes::new());
    let newline = [(http::header::ETAG, b"a\nb".as_slice())];
    let long = [(http::header::ETAG, long.as_slice())];
    for bad in [
        Request { authority: "", ..good.clone() },
        Request { path: "/a b", ..good.clone() },
        Request { fields: &newline, ..good.clone() },
        Request { fields: &long, ..good.clone() },
    ] {
        assert!(matches!(codec.start(bad), Err(Error::Request(_))));
        assert_eq!(drain(&mut codec), b"");
    }
}

#[test]
fn whatever_breaks_the_protocol_ends_the_connection_with_its_code() {
    use Reason as R;
    const OK: &[(&str, &str)] = &[(":status", "200")];
    let answer = || head(END_STREAM, 1, OK);
    let long = vec![0; 16_385];
    let settings_with_value = |name, value| settings(&[(name, value)]);
    for (what, given, reason) in [
        ("DATA on no stream", vec![data(0, 0, b"a")], R::PROTOCOL_ERROR),
        ("DATA on an idle stream", vec![data(0, 3, b"a")], R::PROTOCOL_ERROR),
        ("DATA on a stream of the server", vec![data(0, 2, b"a")], R::PROTOCOL_ERROR),
        ("DATA before HEADERS", vec![data(0, 1, b"a")], R::PROTOCOL_ERROR),
        ("DATA after the end", vec![answer(), data(0, 1, b"a")], R::STREAM_CLOSED),
        ("too much padding", vec![head(0, 1, OK), data(PADDED, 1, b"\x02a")], R::PROTOCOL_ERROR),
        ("no padding at all", vec![head(0, 1, OK), data(PADDED, 1, b"")], R::FRAME_SIZE_ERROR),
        ("HEADERS on no stream", vec![head(0, 0, OK)], R::PROTOCOL_ERROR),
        ("HEADERS on an idle stream", vec![head(0, 5, OK)], R::PROTOCOL_ERROR),
        ("HEADERS on a stream of the server", vec![head(0, 2, OK)], R::PROTOCOL_ERROR),
        ("HEADERS after the end", vec![answer(), head(0, 1, OK)], R::STREAM_CLOSED),
        ("a head that cannot be read", vec![(HEADERS, END_HEADERS, 1, vec![0xbe])], R::COMPRESSION_ERROR),
        ("a table that was not allowed", vec![(HEADERS, END_HEADERS, 1, vec![0x21, 0x88])], R::COMPRESSION_ERROR),
        ("trailers without the end", vec![head(0, 1, OK), head(0, 1, &[("a", "b")])], R::PROTOCOL_ERROR),
        ("trailers with a status", vec![head(0, 1, OK), answer()], R::PROTOCOL_ERROR),
        ("PRIORITY on no stream", vec![(PRIORITY, 0, 0, vec![0; 5])], R::PROTOCOL_ERROR),
        ("PRIORITY of four bytes", vec![(PRIORITY, 0, 1, vec![0; 4])], R::FRAME_SIZE_ERROR),
        ("RST_STREAM on no stream", vec![rst(0, R::CANCEL)], R::PROTOCOL_ERROR),
        ("RST_STREAM on an idle stream", vec![rst(3, R::CANCEL)], R::PROTOCOL_ERROR),
        ("RST_STREAM of three bytes", vec![(RST_STREAM, 0, 1, vec![0; 3])], R::FRAME_SIZE_ERROR),
        ("SETTINGS on a stream", vec![(SETTINGS, 0, 1, vec![])], R::PROTOCOL_ERROR),
        ("SETTINGS of seven bytes", vec![(SETTINGS, 0, 0, vec![0; 7])], R::FRAME_SIZE_ERROR),
        ("an ACK with settings", vec![(SETTINGS, ACK, 0, vec![0; 6])], R::FRAME_SIZE_ERROR),
        ("an ACK of nothing", vec![(SETTINGS, ACK, 0, vec![])], R::PROTOCOL_ERROR),
        ("ENABLE_PUSH", vec![settings_with_value(2, 1)], R::PROTOCOL_ERROR),
        ("a window of 2^31", vec![settings_with_value(4, 1 << 31)], R::FLOW_CONTROL_ERROR),
        ("frames of 16383", vec![settings_with_value(5, 16_383)], R::PROTOCOL_ERROR),
        ("PUSH_PROMISE", vec![(PUSH_PROMISE, END_HEADERS, 1, vec![0, 0, 0, 2, 0x88])], R::PROTOCOL_ERROR),
        ("PING on a stream", vec![(PING, 0, 1, vec![0; 8])], R::PROTOCOL_ERROR),
        ("PING of seven bytes", vec![(PING, 0, 0, vec![0; 7])], R::FRAME_SIZE_ERROR),
        ("GOAWAY on a stream", vec![(GOAWAY, 0, 1, vec![0; 8])], R::PROTOCOL_ERROR),
        ("GOAWAY of seven bytes", vec![(GOAWAY, 0, 0, vec![0; 7])], R::FRAME_SIZE_ERROR),
        ("a later GOAWAY", vec![goaway(1, R::NO_ERROR), goaway(3, R::NO_ERROR)], R::PROTOCOL_ERROR),
        ("WINDOW_UPDATE of three bytes", vec![(WINDOW_UPDATE, 0, 0, vec![0; 3])], R::FRAME_SIZE_ERROR),
        ("WINDOW_UPDATE by nothing", vec![window_update(0, 0)], R::PROTOCOL_ERROR),
        ("the same of a stream", vec![window_update(1, 0)], R::PROTOCOL_ERROR),
        ("WINDOW_UPDATE on an idle stream", vec![window_update(7, 1)], R::PROTOCOL_ERROR),
        ("WINDOW_UPDATE beyond the bound", vec![window_update(0, MAX_31)], R::FLOW_CONTROL_ERROR),
        ("the same of a stream", vec![window_update(1, MAX_31)], R::FLOW_CONTROL_ERROR),
        (
            "a stream's window that settings make too large",
            vec![window_update(1, MAX_31 - 65_535), settings_with_value(4, 65_536)],
            R::FLOW_CONTROL_ERROR,
        ),
        ("CONTINUATION of nothing", vec![(CONTINUATION, END_HEADERS, 1, vec![0x88])], R::PROTOCOL_ERROR),
        ("CONTINUATION after the end of a head", vec![head(0, 1, OK), (CONTINUATION, 4, 1, vec![])], R::PROTOCOL_ERROR),
        ("a head that is interrupted", vec![(HEADERS, 0, 1, vec![0x88]), window_update(0, 1)], R::PROTOCOL_ERROR),
        ("the same by something unknown", vec![(HEADERS, 0, 1, vec![0x88]), (0x77, 0, 0, vec![])], R::PROTOCOL_ERROR),
        (
            "a head that goes on elsewhere",
            vec![(HEADERS, 0, 1, vec![0x88]), (CONTINUATION, END_HEADERS, 3, vec![])],
            R::PROTOCOL_ERROR,
        ),
        ("a frame that is too long", vec![(DATA, 0, 1, long.clone())], R::FRAME_SIZE_ERROR),
        ("the same of an unknown kind", vec![(0x77, 0, 0, long.clone())], R::FRAME_SIZE_ERROR),
        (
            "a head that is too long",
            vec![(HEADERS, 0, 1, vec![0x88; 16_384]), (CONTINUATION, END_HEADERS, 1, vec![0x88])],
            R::ENHANCE_YOUR_CALM,
        ),
    ] {
        let given = bytes(&given);
        for step in [1, given.len()] {
            let mut codec = get();
            let error = given.chunks(step).try_for_each(|part| codec.receive(part)).expect_err(what);
            assert!(matches!(error, Error::Protocol(_) | Error::Answer(_)), "{what}: {error:?}");
            assert_eq!(told(&mut codec), Some(reason.code()), "{what}: {error}");
            assert!(matches!(codec.receive(b"a"), Err(Error::Closed)), "{what}: nothing more is taken");
            assert!(matches!(codec.end(), Some(Error::Closed)), "{what}");
            assert!(codec.start(request(Method::GET, Bytes::new())).is_err(), "{what}");
        }
    }
}

#[test]
fn the_first_frame_must_be_settings() {
    for first in [(PING, 0, 0, vec![0; 8]), (SETTINGS, ACK, 0, vec![]), goaway(0, Reason::NO_ERROR)] {
        let mut codec = Codec::new();
        assert!(give(&mut codec, std::slice::from_ref(&first)).is_err(), "{first:?}");
    }
    let mut codec = Codec::new();
    assert!(codec.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_err());
}

#[test]
fn what_has_no_meaning_changes_nothing() {
    let answer = [head(0, 1, &[(":status", "200")]), data(END_STREAM, 1, b"ok")];
    for (what, more) in [
        ("an unknown kind", (0x77, 0xff, 1, vec![1; 100])),
        ("an unknown kind on no stream", (0x77, 0xff, 0, vec![])),
        ("PRIORITY", (PRIORITY, 0, 9, vec![0; 5])),
        ("an ACK of a PING", (PING, ACK, 0, vec![0; 8])),
        ("an unknown setting", settings(&[(0x99, 1)])),
        ("an empty DATA", data(0, 1, b"")),
        ("only padding", data(PADDED, 1, b"\x03\0\0\0")),
    ] {
        let mut codec = get();
        give(&mut codec, &answer[..1]).unwrap();
        give(&mut codec, &[more]).expect(what);
        give(&mut codec, &answer[1..]).expect(what);
        assert_eq!(codec.take_outcome().unwrap().unwrap().body(), "ok", "{what}");
    }
}

#[test]
fn an_answer_is_read_however_it_is_cut() {
    let mut head = head(0, 1, &[(":status", "200"), ("etag", "W/\"a\""), ("content-length", "6")]);
    // With a priority, in three parts, with padding.
    let rest = head.3.split_off(4);
    head = (HEADERS, 0x20 | PADDED, 1, [&[2, 0, 0, 0, 0, 9][..], &head.3, &[0, 0]].concat());
    let given = bytes(&[
        settings(&[]),
        (HEADERS, END_HEADERS, 1, vec![0x08, 3, b'1', b'0', b'3']),
        head,
        (CONTINUATION, 0, 1, rest[..5].to_vec()),
        (CONTINUATION, END_HEADERS, 1, rest[5..].to_vec()),
        data(PADDED, 1, b"\x01abc_"),
        (PING, 0, 0, b"12345678".to_vec()),
        data(0, 1, b"def"),
        (HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01a\x01b".to_vec()),
    ]);
    for step in 1..given.len() {
        let mut codec = get();
        for part in given.chunks(step) {
            assert!(codec.take_outcome().is_none());
            codec.receive(part).unwrap();
        }
        let answer = codec.take_outcome().expect("it has ended").unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::OK, &b"abcdef"[..]));
        assert_eq!(answer.headers()["etag"], "W/\"a\"");
        assert_eq!(answer.headers().len(), 2, "no trailers");
        let said = frames(&drain(&mut codec));
        assert_eq!(said, [(SETTINGS, ACK, 0, vec![]), (PING, ACK, 0, b"12345678".to_vec())]);
        drain(&mut codec);
        assert_eq!(held(&codec), 0, "nothing is held at rest");
    }
}

#[test]
fn answers_are_no_longer_and_no_shorter_than_they_say() {
    let (get, head_only) = (Method::GET, Method::HEAD);
    let with = |status: &'static str, length: &'static str| vec![(":status", status), ("content-length", length)];
    for (what, asked_by, fields, body, expected) in [
        ("no length", &get, vec![(":status", "200")], Some("abc"), Ok("abc")),
        ("the right length", &get, with("200", "3"), Some("abc"), Ok("abc")),
        ("too short", &get, with("200", "4"), Some("abc"), Err(())),
        ("too long", &get, with("200", "2"), Some("abc"), Err(())),
        ("missing", &get, with("200", "2"), None, Err(())),
        ("none", &get, with("200", "0"), None, Ok("")),
        ("HEAD", &head_only, with("200", "3"), None, Ok("")),
        ("HEAD with a body", &head_only, with("200", "3"), Some("abc"), Err(())),
        ("204", &get, vec![(":status", "204")], None, Ok("")),
        ("204 with a body", &get, vec![(":status", "204")], Some("abc"), Err(())),
        ("304 with a length", &get, with("304", "3"), None, Ok("")),
        ("304 with an empty body", &get, with("304", "3"), Some(""), Ok("")),
        ("304 with a body", &get, with("304", "3"), Some("abc"), Err(())),
    ] {
        let mut codec = asked(asked_by.clone(), b"");
        let ends = if body.is_none() { END_STREAM } else { 0 };
        let mut given = vec![head(ends, 1, &fields)];
        given.extend(body.map(|body| data(END_STREAM, 1, body.as_bytes())));
        let outcome = give(&mut codec, &given);
        match expected {
            Ok(expected) => assert_eq!(codec.take_outcome().unwrap().unwrap().body(), expected, "{what}"),
            Err(()) => assert!(matches!(outcome, Err(Error::Answer(_))), "{what}: {outcome:?}"),
        }
    }
}

#[test]
fn interim_heads_are_skipped_within_bounds() {
    let interim = |status| head(0, 1, &[(":status", status)]);
    let end = || head(END_STREAM, 1, &[(":status", "200")]);
    for (what, given, is_good) in [
        ("8", [vec![interim("100"); 8], vec![end()]].concat(), true),
        ("9", vec![interim("103"); 9], false),
        ("101", vec![interim("101")], false),
        ("an end", vec![head(END_STREAM, 1, &[(":status", "100")])], false),
        ("no answer", vec![interim("100"), data(0, 1, b"a")], false),
    ] {
        assert_eq!(give(&mut get(), &given).is_ok(), is_good, "{what}");
    }
}

#[test]
fn a_body_keeps_to_both_windows_and_to_changes_of_them() {
    let mut codec = greeted();
    give(&mut codec, &[settings(&[(4, 10)])]).unwrap();
    drain(&mut codec);
    codec.start(request(Method::PUT, vec![b'a'; 200_000].into())).unwrap();
    let sent = |codec: &mut Codec, given: &[Frame]| -> usize {
        give(codec, given).unwrap();
        let data = frames(&drain(codec)).into_iter().filter(|frame| frame.0 == DATA);
        let parts: Vec<_> = data.map(|frame| (frame.1, frame.3.len())).collect();
        assert!(parts.iter().all(|(flags, length)| *flags == 0 && *length <= 16_384), "{parts:?}");
        parts.into_iter().map(|(_, length)| length).sum()
    };
    assert_eq!(sent(&mut codec, &[]), 10);
    assert_eq!(sent(&mut codec, &[window_update(1, 5)]), 5);
    assert_eq!(sent(&mut codec, &[settings(&[(4, 0)])]), 0);
    assert_eq!(sent(&mut codec, &[window_update(1, 10)]), 0, "it was at -10");
    assert_eq!(sent(&mut codec, &[settings(&[(4, 1)])]), 1);
    assert_eq!(sent(&mut codec, &[settings(&[(4, 1 << 20)])]), 65_535 - 16, "the connection's");
    assert_eq!(sent(&mut codec, &[window_update(0, 1)]), 1);
    give(&mut codec, &[window_update(0, 1 << 20)]).unwrap();
    let last = frames(&drain(&mut codec)).pop().unwrap();
    assert_eq!(last.1, END_STREAM);
    assert_eq!(codec.window.left(), 65_535 + 1 + (1 << 20) - 200_000);
}

#[test]
fn a_question_waits_until_there_is_room_for_it() {
    let mut codec = greeted();
    give(&mut codec, &[settings(&[(3, 0)])]).unwrap();
    drain(&mut codec);
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    assert_eq!(drain(&mut codec), b"");
    give(&mut codec, &[settings(&[(3, 1)])]).unwrap();
    let sent = frames(&drain(&mut codec));
    assert_eq!((sent[1].0, sent[1].2), (HEADERS, 1));
}

#[test]
fn a_peer_that_goes_away_finishes_what_it_took() {
    for (last, is_taken) in [(MAX_31, true), (1, true), (0, false)] {
        let mut codec = get();
        give(&mut codec, &[goaway(last, Reason::NO_ERROR)]).unwrap();
        if is_taken {
            assert!(codec.take_outcome().is_none() && codec.end().is_none());
            give(&mut codec, &[head(END_STREAM, 1, &[(":status", "200")])]).unwrap();
            codec.take_outcome().unwrap().unwrap();
        } else {
            assert!(matches!(codec.take_outcome(), Some(Err(Error::NotTaken(_)))));
        }
        assert!(matches!(codec.end(), Some(Error::GoneAway(Reason::NO_ERROR))));
        assert!(matches!(codec.start(request(Method::GET, Bytes::new())), Err(Error::GoneAway(_))));
    }
    // Nor is anything taken that has not been sent.
    let mut codec = greeted();
    give(&mut codec, &[settings(&[(3, 0)])]).unwrap();
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    give(&mut codec, &[goaway(MAX_31, Reason::NO_ERROR)]).unwrap();
    assert!(matches!(codec.take_outcome(), Some(Err(Error::NotTaken(_)))));
}

#[test]
fn a_reset_ends_the_exchange_and_not_the_connection() {
    for (reason, is_retriable) in [(Reason::REFUSED_STREAM, true), (Reason::CANCEL, false), (Reason::NO_ERROR, false)] {
        let mut codec = get();
        give(&mut codec, &[rst(1, reason)]).unwrap();
        match codec.take_outcome() {
            Some(Err(Error::NotTaken(_))) => assert!(is_retriable),
            Some(Err(Error::Reset(told))) => assert!(!is_retriable && told == reason),
            other => panic!("{other:?}"),
        }
        codec.start(request(Method::GET, Bytes::new())).unwrap();
        assert_eq!(frames(&drain(&mut codec))[0].2, 3);
    }
}

#[test]
fn an_answer_before_the_end_of_the_question_is_an_answer() {
    let mut codec = greeted();
    codec.start(request(Method::PUT, vec![b'a'; 100_000].into())).unwrap();
    drain(&mut codec);
    let early = [head(END_STREAM, 1, &[(":status", "413")]), rst(1, Reason::NO_ERROR)];
    give(&mut codec, &early).unwrap();
    assert_eq!(codec.take_outcome().unwrap().unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(frames(&drain(&mut codec)), [rst(1, Reason::CANCEL)]);
    give(&mut codec, &[window_update(1, 10), window_update(0, 10)]).unwrap();
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    assert_eq!(frames(&drain(&mut codec))[0].2, 3);
}

#[test]
fn what_was_given_up_may_still_be_answered_and_nobody_hears_it() {
    let mut codec = get();
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    let sent = frames(&drain(&mut codec));
    assert_eq!(sent[0], rst(1, Reason::CANCEL));
    assert_eq!((sent[1].0, sent[1].2), (HEADERS, 3));
    let late = [head(0, 1, &[(":status", "200")]), data(END_STREAM, 1, b"late"), rst(1, Reason::CANCEL)];
    let in_parts = [(HEADERS, 0, 1, vec![0x88]), (CONTINUATION, END_HEADERS, 1, vec![])];
    give(&mut codec, &late).unwrap();
    give(&mut codec, &in_parts).unwrap();
    assert!(codec.take_outcome().is_none());
    give(&mut codec, &[head(0, 3, &[(":status", "200")]), data(END_STREAM, 3, b"now")]).unwrap();
    assert_eq!(codec.take_outcome().unwrap().unwrap().body(), "now");
    assert!(give(&mut codec, &[data(0, 3, b"more")]).is_err(), "that one was not given up");
}

#[test]
fn the_longest_answer_is_allowed_in_time_and_no_longer_one() {
    let part = vec![b'a'; 16_000];
    let mut codec = get();
    give(&mut codec, &[head(0, 1, &[(":status", "200")])]).unwrap();
    // With so much padding, more than one window of it has to be allowed.
    let padded = [&[200][..], &part, &[0; 200]].concat();
    let (mut left, mut windows) = (MAX_BODY_BYTES as usize, [MAX_BODY_BYTES; 2]);
    while left >= part.len() {
        give(&mut codec, &[data(PADDED, 1, &padded)]).unwrap();
        left -= part.len();
        for (_, _, stream, increment) in frames(&drain(&mut codec)) {
            windows[stream as usize] += u32::from_be_bytes(increment.try_into().unwrap());
        }
        for window in &mut windows {
            *window = window.checked_sub(u32::try_from(padded.len()).unwrap()).expect("the peer is never held up");
        }
    }
    give(&mut codec, &[data(0, 1, &part[..left])]).unwrap();
    assert!(matches!(give(&mut codec, &[data(0, 1, b"a")]), Err(Error::Answer("it is longer than any answer"))));

    let mut codec = get();
    give(&mut codec, &[head(0, 1, &[(":status", "200")])]).unwrap();
    codec.exchange.as_mut().unwrap().take_data(b"", MAX_BODY_BYTES / 2 - 1).unwrap();
    codec.allowed.take(MAX_BODY_BYTES / 2 - 1).unwrap();
    let last = codec.receive(&bytes(&vec![data(0, 1, &part); 33]));
    assert!(last.is_ok(), "what was taken is allowed again");
    // Padding counts, too.
    for overrun in [data(0, 1, &[b'a'; 11]), data(PADDED, 1, b"\x05aaaaa_____")] {
        let mut codec = get();
        codec.allowed.take(MAX_BODY_BYTES - 10).unwrap();
        assert!(give(&mut codec, &[head(0, 1, &[(":status", "200")]), overrun]).is_err());
        assert_eq!(told(&mut codec), Some(Reason::FLOW_CONTROL_ERROR.code()));
    }
}

#[test]
fn a_peer_that_says_what_answers_nothing_without_end_is_cut_off() {
    let open = head(0, 1, &[(":status", "200")]);
    let begun = (HEADERS, 0, 1, vec![0x88]);
    for (what, first, more) in [
        ("PING", None, (PING, 0, 0, vec![0; 8])),
        ("an ACK of a PING", None, (PING, ACK, 0, vec![0; 8])),
        ("SETTINGS", None, settings(&[(4, 1)])),
        ("an empty DATA", Some(open.clone()), data(0, 1, b"")),
        ("padding", Some(open), data(PADDED, 1, b"\0")),
        ("CONTINUATION", Some(begun), (CONTINUATION, 0, 1, vec![])),
        ("PRIORITY", None, (PRIORITY, 0, 1, vec![0; 5])),
        ("something unknown", None, (0x77, 0, 0, vec![0; 100])),
        ("WINDOW_UPDATE", None, window_update(1, 1)),
        ("GOAWAY", None, goaway(1, Reason::NO_ERROR)),
    ] {
        let mut codec = get();
        give(&mut codec, first.as_slice()).unwrap();
        let cut_off = (0..1100).find(|_| give(&mut codec, std::slice::from_ref(&more)).is_err());
        assert!(cut_off.is_some_and(|after| after > 900), "{what}: {cut_off:?}");
        assert!(codec.out.len() < 64 * 1024, "{what}");
        assert_eq!(told(&mut codec), Some(Reason::ENHANCE_YOUR_CALM.code()), "{what}");
    }
    // A peer that answers may ping for ever.
    let mut codec = greeted();
    for _ in 0..3 * u32::from(PATIENCE) {
        codec.start(request(Method::GET, Bytes::new())).unwrap();
        drain(&mut codec);
        let stream = codec.next_stream - 2;
        give(&mut codec, &[(PING, 0, 0, vec![0; 8]), head(END_STREAM, stream, &[(":status", "304")])]).unwrap();
        codec.take_outcome().unwrap().unwrap();
    }
}

#[test]
fn streams_run_out() {
    let mut codec = greeted();
    codec.next_stream = MAX_31;
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    assert_eq!(frames(&drain(&mut codec))[0].2, MAX_31);
    give(&mut codec, &[head(END_STREAM, MAX_31, &[(":status", "200")])]).unwrap();
    codec.take_outcome().unwrap().unwrap();
    assert!(matches!(codec.end(), Some(Error::Closed)));
    assert!(matches!(codec.start(request(Method::GET, Bytes::new())), Err(Error::Closed)));
}

#[test]
fn the_end_of_the_transport_is_the_end() {
    let mut codec = get();
    codec.receive_end();
    assert!(matches!(codec.take_outcome(), Some(Err(Error::Closed))));
    assert!(matches!(codec.end(), Some(Error::Closed)));
}
