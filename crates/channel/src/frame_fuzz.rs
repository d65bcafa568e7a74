//! A target of `cargo xtask fuzz` for the frames of a peer.

use weir_fuzz::{Choices, Target};

use super::{Frame, InvalidFrame, MAX_PAYLOAD_BYTES, tests::decoded};

#[test]
fn any_bytes_are_frames_or_refused() {
    Target::new("channel").run(500, script);
}

/// Decodes some bytes as a whole and in pieces, and compares both results with the definition.
fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let sizes: Vec<usize> = (0..4).map(|_| 1 + choices.below(9)).collect();
    let mut input = Vec::new();
    if choices.rarely(4) {
        input.extend_from_slice(choices.0);
    } else {
        while !choices.is_over() {
            let length = *choices.one(&[1, 1, 2, 3, 8, 20, 0, u32::MAX]);
            input.extend(length.to_be_bytes());
            input.push(*choices.one(&[1, 2, 16, 17, 18, 19, 20, 21]));
            input.extend((1..length.min(20)).map(|_| choices.byte()));
        }
    }
    let expected = defined(&input);
    for sizes in [&sizes[..], &[1], &[usize::MAX]] {
        let (frames, error, _) = decoded(&input, sizes);
        if (&frames, error) != (&expected.0, expected.1) {
            return Err(format!("{input:02x?} is {frames:?} {error:?}, not {expected:?}"));
        }
        for frame in frames {
            // Parsing any payload returns a message or an error. It never panics.
            let _ = crate::ToAgent::parse(frame.clone());
            let _ = crate::ToOperator::parse(&frame);
        }
    }
    Ok(())
}

fn defined(mut input: &[u8]) -> (Vec<Frame>, Option<InvalidFrame>) {
    let mut frames = Vec::new();
    while let [a, b, c, d, tag, rest @ ..] = input {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some(length) = length.checked_sub(1) else { return (frames, Some(InvalidFrame::Empty)) };
        if length > MAX_PAYLOAD_BYTES {
            return (frames, Some(InvalidFrame::TooLong(length)));
        }
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push(Frame { tag: *tag, payload: payload.to_vec() });
        input = rest;
    }
    (frames, None)
}
