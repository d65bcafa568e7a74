//! Integers (RFC 7541, section 5.1).

use super::unreadable;
use crate::error::Fault;

/// So many bytes may follow the prefix: no length and no index within the bounds of a head needs more.
const MAX_FOLLOWING: u32 = 3;

/// Takes an integer off the front of `input`, whose first byte holds other bits above the lowest `prefix`.
pub(super) fn decode(input: &mut &[u8], prefix: u32) -> Result<usize, Fault> {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(take(input)?) & most;
    if value < most {
        return Ok(value);
    }
    for position in 0..MAX_FOLLOWING {
        let byte = take(input)?;
        value += usize::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(unreadable("a head has a number that is larger than any"))
}

fn take(input: &mut &[u8]) -> Result<u8, Fault> {
    let (first, rest) = input.split_first().ok_or(unreadable("a head ends in the middle of a field"))?;
    *input = rest;
    Ok(*first)
}

/// `pattern`: the bits of the first byte above the lowest `prefix`.
pub(super) fn encode(mut value: usize, prefix: u32, pattern: u8, out: &mut Vec<u8>) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        out.push(pattern | low_bits(value));
        return;
    }
    out.push(pattern | low_bits(most));
    value -= most;
    while value >= 0x80 {
        out.push(0x80 | low_bits(value & 0x7f));
        value >>= 7;
    }
    out.push(low_bits(value));
}

fn low_bits(value: usize) -> u8 {
    u8::try_from(value).expect("less than eight bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        // Appendix C.1.
        for (value, prefix, bytes) in [(10, 5, &[0x0a][..]), (1337, 5, &[0x1f, 0x9a, 0x0a]), (42, 8, &[0x2a])] {
            let mut out = Vec::new();
            encode(value, prefix, 0, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(decode(&mut &out[..], prefix), Ok(value));
        }
    }

    #[test]
    fn every_integer_survives_a_round_beside_other_bits() {
        for prefix in 4..=7 {
            for value in (0..300).chain([16_384, 1 << 20, (1 << 21) + 14]) {
                let mut out = Vec::new();
                encode(value, prefix, 0x80, &mut out);
                out.push(0xaa);
                let mut input = &out[..];
                assert_eq!(decode(&mut input, prefix), Ok(value));
                assert_eq!(input, [0xaa]);
            }
        }
    }

    #[test]
    fn what_is_cut_off_or_too_large_is_refused() {
        for bytes in [&[][..], &[0x1f], &[0x1f, 0x80], &[0x1f, 0x80, 0x80, 0x80, 0x00], &[0x1f, 0xff, 0xff, 0xff, 0xff]]
        {
            assert!(decode(&mut &bytes[..], 5).is_err(), "{bytes:?}");
        }
    }
}
