use std::collections::VecDeque;

use rustls::{
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{ServerName, UnixTime},
    server::WebPkiClientVerifier,
};

use super::*;
use crate::authority::HOUR;

const START: u64 = 1_800_000_000;
const HOST: &str = "weir-operator-identity.weir-system.svc";
const POD: &str = "3f0c.shop.pod.weir.dev";

/// The lifetimes are in proportion to the defaults, and a hundred times shorter.
const LIFE: u64 = 24 * HOUR / 100;
const LIFECYCLE: Lifecycle =
    Lifecycle { subject: "test", lives: 40 * LIFE, overlap: 20 * LIFE, published_for: LIFE + LIFE / 2 };

fn order<'a>(names: &'a [String], usage: ExtendedKeyUsagePurpose, signer: Signer) -> Order<'a> {
    Order { names, usage, lives: LIFE, signer }
}

fn leaf(authorities: &Authorities, name: &str, usage: ExtendedKeyUsagePurpose, signer: Signer, now: u64) -> Leaf {
    let names = [name.to_owned()];
    authorities.leaf(&order(&names, usage, signer), now).unwrap().expect("the set has an authority")
}

/// The newest certificate of an agent, and the one with which the operator calls agents.
fn agent_and_operator(authorities: &Authorities, now: u64) -> (Leaf, Leaf) {
    let agent = leaf(authorities, POD, ExtendedKeyUsagePurpose::ServerAuth, Signer::Newest, now);
    (agent, leaf(authorities, OPERATOR_NAME, ExtendedKeyUsagePurpose::ClientAuth, Signer::Newest, now))
}

fn roots(bundle: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    Arc::new(roots)
}

fn at(now: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now))
}

fn trusts_server(bundle: &str, leaf: &Leaf, name: &'static str, now: u64) -> bool {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(bundle), provider).build().unwrap();
    let name = ServerName::try_from(name).unwrap();
    verifier.verify_server_cert(&leaf.certificate, &[], &name, &[], at(now)).is_ok()
}

fn trusts_client(bundle: &str, leaf: &Leaf, now: u64) -> bool {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(bundle), provider).build().unwrap();
    verifier.verify_client_cert(&leaf.certificate, &[], at(now)).is_ok()
}

#[test]
fn agent_certificates_are_not_valid_for_the_operator() {
    let authorities = Authorities::none(LIFECYCLE).renewed(START).unwrap().unwrap();
    let bundle = authorities.certificates();
    let (agent, operator) = agent_and_operator(&authorities, START);
    let is_only_server = trusts_server(&bundle, &agent, POD, START) && !trusts_client(&bundle, &agent, START);
    assert!(is_only_server, "an agent's certificate must not be valid for a client");
    assert!(trusts_client(&bundle, &operator, START), "the operator's certificate must be valid for a client");
    assert!(!trusts_server(&bundle, &operator, OPERATOR_NAME, START), "it must not identify a server");
}

/// Simulates agents and two replicas over several authorities. At no time may a push fail. For half the life of an
/// authority, a restarted agent can request a certificate with the authorities of its pod's creation.
#[test]
fn no_push_fails_while_authorities_come_and_go() {
    struct Agent {
        shown: Leaf,
        trusted: String,
        due: u64,
    }
    const STEP: u64 = LIFE / 12;
    let mut authorities = Authorities::none(LIFECYCLE).renewed(START).unwrap().unwrap();
    let client = |authorities: &Authorities, now| agent_and_operator(authorities, now).1;
    let server = |authorities: &Authorities, now| {
        leaf(authorities, HOST, ExtendedKeyUsagePurpose::ServerAuth, Signer::Oldest, now)
    };
    let mut operator = client(&authorities, START);
    let mut service = server(&authorities, START);
    let mut agents: Vec<Agent> = Vec::new();
    let mut injected: VecDeque<(u64, String)> = VecDeque::new();
    let mut rotations = 0;
    let mut known = authorities.clone();
    for step in 0..(4 * LIFECYCLE.lives / STEP) {
        let now = START + step * STEP;
        // A replica observes the other one's write one step late.
        let late = std::mem::replace(&mut known, authorities.clone());
        if let Some(renewed) = authorities.renewed(now).unwrap() {
            authorities = renewed;
            rotations += 1;
        }
        if now >= operator.renew_at {
            operator = client(&late, now);
        }
        if now >= service.renew_at {
            service = server(&late, now);
        }
        let bundle = late.certificates();
        if step.is_multiple_of(12) {
            injected.push_back((now, bundle.clone()));
            while injected.front().is_some_and(|(since, _)| since + LIFECYCLE.overlap - 2 * LIFE < now) {
                injected.pop_front();
            }
            for (since, told) in &injected {
                assert!(trusts_server(told, &service, HOST, now), "authorities from {since}, restart at {now}");
            }
        }
        // One agent renews as late as its certificate allows, and the other at two thirds of that time.
        if agents.is_empty() {
            for due in [now + LIFE * 2 / 3, now + LIFE - STEP] {
                agents.push(Agent { shown: agent_and_operator(&late, now).0, trusted: bundle.clone(), due });
            }
        }
        for (index, agent) in agents.iter_mut().enumerate() {
            if now >= agent.due {
                assert!(trusts_server(&agent.trusted, &service, HOST, now), "no trust in the service at {now}");
                agent.shown = agent_and_operator(&late, now).0;
                agent.trusted = bundle.clone();
                agent.due = now + if index == 0 { LIFE * 2 / 3 } else { LIFE - STEP };
            }
            assert!(trusts_server(&bundle, &agent.shown, POD, now), "no trust in agent {index} at {now}");
            assert!(trusts_client(&agent.trusted, &operator, now), "agent {index} does not trust at {now}");
        }
    }
    // Each rotation adds one authority, and removes the one that has ended.
    assert!(rotations >= 7, "{rotations}");
}

