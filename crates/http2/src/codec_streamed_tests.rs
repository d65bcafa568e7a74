//! Answers that are taken as they come.

use super::*;

/// A question was sent whose answer is taken as it comes, on stream 1.
fn begun() -> Codec {
    let mut codec = greeted();
    codec.start_streamed(request(Method::GET, Bytes::new())).unwrap();
    drain(&mut codec);
    codec
}

fn part(codec: &mut Codec) -> Option<Vec<u8>> {
    let mut part = b"before ".to_vec();
    codec.take_part(&mut part).then(|| part.split_off(7))
}

#[test]
fn an_answer_is_taken_bit_by_bit() {
    let mut codec = begun();
    assert!(!codec.has_news() && codec.take_head().is_none() && part(&mut codec).is_none() && !codec.take_end());
    give(&mut codec, &[head(0, 1, &[(":status", "103")])]).unwrap();
    assert!(!codec.has_news() && codec.take_head().is_none());
    give(&mut codec, &[head(0, 1, &[(":status", "200"), ("etag", "a")])]).unwrap();
    assert!(codec.has_news());
    let taken = codec.take_head().unwrap();
    assert_eq!((taken.status(), &taken.headers()["etag"]), (StatusCode::OK, &http::HeaderValue::from_static("a")));
    assert!(!codec.has_news() && codec.take_head().is_none());
    give(&mut codec, &[data(0, 1, b"ab"), data(PADDED, 1, b"\x01c_")]).unwrap();
    assert_eq!(part(&mut codec).unwrap(), b"abc");
    assert!(!codec.has_news() && part(&mut codec).is_none());
    give(&mut codec, &[data(0, 1, b"d"), data(END_STREAM, 1, b"e")]).unwrap();
    assert!(!codec.take_end(), "something of it is left");
    assert_eq!(part(&mut codec).unwrap(), b"de");
    assert!(codec.has_news() && codec.is_streaming());
    assert!(codec.take_end());
    assert!(!codec.has_news() && !codec.is_streaming() && !codec.take_end());
    assert!(codec.take_outcome().is_none() && drain(&mut codec).is_empty(), "nothing went wrong");
    assert!(give(&mut codec, &[data(0, 1, b"f")]).is_err(), "it has ended");
}

#[test]
fn an_end_is_one_before_it_is_taken() {
    let end = [head(END_STREAM, 1, &[(":status", "200")])];
    let mut codec = begun();
    give(&mut codec, &end).unwrap();
    assert!(give(&mut codec, &[data(0, 1, b"more")]).is_err());
    let mut codec = begun();
    give(&mut codec, &end).unwrap();
    give(&mut codec, &[goaway(0, Reason::NO_ERROR)]).unwrap();
    assert!(codec.take_outcome().is_none() && codec.take_head().is_some() && codec.take_end());
    let mut codec = begun();
    give(&mut codec, &end).unwrap();
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    assert_eq!(frames(&drain(&mut codec))[0].0, HEADERS, "there is nothing to give up");
}

#[test]
fn the_next_question_ends_it() {
    let mut codec = begun();
    give(&mut codec, &[head(0, 1, &[(":status", "200")]), data(0, 1, b"a")]).unwrap();
    codec.start(request(Method::GET, Bytes::new())).unwrap();
    let sent = frames(&drain(&mut codec));
    assert_eq!((&sent[0], sent[1].0, sent[1].2), (&rst(1, Reason::CANCEL), HEADERS, 3));
    give(&mut codec, &[data(0, 1, b"late"), head(END_STREAM, 3, &[(":status", "304")])]).unwrap();
    assert!(!codec.take_part(&mut Vec::new()) && !codec.is_streaming());
    assert_eq!(codec.take_outcome().unwrap().unwrap().status(), StatusCode::NOT_MODIFIED);
}

#[test]
fn it_may_break_off() {
    type Break = fn(&mut Codec);
    let breaks: [(&str, Break); 4] = [
        ("a reset", |codec| give(codec, &[rst(1, Reason::CANCEL)]).unwrap()),
        ("a goodbye", |codec| give(codec, &[goaway(0, Reason::NO_ERROR)]).unwrap()),
        ("the end of the transport", Codec::receive_end),
        ("nonsense", |codec| assert!(give(codec, &[(PUSH_PROMISE, END_HEADERS, 1, vec![0; 4])]).is_err())),
    ];
    for (what, breaks) in breaks {
        let mut codec = begun();
        give(&mut codec, &[head(0, 1, &[(":status", "200")]), data(0, 1, b"a")]).unwrap();
        breaks(&mut codec);
        assert!(!codec.is_streaming() && !codec.take_end(), "{what} is no end");
        assert!(matches!(codec.take_outcome(), Some(Err(_)) | None), "{what}");
        assert!(codec.end().is_some() || what == "a reset", "{what}");
    }
}

#[test]
fn its_length_is_that_of_all_parts() {
    for (parts, is_end, is_good) in
        [(2, true, true), (1, false, true), (1, true, false), (3, false, false), (3, true, false)]
    {
        let mut codec = begun();
        give(&mut codec, &[head(0, 1, &[(":status", "200"), ("content-length", "6")])]).unwrap();
        let outcome = (1..=parts).try_for_each(|number| {
            let flags = if is_end && number == parts { END_STREAM } else { 0 };
            give(&mut codec, &[data(flags, 1, b"abc")])?;
            part(&mut codec);
            Ok::<_, Error>(())
        });
        assert_eq!(outcome.is_ok(), is_good, "{parts} {is_end}: {outcome:?}");
    }
}

#[test]
fn it_may_go_on_for_days() {
    let mut codec = begun();
    give(&mut codec, &[head(0, 1, &[(":status", "200")])]).unwrap();
    codec.take_head().unwrap();
    let mut allowed = u64::from(MAX_BODY_BYTES);
    for _ in 0..200_000_u32 {
        give(&mut codec, &[data(0, 1, b"0123456789abcdef"), (PING, 0, 0, vec![0; 8])]).unwrap();
        assert_eq!(part(&mut codec).unwrap().len(), 16);
        allowed -= 16;
        for (kind, _, stream, payload) in frames(&drain(&mut codec)) {
            if (kind, stream) == (WINDOW_UPDATE, 0) {
                allowed += u64::from(u32::from_be_bytes(payload.try_into().unwrap()));
            }
        }
        assert!(allowed > 0 && held(&codec) <= 64 * 1024);
    }
    assert!(codec.exchange.as_ref().unwrap().kept_bytes() <= 64, "what was short once is short again");
    give(&mut codec, &[data(0, 1, &[b'a'; 10_000])]).unwrap();
    part(&mut codec).unwrap();
    assert_eq!(codec.exchange.as_ref().unwrap().kept_bytes(), 0);
    // But who says nothing is cut off.
    let cut_off = (0..1100).find(|_| give(&mut codec, &[data(0, 1, b"")]).is_err());
    assert!(cut_off.is_some_and(|after| after > 900), "{cut_off:?}");
}

#[test]
fn more_than_the_longest_answer_is_not_kept_for_a_peer_that_does_not_take_it() {
    let mut codec = begun();
    give(&mut codec, &[head(0, 1, &[(":status", "200")])]).unwrap();
    let mut given = 0;
    let error = loop {
        match give(&mut codec, &[data(0, 1, &[b'a'; 16_000])]) {
            Ok(()) => given += 16_000,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Protocol(_) | Error::Answer(_)), "{error:?}");
    assert!((MAX_BODY_BYTES - 16_000..=MAX_BODY_BYTES).contains(&given), "{given}");
}
