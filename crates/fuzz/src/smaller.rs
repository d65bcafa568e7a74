//! Reduces a failing input.

/// Removes and zeroes bytes that the failure does not need.
pub(crate) fn smaller(mut bytes: Vec<u8>, fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    for size in [128, 32, 8, 4, 2, 1] {
        let mut at = 0;
        while at < bytes.len() {
            let end = (at + size).min(bytes.len());
            let (mut without, mut zeroed) = (bytes.clone(), bytes.clone());
            without.drain(at..end);
            zeroed[at..end].fill(0);
            if fails(&without) {
                bytes = without;
            } else {
                if zeroed != bytes && fails(&zeroed) {
                    bytes = zeroed;
                }
                at = end;
            }
        }
    }
    bytes
}
