//! The Huffman code for strings (RFC 7541, section 5.2), read only: what is sent is too short to be worth it.

use super::unreadable;
use crate::error::Fault;

/// How many bits each symbol has (Appendix B). The last one is the end of the string, which never stands in one.
///
/// That is the whole code: it is canonical, so codes of the same length follow each other in the order of their symbols,
/// and longer ones follow shorter ones.
#[rustfmt::skip]
const BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;
const END: u16 = 256;

/// The codes of one length, left-aligned in 32 bits.
#[derive(Clone, Copy)]
struct Length {
    /// The first code.
    first: u32,
    /// One after the last; codes below it have this length at most.
    limit: u64,
    /// Where its symbols begin in [`SYMBOLS`].
    offset: usize,
}

/// By length.
const LENGTHS: [Length; LONGEST + 1] = lengths();
/// In the order of their codes.
const SYMBOLS: [u16; 257] = symbols();

const fn lengths() -> [Length; LONGEST + 1] {
    let mut lengths = [Length { first: 0, limit: 0, offset: 0 }; LONGEST + 1];
    let (mut next, mut offset, mut bits) = (0_u64, 0, SHORTEST);
    while bits <= LONGEST {
        let (mut symbol, mut count) = (0, 0);
        while symbol < BITS.len() {
            if BITS[symbol] as usize == bits {
                count += 1;
            }
            symbol += 1;
        }
        // Below 2^32 but for the limit of the longest, which is that.
        let bytes = next.to_le_bytes();
        let first = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let limit = next + ((count as u64) << (32 - bits));
        lengths[bits] = Length { first, limit, offset };
        (next, offset, bits) = (limit, offset + count, bits + 1);
    }
    lengths
}

const fn symbols() -> [u16; 257] {
    let mut symbols = [0; 257];
    let (mut place, mut bits) = (0, SHORTEST);
    while bits <= LONGEST {
        let mut symbol = 0_u16;
        while symbol <= END {
            if BITS[symbol as usize] as usize == bits {
                symbols[place] = symbol;
                place += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    symbols
}

/// Appends what `input` stands for.
pub(super) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    // The next bits, left-aligned, and how many of them are of the input.
    let (mut window, mut held) = (0_u64, 0_u32);
    let mut input = input.iter();
    loop {
        while held <= 56
            && let Some(byte) = input.next()
        {
            window |= u64::from(*byte) << (56 - held);
            held += 8;
        }
        if held == 0 {
            return Ok(());
        }
        let code = u32::try_from(window >> 32).expect("32 bits");
        let found = (SHORTEST..=LONGEST).find(|&bits| u64::from(code) < LENGTHS[bits].limit);
        let bits = found.expect("the longest limit is above all");
        if u32::try_from(bits).expect("30 at most") > held {
            // What is left is shorter than a code: padding, less than a byte of the first bits of the end.
            let is_padding = held < 8 && window == !(u64::MAX >> held);
            return if is_padding { Ok(()) } else { Err(unreadable("a string has the wrong padding")) };
        }
        let Length { first, offset, .. } = LENGTHS[bits];
        let place = usize::try_from((code - first) >> (32 - bits)).expect("257 at most");
        let symbol = u8::try_from(SYMBOLS[offset + place]);
        out.push(symbol.map_err(|_| unreadable("a string goes on after its end"))?);
        window <<= bits;
        held -= u32::try_from(bits).expect("30 at most");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A symbol's code and its length.
    fn code(symbol: u16) -> (u32, usize) {
        let bits = usize::from(BITS[usize::from(symbol)]);
        let Length { first, offset, .. } = LENGTHS[bits];
        let place = SYMBOLS[offset..].iter().position(|found| *found == symbol).unwrap();
        ((first >> (32 - bits)) + u32::try_from(place).unwrap(), bits)
    }

    pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
        let bits: String = text
            .iter()
            .map(|byte| {
                let (code, bits) = code(u16::from(*byte));
                format!("{code:0bits$b}")
            })
            .collect();
        let padded = bits.len().next_multiple_of(8);
        let bits = format!("{bits:1<padded$}");
        (0..padded / 8).map(|byte| u8::from_str_radix(&bits[8 * byte..8 * byte + 8], 2).unwrap()).collect()
    }

    fn decoded(input: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        // Appendix B, one of each length.
        for (symbol, expected, bits) in [
            (48, 0x0, 5),
            (32, 0x14, 6),
            (58, 0x5c, 7),
            (38, 0xf8, 8),
            (33, 0x3f8, 10),
            (39, 0x7fa, 11),
            (35, 0xffa, 12),
            (0, 0x1ff8, 13),
            (94, 0x3ffc, 14),
            (60, 0x7ffc, 15),
            (92, 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (153, 0x1fffdc, 21),
            (129, 0x3fffd2, 22),
            (1, 0x7fffd8, 23),
            (9, 0xffffea, 24),
            (199, 0x1ffffec, 25),
            (192, 0x3ffffe0, 26),
            (203, 0x7ffffde, 27),
            (2, 0xfffffe2, 28),
            (10, 0x3fffffff - 3, 30),
            (22, 0x3ffffffe, 30),
            (256, 0x3fffffff, 30),
        ] {
            assert_eq!(code(symbol), (expected, bits), "{symbol}");
        }
    }

    #[test]
    fn the_examples_of_the_standard() {
        // Appendix C.4 and C.6.
        for (text, hex) in [
            ("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
            ("no-cache", "a8eb10649cbf"),
            ("custom-key", "25a849e95ba97d7f"),
            ("custom-value", "25a849e95bb8e8b4bf"),
            ("302", "6402"),
            ("private", "aec3771a4b"),
            ("Mon, 21 Oct 2013 20:13:21 GMT", "d07abe941054d444a8200595040b8166e082a62d1bff"),
            ("https://www.example.com", "9d29ad171863c78f0b97c8e9ae82ae43d3"),
            ("307", "640eff"),
            ("gzip", "9bd9ab"),
            (
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
                "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            ),
        ] {
            let bytes: Vec<u8> =
                (0..hex.len() / 2).map(|byte| u8::from_str_radix(&hex[2 * byte..2 * byte + 2], 16).unwrap()).collect();
            assert_eq!(decoded(&bytes).unwrap(), text.as_bytes());
            assert_eq!(encode(text.as_bytes()), bytes);
        }
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones_and_the_end_is_no_symbol() {
        for bad in [
            &[0xff][..],                  // A byte of padding.
            &[0x07, 0xff],                // '0' and eleven ones.
            &[0x00],                      // '0' and three zeros.
            &[0x06],                      // '0' and two ones and a zero.
            &[0xff, 0xff, 0xff, 0xff],    // The end, and two ones.
            &[0xff, 0xff, 0xff, 0xfc, 0], // The end, and zeros.
            &[0xff, 0xff, 0xff],          // A code that is cut off.
        ] {
            assert!(decoded(bad).is_err(), "{bad:x?}");
        }
        assert_eq!(decoded(&[0x07]).unwrap(), b"0");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    proptest! {
        #[test]
        fn every_string_survives_a_round(text: Vec<u8>) {
            prop_assert_eq!(decoded(&encode(&text)).unwrap(), text);
        }

        #[test]
        fn whatever_can_be_read_is_written_the_same(bytes: Vec<u8>) {
            if let Ok(text) = decoded(&bytes) {
                prop_assert_eq!(encode(&text), bytes);
            }
        }
    }
}
