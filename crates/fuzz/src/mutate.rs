//! Makes small changes to valid input.

use crate::Random;

/// Bytes that have a meaning in text formats.
const SIGNS: &[u8] = b" \t\r\n\0,;:=.\"'/\\%#?@&*[]{}()<>|-+_~^$!`0123456789aAfFxX\x7f\x80\xff";

/// Returns `seed` with one to six small changes. Some changes copy a part of `other`.
#[must_use]
pub fn mutated(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(6) {
        change(&mut bytes, other, random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + 1 + random.below(8)).min(bytes.len());
    let here = at.min(bytes.len().saturating_sub(1));
    match random.below(9) {
        0 if !bytes.is_empty() => bytes[here] = SIGNS[random.below(SIGNS.len())],
        1 if !bytes.is_empty() => bytes[here] ^= 1 << random.below(8),
        2 => bytes.insert(at, SIGNS[random.below(SIGNS.len())]),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        5 => {
            let from = random.below(other.len() + 1);
            let part = &other[from..(from + 1 + random.below(32)).min(other.len())];
            bytes.splice(at..at, part.iter().copied());
        }
        6 => {
            let count = 1 + random.below(80);
            let repeated = bytes.get(here).copied().unwrap_or(b' ');
            bytes.splice(at..at, std::iter::repeat_n(repeated, count));
        }
        7 if random.below(4) == 0 => bytes.truncate(at),
        _ => {
            let count = 1 + random.below(3);
            let new = random.bytes(count);
            bytes.splice(at..end, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_changes_leave_most_of_the_seed() {
        let seed = b"a good input that is not short";
        let mut random = Random::new(1);
        let inputs: Vec<_> = (0..200).map(|_| mutated(seed, b"other", &mut random)).collect();
        assert!(inputs.iter().filter(|input| *input != seed).count() > 190);
        let near = |input: &&Vec<u8>| input.windows(6).any(|part| seed.windows(6).any(|it| it == part));
        assert!(inputs.iter().filter(near).count() > 150);
        assert!(!mutated(b"", b"", &mut Random::new(3)).len().gt(&500));
    }
}