#[test]
fn an_emptied_secret_is_restored_from_memory() {
    let known = Authorities::none(LIFECYCLE).renewed(START).unwrap().unwrap();
    let none = Authorities::none(LIFECYCLE);
    let back = wanted((&none, false), Some(&known), None, START + 1)
        .unwrap()
        .expect("the Secret must get the authorities back");
    assert_eq!(back.certificates(), known.certificates());
    assert!(wanted((&known, false), Some(&known), None, START + 1).unwrap().is_none());
    assert!(wanted((&known, false), None, None, START + 1).unwrap().is_none());
    let fresh = wanted((&none, false), None, None, START + 1).unwrap().expect("the Secret must get a new authority");
    assert_ne!(fresh.certificates(), known.certificates());
}

/// Someone damages one of two authorities in the Secret. Agents that trust only this one continue to work.
#[test]
fn a_damaged_authority_is_restored_from_memory() {
    let old = Authorities::none(LIFECYCLE).renewed(START).unwrap().unwrap();
    let now = START + LIFECYCLE.lives - LIFECYCLE.overlap + 1;
    let both = old.renewed(now).unwrap().expect("the first authority is about to end");
    let (certificates, keys) = (both.certificates(), both.keys());
    let (rest, outcome) = Authorities::read(LIFECYCLE, &certificates.replacen("-----BEGIN", "-----BEGUN", 1), &keys);
    assert!(outcome.is_err() && !rest.shares_one_with(&old), "the first authority is damaged");
    let restored = wanted((&rest, true), Some(&both), None, now).unwrap().expect("the first authority must return");
    assert_eq!(restored.certificates(), both.certificates());
    assert!(wanted((&rest, true), None, None, now).unwrap().is_none(), "the valid authority stays in use");
}

/// Someone replaces the Secret with that of another cluster. Running agents continue to work, and receive the new
/// authorities at their next renewal.
#[test]
fn foreign_authorities_are_added_to_the_remembered_ones() {
    let [known, other] =
        [10, 15].map(|lives| Authorities::none(LIFECYCLE).renewed(START - lives * LIFE).unwrap().unwrap());
    let now = START + 1;
    let both = wanted((&other, false), Some(&known), None, now).unwrap().expect("the known authorities must be added");
    assert!(both.certificates() == known.certificates() + &other.certificates(), "{both:?}");
    let service = leaf(&both, HOST, ExtendedKeyUsagePurpose::ServerAuth, Signer::Oldest, now);
    assert!(trusts_server(&known.certificates(), &service, HOST, now), "a running agent must trust the service");
    let (_, operator) = agent_and_operator(&both, now);
    assert!(trusts_client(&known.certificates(), &operator, now), "a running agent must trust the operator");
    // If two replicas remember different authorities, no replica reverts the other's write.
    for remembered in [&known, &other, &both] {
        assert!(wanted((&both, false), Some(remembered), None, now).unwrap().is_none());
    }
}

/// Replicas whose clocks differ renew the same Secret, for three lives of an authority.
#[test]
fn replicas_with_different_clocks_do_not_revert_each_other() {
    const STEP: u64 = LIFECYCLE.lives / 20;
    for lives_ahead in [[0, 0, 1], [0, 1, 2], [0, 30, 30], [50, 0, 2]] {
        for has_memory in [true, false] {
            let mut found = Authorities::none(LIFECYCLE);
            let mut replicas = lives_ahead.map(|lives| (lives * LIFECYCLE.lives, None::<Authorities>));
            let mut writes = 0;
            for now in (START..START + 3 * LIFECYCLE.lives).step_by(usize::try_from(STEP).unwrap()) {
                let mut is_quiet = false;
                while !is_quiet {
                    is_quiet = true;
                    for (ahead, remembered) in &mut replicas {
                        if let Some(wanted) = wanted((&found, false), remembered.as_ref(), None, now + *ahead).unwrap()
                        {
                            (found, is_quiet) = (wanted, false);
                            writes += 1;
                        } else if has_memory {
                            *remembered = Some(found.clone());
                        }
                    }
                    // Each replica needs six authorities in this time, and restores some after writes of others.
                    assert!(writes <= 40, "endless writes: clocks are {lives_ahead:?} lives ahead");
                }
            }
        }
    }
}

