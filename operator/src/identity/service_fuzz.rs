//! Fuzzes certificate requests of pods, which the operator reads before the token. It must accept only a request that a
//! key has signed, and only for that key. The oracle has its own DER reader, and stores the signed content of each
//! request.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use weir_fuzz::{Choices, Target};

use super::signed;

/// A request, its signed content, and the public key in it.
struct Seed {
    der: Vec<u8>,
    info: Vec<u8>,
    key: Vec<u8>,
}

#[test]
fn any_certificate_request_is_refused_or_is_what_its_key_signed() {
    let seeds: Vec<Seed> = [&["a.b.pod.weir.dev"][..], &[], &["x", "y"]].into_iter().map(seed).collect();
    Target::new("csrs").run(300, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            let seed = &seeds[choices.below(seeds.len())];
            request(&mut choices, seed, &seeds)?;
        }
        Ok(())
    });
}

fn seed(names: &[&str]) -> Seed {
    let key = KeyPair::generate().expect("a new key");
    let params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).expect("names");
    let der = params.serialize_request(&key).expect("the request is serializable").der().to_vec();
    // By RFC 2986 section 4.2, a request is a sequence, and its first element is signed.
    let info = element(&der)
        .and_then(|whole| element(whole.content))
        .expect("the generated request is valid DER")
        .whole
        .to_vec();
    Seed { info, key: key.der_bytes().to_vec(), der }
}

fn request(choices: &mut Choices<'_>, seed: &Seed, others: &[Seed]) -> Result<(), String> {
    let mut der = seed.der.clone();
    let changes = choices.below(4);
    for _ in 0..changes {
        let at = choices.below(der.len());
        match choices.below(6) {
            0 => der[at] ^= 1 << choices.below(8),
            1 => der[at] = choices.byte(),
            2 => der.truncate(at),
            3 => drop(der.splice(at..at, std::iter::repeat_n(choices.byte(), choices.below(300)))),
            4 => {
                let other = &choices.one(others).der;
                let from = choices.below(other.len());
                let part = &other[from..(from + choices.below(80)).min(other.len())];
                drop(der.splice(at..(at + part.len()).min(der.len()), part.iter().copied()));
            }
            // A length in the long form, which can be larger than the request.
            _ => drop(der.splice(at..at, [0x30, 0x84, 0xff, 0xff, 0xff, choices.byte()])),
        }
        if der.is_empty() {
            der.push(0);
        }
    }
    let (text, is_sound) = pem(choices, &der);
    let Ok(taken) = signed(&text) else {
        return if changes == 0 && is_sound { Err(format!("a good request was refused: {text}")) } else { Ok(()) };
    };
    let wrong = |what: &str| Err(format!("{what} was accepted: {text}"));
    let key = taken.public_key.der_bytes();
    let Some(signer) = others.iter().find(|it| it.key == key) else {
        return wrong("a request whose key signed no seed");
    };
    if !der.windows(signer.info.len()).any(|part| part == signer.info) {
        return wrong("a request that its key has not signed");
    }
    Ok(())
}

/// Returns PEM that is mostly valid.
fn pem(choices: &mut Choices<'_>, der: &[u8]) -> (String, bool) {
    let text = BASE64_STANDARD.encode(der);
    let width = *choices.one(&[64, 64, 64, 76]);
    let lines: Vec<&str> = (0..text.len()).step_by(width).map(|at| &text[at..(at + width).min(text.len())]).collect();
    let label = *choices.one(&["CERTIFICATE REQUEST", "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST", "PRIVATE KEY"]);
    let body = lines.join(*choices.one(&["\n", "\n", "\r\n"]));
    let mut pem = format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
    let is_sound = label == "CERTIFICATE REQUEST" && width == 64;
    if choices.rarely(6) {
        let at = choices.below(pem.len());
        match choices.below(3) {
            0 => pem.truncate(at),
            1 => pem.insert_str(at, choices.one::<&str>(&["-----BEGIN ", "\0", "\u{e4}", "=", "\n\n", "-----"])),
            _ => pem = format!("{pem}{pem}"),
        }
        return (pem, false);
    }
    (pem, is_sound)
}

/// One element of DER.
struct Element<'a> {
    /// The element with its tag and length.
    whole: &'a [u8],
    content: &'a [u8],
}

/// Returns the first element, if its length takes up to two bytes.
fn element(der: &[u8]) -> Option<Element<'_>> {
    let (head, length) = match *der.get(1)? {
        short @ ..=0x7f => (2, usize::from(short)),
        0x81 => (3, usize::from(*der.get(2)?)),
        0x82 => (4, usize::from(u16::from_be_bytes([*der.get(2)?, *der.get(3)?]))),
        _ => return None,
    };
    let whole = der.get(..head + length)?;
    Some(Element { whole, content: &whole[head..] })
}
