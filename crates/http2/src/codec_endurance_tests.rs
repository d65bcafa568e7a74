//! Peers that say anything at all: they are heard or cut off, and nothing grows without bound.

use proptest::prelude::*;

use super::*;

/// Frames that say something now and then.
fn any_frame() -> impl Strategy<Value = Frame> {
    let payload = prop_oneof![
        3 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => Just(vec![0; 8]),
        1 => Just(vec![0x88]),
        1 => Just(vec![0, 0, 0, 1]),
        1 => (0..20_000_usize).prop_map(|length| vec![7; length]),
    ];
    let kind = prop_oneof![9 => 0..10_u8, 1 => any::<u8>()];
    let flags = prop_oneof![Just(0), Just(END_STREAM), Just(END_HEADERS), Just(5), any::<u8>()];
    let stream = prop_oneof![4 => 0..4_u32, 1 => any::<u32>()];
    (kind, flags, stream, payload)
}

/// Lets the peer say this in pieces, while questions are asked: it is heard or cut off, and nothing grows without bound.
fn endure(codec: &mut Codec, said: &[u8], pieces: &[usize]) {
    drain(codec);
    let (mut rest, mut pieces) = (said, pieces.iter().cycle());
    while !rest.is_empty() {
        let (part, after) = rest.split_at((*pieces.next().unwrap()).min(rest.len()));
        rest = after;
        if codec.receive(part).is_err() {
            assert!(codec.end().is_some() && told(codec).is_some());
            return;
        }
        assert!(held(codec) < 256 * 1024, "{}", held(codec));
        codec.take_head();
        codec.take_part(&mut Vec::new());
        if codec.take_outcome().is_some() || codec.take_end() || codec.exchange.is_none() {
            let question = request(Method::PUT, Bytes::from_static(&[b'a'; 100]));
            let _ = if rest.len() % 3 == 0 { codec.start_streamed(question) } else { codec.start(question) };
        }
        if said.len().is_multiple_of(2) {
            drain(codec);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_endured(
        said in proptest::collection::vec(any::<u8>(), 0..400),
        pieces in proptest::collection::vec(1..50_usize, 1..10),
    ) {
        endure(&mut Codec::new(), &said, &pieces);
        endure(&mut get(), &said, &pieces);
    }

    #[test]
    fn any_frames_are_endured(
        said in proptest::collection::vec(any_frame(), 0..60),
        pieces in proptest::collection::vec(1..20_000_usize, 1..10),
    ) {
        endure(&mut get(), &bytes(&said), &pieces);
    }

    #[test]
    fn a_good_conversation_with_mistakes_is_endured(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        pieces in proptest::collection::vec(1..60_usize, 1..10),
    ) {
        let mut said = bytes(&[
            settings(&[(3, 100), (4, 1 << 16), (5, 1 << 14)]),
            (SETTINGS, ACK, 0, vec![]),
            window_update(0, 1 << 20),
            head(0, 1, &[(":status", "200"), ("etag", "W/\"a\""), ("content-length", "5")]),
            data(0, 1, b"abc"),
            (PING, 0, 0, vec![7; 8]),
            data(PADDED | END_STREAM, 1, b"\x01de_"),
            head(END_STREAM, 3, &[(":status", "304"), ("etag", "W/\"a\"")]),
            (HEADERS, 0, 5, vec![0x88]),
            (CONTINUATION, END_HEADERS, 5, vec![0x0f, 0x13, 0x82, 0x07, 0x3f]),
            rst(5, Reason::CANCEL),
            goaway(7, Reason::NO_ERROR),
            head(END_STREAM, 7, &[(":status", "200")]),
        ]);
        for (place, value) in changes {
            *place.get_mut(&mut said) ^= value;
        }
        said.truncate(cut.index(said.len()) + said.len() / 2);
        let mut codec = Codec::new();
        codec.start(request(Method::GET, Bytes::new())).unwrap();
        drain(&mut codec);
        endure(&mut codec, &said, &pieces);
    }
}