/// New certificates are valid on machines whose clock is off by an hour, and certificates issued on such a machine are
/// valid on others.
#[test]
fn a_clock_that_is_set_by_an_hour_breaks_no_trust() {
    const LIVES: u64 = 24 * HOUR;
    let lifecycle =
        Lifecycle { subject: "test", lives: 3650 * LIVES, overlap: 1825 * LIVES, published_for: LIVES + HOUR };
    let authorities = Authorities::none(lifecycle).renewed(START).unwrap().unwrap();
    let bundle = authorities.certificates();
    let issued = |name: &str, usage, now| {
        let names = [name.to_owned()];
        let order = Order { names: &names, usage, lives: LIVES, signer: Signer::Newest };
        authorities.leaf(&order, now).unwrap().expect("the set has an authority")
    };
    for (what, made_at, looked_at) in [
        ("set forward", START + 1, START + 1 + HOUR),
        ("set back", START + 1, START + 1 - HOUR),
        ("issued by a fast clock", START + 1 + HOUR, START + 1),
        ("issued by a slow clock", START + 1 - HOUR, START + 1),
    ] {
        let agent = issued(POD, ExtendedKeyUsagePurpose::ServerAuth, made_at);
        let operator = issued(OPERATOR_NAME, ExtendedKeyUsagePurpose::ClientAuth, made_at);
        assert!(trusts_server(&bundle, &agent, POD, looked_at), "{what}: the agent's certificate");
        assert!(trusts_client(&bundle, &operator, looked_at), "{what}: the operator's certificate");
        assert!(authorities.renewed(looked_at).unwrap().is_none(), "{what}: the authorities change");
    }
}

/// Returns an authority of another issuer, valid from this time on: certificate and key.
fn company(from: u64, name: &str) -> (String, String) {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "Example");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(from + LIFECYCLE.lives);
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn an_external_authority_signs_and_none_is_created_next_to_it() {
    let (certificate, key) = company(START, "company");
    let made = Authorities::made_elsewhere(LIFECYCLE, &certificate, &key, START).unwrap();
    let none = Authorities::none(LIFECYCLE);
    let first = wanted((&none, false), None, Some(&made), START).unwrap().expect("the authority must be added");
    assert_eq!(first.certificates(), made.certificates());
    assert!(wanted((&first, false), Some(&first), Some(&made), START).unwrap().is_none(), "it is already known");
    let late = START + LIFECYCLE.lives - LIFE;
    assert!(wanted((&first, false), Some(&first), Some(&made), late).unwrap().is_none(), "the issuer must renew it");
    let (agent, _) = agent_and_operator(&first, START);
    assert!(trusts_server(&certificate, &agent, POD, START), "a client that trusts the company trusts its agents");

    // The next authority is published before it signs, and the first stays for agents that trust no other.
    let changed = START + 10 * LIFE;
    let (second, second_key) = company(changed, "company again");
    let second = Authorities::made_elsewhere(LIFECYCLE, &second, &second_key, changed).unwrap();
    let both =
        wanted((&first, false), Some(&first), Some(&second), changed).unwrap().expect("the second must be added");
    assert!(both.shares_one_with(&first) && both.shares_one_with(&second));
    let client = |now| agent_and_operator(&both, now).1;
    assert!(trusts_client(&first.certificates(), &client(changed), changed), "agents trust only the first authority");
    let later = changed + HOUR + 3 * LIFE;
    assert!(trusts_client(&second.certificates(), &client(later), later), "agents trust the second");
    // A deleted file removes no authority.
    assert!(wanted((&both, false), Some(&both), Some(&none), later).unwrap().is_none());
}

#[test]
fn invalid_authorities_are_refused_with_the_fix() {
    let (certificate, key) = company(START, "company");
    let (_, other) = company(START, "other");
    let (early, early_key) = company(START + LIFE, "early");
    let plain = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
    for (certificate, key, expected) in [
        ("", key.as_str(), "tls.crt has no certificate"),
        (&certificate, "", "tls.key: "),
        (&certificate, "-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n", "in PKCS#8 format"),
        (&certificate, &other, "tls.crt and tls.key do not match"),
        (
            &plain.cert.pem(),
            &plain.signing_key.serialize_pem(),
            "tls.crt is not a certificate authority: issue it with isCA",
        ),
        (&early, &early_key, "tls.crt becomes valid in 864 s: check the clocks"),
    ] {
        let error = Authorities::made_elsewhere(LIFECYCLE, certificate, key, START).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
