//! The authorities that sign the webhook's certificates: when they come, who signs, when they go.
//!
//! Pure but for fresh keys; time is an argument, in seconds of Unix time. All that there is to know is in the
//! certificates, so every replica comes to the same answer from the same Secret. An authority is published before it
//! signs: what a server shows was in the apiserver's bundle long before.

use std::{fmt, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// For clocks that are behind.
const BACKDATED: u64 = HOUR;
/// How long an authority is published before it signs, if there is another one.
const RIPENS: u64 = HOUR;
const AUTHORITY_LIVES: u64 = 365 * DAY;
/// The next one comes when this much of the life is left.
const AUTHORITY_OVERLAP: u64 = 120 * DAY;
const LEAF_LIVES: u64 = 7 * DAY;

/// PEM that holds no authorities.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct InvalidAuthorities(String);

/// Newest last.
#[derive(Debug, Default)]
pub(super) struct Authorities(Vec<Authority>);

#[derive(Clone)]
struct Authority {
    certificate: String,
    key: String,
    not_before: u64,
    not_after: u64,
}

impl fmt::Debug for Authority {
    /// Without the key: it has no business in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}..{})", self.not_before, self.not_after)
    }
}

/// What a server shows.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
    /// When the next one should take over.
    pub(super) renew_at: u64,
}

impl Authorities {
    /// Reads certificates and their keys, in the same order.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub(super) fn read(certificates: &str, keys: &str) -> Result<Self, InvalidAuthorities> {
        let (certificates, keys) = (blocks(certificates), blocks(keys));
        if certificates.len() != keys.len() {
            let (certificates, keys) = (certificates.len(), keys.len());
            return Err(InvalidAuthorities(format!("{certificates} certificates and {keys} keys")));
        }
        let authorities =
            certificates.into_iter().zip(keys).map(|(certificate, key)| Authority::read(certificate, key));
        Ok(Self(authorities.collect::<Result<_, _>>()?))
    }

    /// What they should be instead; none if all is well.
    pub(super) fn renewed(&self, now: u64) -> Result<Option<Self>, rcgen::Error> {
        let living = self.0.iter().filter(|authority| now < authority.not_after);
        let mut renewed: Vec<Authority> = living.cloned().collect();
        let newest = renewed.last().map_or(0, |authority| authority.not_after);
        if newest < now + AUTHORITY_OVERLAP {
            renewed.push(Authority::fresh(now)?);
        }
        let changed = renewed.len() != self.0.len() || newest < now + AUTHORITY_OVERLAP;
        Ok(changed.then_some(Self(renewed)))
    }

    /// All of their certificates in PEM: the bundle that clients trust.
    pub(super) fn certificates(&self) -> String {
        self.0.iter().map(|authority| authority.certificate.as_str()).collect()
    }

    /// All of their keys in PEM.
    pub(super) fn keys(&self) -> String {
        self.0.iter().map(|authority| authority.key.as_str()).collect()
    }

    /// A certificate for these names or addresses; none if there is no authority.
    pub(super) fn issue(&self, names: &[String], now: u64) -> Result<Option<Leaf>, rcgen::Error> {
        let Some(signer) = self.signer(now) else { return Ok(None) };
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named("weir-operator webhook");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let not_after = signer.not_after.min(now + LEAF_LIVES);
        valid(&mut params, now.saturating_sub(BACKDATED), not_after);
        let issuer =
            Issuer::new(authority_params(signer.not_before, signer.not_after), KeyPair::from_pem(&signer.key)?);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        // With half of its life left, or as soon as a newer authority may sign.
        let ripe = self.0.iter().map(|authority| authority.not_before + BACKDATED + RIPENS).filter(|ripe| *ripe > now);
        let renew_at = ripe.chain([now.midpoint(not_after)]).min().unwrap_or(now);
        Ok(Some(Leaf { certificate, key, renew_at }))
    }

    /// The newest that was published long enough, else the oldest there is.
    fn signer(&self, now: u64) -> Option<&Authority> {
        let ripe =
            |authority: &&Authority| authority.not_before + BACKDATED + RIPENS <= now && now < authority.not_after;
        self.0.iter().rev().find(ripe).or(self.0.first())
    }
}

impl Authority {
    fn fresh(now: u64) -> Result<Self, rcgen::Error> {
        let (not_before, not_after) = (now.saturating_sub(BACKDATED), now + AUTHORITY_LIVES);
        let key = KeyPair::generate()?;
        let certificate = authority_params(not_before, not_after).self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), not_before, not_after })
    }

    fn read(certificate: String, key: String) -> Result<Self, InvalidAuthorities> {
        let invalid = |problem: &dyn fmt::Display| InvalidAuthorities(problem.to_string());
        KeyPair::from_pem(&key).map_err(|error| invalid(&error))?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| invalid(&error))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| invalid(&error))?;
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let validity = parsed.validity();
        let (not_before, not_after) = (seconds(validity.not_before), seconds(validity.not_after));
        Ok(Self { certificate, key, not_before, not_after })
    }
}

/// The same for its own certificate and for those that it signs.
fn authority_params(not_before: u64, not_after: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("weir-operator webhook authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    valid(&mut params, not_before, not_after);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// From and to which moment a certificate is valid; rcgen speaks the time crate's language, which is not ours.
fn valid(params: &mut CertificateParams, from: u64, to: u64) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(to);
}

/// The blocks of PEM text, each as it stands there.
fn blocks(pem: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block = String::new();
    for line in pem.lines().map(str::trim).filter(|line| !line.is_empty()) {
        block.push_str(line);
        block.push('\n');
        if line.starts_with("-----END ") {
            blocks.push(std::mem::take(&mut block));
        }
    }
    blocks
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
