use std::sync::Arc;

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{ServerName, UnixTime},
};

use super::*;

const START: u64 = 1_800_000_000;
const NAME: &str = "weir-operator-webhook.weir-system.svc";
const LEAF_LIVES: u64 = 7 * DAY;
const LIFECYCLE: Lifecycle = Lifecycle { subject: "test", lives: 365 * DAY, overlap: 120 * DAY, published_for: HOUR };

fn first() -> Authorities {
    Authorities::none(LIFECYCLE).renewed(START).unwrap().expect("an empty set needs an authority")
}

/// Returns true if a client that trusts this bundle accepts this certificate for this name.
fn trusted(bundle: &str, leaf: &Leaf, name: &str, now: u64) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier
        .verify_server_cert(&leaf.certificate, &[], &name, &[], UnixTime::since_unix_epoch(Duration::from_secs(now)))
        .is_ok()
}

fn order(names: &[String], signer: Signer) -> Order<'_> {
    Order { names, usage: ExtendedKeyUsagePurpose::ServerAuth, lives: LEAF_LIVES, signer }
}

fn issue(authorities: &Authorities, now: u64) -> Leaf {
    let names = [NAME.to_owned(), "127.0.0.1".to_owned()];
    authorities.leaf(&order(&names, Signer::Newest), now).unwrap().expect("the set has an authority")
}

#[test]
fn a_certificate_is_valid_for_its_names_and_its_time() {
    let authorities = first();
    let (bundle, leaf) = (authorities.certificates(), issue(&authorities, START));
    for (name, now, expected) in [
        (NAME, START, true),
        ("127.0.0.1", START, true),
        ("other.weir-system.svc", START, false),
        (NAME, START - BACKDATED + 1, true),
        (NAME, START - BACKDATED - 1, false),
        (NAME, START + LEAF_LIVES - 1, true),
        (NAME, START + LEAF_LIVES + 1, false),
    ] {
        assert_eq!(trusted(&bundle, &leaf, name, now), expected, "{name} at {now}");
    }
    assert!(!trusted(&first().certificates(), &leaf, NAME, START), "another authority of the same name");
    assert!(Authorities::none(LIFECYCLE).leaf(&order(&[NAME.to_owned()], Signer::Newest), START).unwrap().is_none());
}

#[test]
fn what_is_written_is_read_again() {
    let written = first();
    let (read, outcome) = Authorities::read(LIFECYCLE, &written.certificates(), &written.keys());
    outcome.unwrap();
    assert!(read.renewed(START + 1).unwrap().is_none(), "no renewal is scheduled");
    assert!(trusted(&written.certificates(), &issue(&read, START), NAME, START));
    assert_eq!(read.certificates(), written.certificates());
    let other = first();
    for (certificates, keys) in [
        (written.certificates(), String::new()),
        (String::new(), written.keys()),
        (written.keys(), written.certificates()),
        (written.certificates() + &other.certificates(), written.keys()),
    ] {
        assert!(Authorities::read(LIFECYCLE, &certificates, &keys).1.is_err(), "{certificates}{keys}");
    }
    let (none, outcome) = Authorities::read(LIFECYCLE, "", "");
    assert!(none.all.is_empty() && outcome.is_ok());
}

#[test]
fn a_key_of_another_authority_is_refused() {
    let (one, other) = (first(), first());
    let (none, outcome) = Authorities::read(LIFECYCLE, &one.certificates(), &other.keys());
    assert_eq!((none.all.len(), outcome.unwrap_err().to_string().as_str()), (0, "ca.crt and ca.key do not match"));
    // The number of keys is right, and their order is wrong.
    let certificates = one.certificates() + &other.certificates();
    let keys = other.keys() + &one.keys();
    assert!(Authorities::read(LIFECYCLE, &certificates, &keys).1.is_err());
}

#[test]
fn an_invalid_authority_does_not_discard_the_valid_ones() {
    let [one, two, three] = [first(), first(), first()];
    let certificates = one.certificates() + &two.certificates() + &three.certificates();
    let keys = one.keys() + &three.keys() + &three.keys();
    let (read, outcome) = Authorities::read(LIFECYCLE, &certificates, &keys);
    assert_eq!(outcome.unwrap_err().to_string(), "ca.crt and ca.key do not match");
    assert_eq!(read.certificates(), one.certificates() + &three.certificates());
}

#[test]
fn a_certificate_that_cannot_sign_is_refused() {
    let plain = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (_, outcome) = Authorities::read(LIFECYCLE, &plain.cert.pem(), &plain.signing_key.serialize_pem());
    assert_eq!(outcome.unwrap_err().to_string(), "ca.crt is not a certificate authority: issue it with isCA");
}

/// The clock was a day ahead when the only authority was created, and was then corrected.
#[test]
fn an_authority_of_a_clock_that_was_ahead_is_replaced_until_it_is_valid() {
    let early = Authorities::none(LIFECYCLE).renewed(START + DAY).unwrap().expect("an empty set needs an authority");
    assert!(!early.usable(START), "the authority is not yet valid");
    let both = early.renewed(START).unwrap().expect("no authority is valid");
    assert!(both.renewed(START + 1).unwrap().is_none(), "one new authority is enough");
    for signer in [Signer::Newest, Signer::Oldest] {
        let names = [NAME.to_owned()];
        let leaf = both.leaf(&order(&names, signer), START).unwrap().expect("the set has an authority");
        assert!(trusted(&both.certificates(), &leaf, NAME, START), "{signer:?}: the signer is not yet valid");
    }
}

