//! Parses random certificates in PEM. The agent must refuse them with a reason, or read the same bytes as another PEM
//! parser. It must refuse a certificate that TLS cannot use, without a panic.

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use weir_fuzz::{Choices, Target, mutated};

use crate::control::{Credentials, certificates};

#[test]
fn any_certificate_is_refused_or_read_as_others_read_it() {
    let key = KeyPair::generate().expect("a key");
    let made = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).expect("names");
        params.self_signed(&key).expect("a certificate")
    };
    let (one, other) = (made(&["pod.weir.dev"]), made(&["operator.weir.dev", "192.0.2.1"]));
    let pems = [one.pem(), format!("# comment\n{}{}", one.pem(), other.pem()), key.serialize_pem() + &other.pem()];
    Target::new("certificates").run(300, |bytes| {
        let mut choices = Choices(bytes);
        let pem = choices.one(&pems);
        let text = match choices.below(3) {
            0 => mutated(pem.as_bytes(), pems[1].as_bytes(), &mut choices.random()),
            // An invalid certificate in valid PEM.
            1 => pem_of(&mutated(one.der(), other.der(), &mut choices.random())).into_bytes(),
            _ => pem.clone().into_bytes(),
        };
        let read = certificates(&text);
        let shown = || String::from_utf8_lossy(&text).into_owned();
        let Ok(chain) = read else {
            return if text == pem.as_bytes() { Err(format!("{} was refused", shown())) } else { Ok(()) };
        };
        let others = blocks(&text);
        // The library also accepts blocks whose lines do not follow RFC 7468.
        if !others.iter().all(|other| chain.iter().any(|it| it.as_ref() == other)) {
            return Err(format!(
                "{}: the agent reads {} certificates, and the other parser {}",
                shown(),
                chain.len(),
                others.len()
            ));
        }
        let private = || PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let sound = [one.der(), other.der()].into_iter().any(|it| it == &chain[0]);
        let authority = vec![one.der().clone()];
        match Credentials::new(chain, private(), authority) {
            Ok(_) => Ok(()),
            Err(error) if sound => Err(format!("{} was refused: {error}", shown())),
            Err(error) if error.to_string().is_empty() => Err("a refusal without a reason".to_owned()),
            Err(_) => Ok(()),
        }
    });
}

fn pem_of(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// The content between the lines that begin and end certificates (RFC 7468).
fn blocks(text: &[u8]) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut open: Option<(Vec<u8>, Vec<u8>)> = None;
    for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = line.trim_ascii();
        if let Some(label) = line.strip_prefix(b"-----BEGIN ").and_then(|rest| rest.strip_suffix(b"-----")) {
            open = Some((label.to_vec(), Vec::new()));
        } else if line.starts_with(b"-----END ") {
            if let Some((label, body)) = open.take()
                && label == b"CERTIFICATE"
            {
                blocks.extend(STANDARD.decode(body));
            }
        } else if let Some((_, body)) = &mut open {
            body.extend(line.iter().filter(|byte| !byte.is_ascii_whitespace()));
        }
    }
    blocks
}
