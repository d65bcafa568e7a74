//! Generates random requests: words of the tables in unusual places, and sometimes an invalid byte.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{message::Message, words};

/// Parts of a path. None begins with a scheme, which only an HTTP/1.1 target can have.
const PIECES: &[&str] = &[
    "/", "/", "/", "api", "x", "z", ".", "..", "..;", ";a=b", "%2f", "%2F", "%5c", "%2e", "%61pi", "%00", "%", "\\",
    "?", "?q=v", "&q=w", "q", "=", "&", "#", "*", "\u{e4}", "%c3%a9", "@", "+", "|", "\"", "{", "~",
];

/// The names in the rules, chosen more often than others.
const NAMES: &[&str] = &[
    "x-key", "x-key", "x-b", "cookie", "cookie", "x-forwarded-for", "x-forwarded-for", "authorization", "forwarded",
    "te",
];

/// Bytes that parsers treat differently. There are no line ends, because in HTTP/1.1 they would begin other requests.
const ODD: &[char] = &['\0', '\t', ' ', '"', ',', ':', ';', '=', '\\', '\u{7f}', '\u{80}', '\u{ff}', '\u{b}', 'A', '%'];

pub(super) fn message(seed: u64) -> Message {
    let mut random = StdRng::seed_from_u64(seed);
    let one = |random: &mut StdRng, words: &[&str]| (*words.choose(random).expect("words")).to_owned();
    let mut message = Message::plain();
    if random.random_bool(0.5) {
        message.fields.clear();
    }
    if random.random_bool(0.2) {
        let table = if random.random_bool(0.8) { words::METHODS_PASS } else { words::METHODS_REFUSED };
        message.method = one(&mut random, table);
    }
    if random.random_bool(0.5) {
        let count = random.random_range(1..8);
        message.path = (0..count).fold("/".to_owned(), |path, _| path + &one(&mut random, PIECES));
    }
    if random.random_bool(0.3) {
        let table = if random.random_bool(0.7) { words::HOSTS_PASS } else { words::HOSTS_REFUSED };
        message.authority = Some(one(&mut random, table));
    }
    for _ in 0..random.random_range(0..6) {
        let (name, value) = match random.random_range(0..10) {
            0 => *words::OF_CONNECTION.choose(&mut random).expect("fields"),
            1 | 2 => *words::MORE.choose(&mut random).expect("fields"),
            _ => {
                let values = *[words::KEYS_PASS, words::COOKIES, words::FORWARDED_FOR, words::FORWARDED, words::TOKENS]
                    .choose(&mut random)
                    .expect("tables");
                (*NAMES.choose(&mut random).expect("names"), *values.choose(&mut random).expect("values"))
            }
        };
        message = message.with(name, value);
    }
    if random.random_bool(0.3) {
        message.body = Some(one(&mut random, &["", "hello", "0\r\n\r\n", "GET /admin HTTP/1.1\r\n\r\n"]));
        message.chunked = random.random_bool(0.5);
        if message.chunked && random.random_bool(0.5) {
            let (name, value) = *words::TRAILERS.choose(&mut random).expect("fields");
            message.trailers.push((name.to_owned(), value.to_owned()));
        }
    }
    if random.random_bool(0.3) {
        // The byte is in only one place, so that each failure has one cause.
        let places = message.fields.len() * 2 + 2;
        let text = match random.random_range(0..places) {
            0 => &mut message.method,
            1 => &mut message.path,
            place if place % 2 == 0 => &mut message.fields[place / 2 - 1].1,
            place => &mut message.fields[place / 2 - 1].0,
        };
        let mut chars: Vec<char> = text.chars().collect();
        let odd = *ODD.choose(&mut random).expect("odd");
        chars.insert(random.random_range(0..=chars.len()), odd);
        *text = chars.into_iter().collect();
    }
    // In HTTP/1.1, a name would end at its colon, and be a different name.
    message.fields.retain(|(name, _)| !name.contains(':'));
    // In a target that is a whole URL, the authority must end before the path.
    let names_one =
        message.authority.as_deref().is_some_and(|authority| !authority.contains(['/', '?', '#', '\\', ' ']));
    if random.random_bool(0.2) && names_one && message.path.starts_with('/') {
        let table = if random.random_bool(0.7) { words::HOSTS_PASS } else { words::HOSTS_REFUSED };
        message.hosts.push(one(&mut random, table));
        if random.random_bool(0.3) {
            message.authority = None;
        }
    }
    message.crumbs = random.random_bool(0.5);
    message
}