/// An authority that is not yet valid must not delay the one that follows the valid authority.
#[test]
fn an_authority_of_the_far_future_follows_no_other() {
    let both =
        first().renewed(START + 20 * LIFECYCLE.lives).unwrap().expect("by that clock the first authority has ended");
    let later = START + LIFECYCLE.lives - LIFECYCLE.overlap + 1;
    let three = both.renewed(later).unwrap().expect("the first authority is about to end");
    let end = START + LIFECYCLE.lives;
    assert!(trusted(&three.certificates(), &issue(&three, end), NAME, end));
}

/// Simulates two replicas for three years. A client always trusts both certificates, even if it receives new bundles
/// late.
#[test]
fn a_client_half_an_hour_late_notices_no_rotation() {
    const STEP: u64 = HOUR / 2;
    let mut authorities = first();
    let mut leaves = [issue(&authorities, START), issue(&authorities, START)];
    let mut bundle = authorities.certificates();
    let mut rotations = 0;
    for now in (START..START + 3 * 365 * DAY).step_by(usize::try_from(STEP).unwrap()) {
        let old = std::mem::replace(&mut bundle, authorities.certificates());
        if let Some(renewed) = authorities.renewed(now).unwrap() {
            rotations += 1;
            authorities = renewed;
            assert!(authorities.all.len() <= 2, "old authorities are removed");
        }
        for (replica, leaf) in leaves.iter_mut().enumerate() {
            // The second replica is also two steps late.
            if now >= leaf.renew_at + 2 * STEP * replica as u64 {
                *leaf = issue(&authorities, now);
                assert!(leaf.renew_at > now, "the certificate would be renewed all the time");
            }
        }
        // Verifying is slow, so the test does it once a day and around every change.
        if old != authorities.certificates() || (now - START).is_multiple_of(DAY) {
            for leaf in &leaves {
                assert!(trusted(&old, leaf, NAME, now), "replica at day {}", (now - START) / DAY);
            }
        }
    }
    // Every 245 days, an authority is added, and the one that has ended is removed with the same write.
    assert_eq!(rotations, 4);
}

#[test]
fn a_new_authority_is_published_before_it_signs() {
    let old = first();
    let later = START + LIFECYCLE.lives - LIFECYCLE.overlap + 1;
    let both = old.renewed(later).unwrap().expect("the first authority is about to end");
    assert_eq!(both.all.len(), 2);
    assert!(trusted(&old.certificates(), &issue(&both, later), NAME, later), "the old authority still signs");
    assert_eq!(issue(&both, later).renew_at, later + LIFECYCLE.published_for, "renewed when the new one can sign");
    let ripe = issue(&both, later + LIFECYCLE.published_for);
    assert!(
        !trusted(&old.certificates(), &ripe, NAME, later + LIFECYCLE.published_for)
            && trusted(&both.certificates(), &ripe, NAME, later + LIFECYCLE.published_for)
    );
    let next = later + LIFECYCLE.lives - LIFECYCLE.overlap + 1;
    let two = both.renewed(next).unwrap().expect("the second authority is about to end");
    assert_eq!((two.all.len(), two.shares_one_with(&old)), (2, false), "the old authority has ended");
    assert!(!format!("{both:?}").contains("PRIVATE"), "keys do not get into logs");
}

/// The clock is set forward by years, and back again. Peers that trust the earlier authority continue to work.
#[test]
fn trust_survives_a_clock_that_was_years_ahead() {
    let known = first();
    let ahead = START + 20 * LIFECYCLE.lives;
    let both = known.renewed(ahead).unwrap().expect("by that clock the first authority has ended");
    assert!(trusted(&both.certificates(), &issue(&both, ahead), NAME, ahead), "an ended authority must not sign");
    assert!(both.renewed(ahead + 1).unwrap().is_none(), "one new authority is enough");
    for signer in [Signer::Newest, Signer::Oldest] {
        let names = [NAME.to_owned()];
        let leaf = both.leaf(&order(&names, signer), START + 60).unwrap().expect("the set has an authority");
        assert!(trusted(&known.certificates(), &leaf, NAME, START + 60), "{signer:?}");
    }
    let next = ahead + LIFECYCLE.lives - LIFECYCLE.overlap + 1;
    let two = both.renewed(next).unwrap().expect("the authority by the fast clock is about to end");
    assert!(!two.shares_one_with(&known), "the clock has been right for the life of an authority");
}

/// A client that got the bundle when the first authority was alone, and gets no update, trusts the certificates of the
/// oldest.
#[test]
fn the_oldest_signs_until_it_is_about_to_end() {
    let old = first();
    let later = START + LIFECYCLE.lives - LIFECYCLE.overlap + 1;
    let both = old.renewed(later).unwrap().expect("the first authority is about to end");
    let names = [NAME.to_owned()];
    let oldest = |now| both.leaf(&order(&names, Signer::Oldest), now).unwrap().expect("the set has an authority");
    let end = START + LIFECYCLE.lives;
    for (now, by_old) in [
        (later, true),
        (later + LIFECYCLE.published_for, true),
        (end - DAY, true),
        (end - LIFECYCLE.published_for, false),
    ] {
        let leaf = oldest(now);
        assert_eq!(trusted(&old.certificates(), &leaf, NAME, now), by_old, "{now}");
        assert!(trusted(&both.certificates(), &leaf, NAME, now), "{now}");
        assert!(leaf.not_after <= end || !by_old, "the certificate outlives its authority");
    }
}
