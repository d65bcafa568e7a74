//! The operator's own certificate authorities: when each one is created, signs, and is removed.
//!
//! This module does no I/O and reads no clock: time is an argument, in seconds of Unix time. Keys are random. The
//! certificates contain all state, so every replica computes the same result from the same Secret. An authority is
//! published long before it signs, so that every peer already has it in its bundle.

pub(crate) mod renewal;
pub(crate) mod secret;

use std::{fmt, ops::Range, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

pub(crate) const HOUR: u64 = 3600;
pub(crate) const DAY: u64 = 24 * HOUR;
/// The time by which certificates are backdated, for peers whose clocks are behind.
const BACKDATED: u64 = HOUR;

/// The purpose of authorities, and the durations of the phases of their lives, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifecycle {
    /// The common name of the certificates that the authorities sign. An authority's own name adds `authority`.
    pub(crate) subject: &'static str,
    /// The validity of an authority.
    pub(crate) lives: u64,
    /// The remaining life of an authority at which the next one is created.
    pub(crate) overlap: u64,
    /// The time for which an authority is published before it signs, if another authority exists.
    pub(crate) published_for: u64,
}

/// The error for PEM without usable authorities.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InvalidAuthorities(String);

/// The authorities, newest last.
#[derive(Clone, Debug)]
pub(crate) struct Authorities {
    lifecycle: Lifecycle,
    all: Vec<Authority>,
}

#[derive(Clone)]
struct Authority {
    certificate: String,
    key: String,
    not_before: u64,
    not_after: u64,
}

impl fmt::Debug for Authority {
    /// Omits the key, which must not appear in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}..{})", self.not_before, self.not_after)
    }
}

/// The content of a certificate.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// DNS names, addresses, and URIs.
    pub(crate) names: &'a [String],
    pub(crate) usage: ExtendedKeyUsagePurpose,
    /// The validity of the certificate, in seconds. It ends with the validity of its authority at the latest.
    pub(crate) lives: u64,
    pub(crate) signer: Signer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signer {
    /// The newest authority that has been published for long enough, for peers that receive new authorities in time.
    Newest,
    /// The oldest authority, for peers that may not have received a newer one.
    Oldest,
}

/// A certificate without its key.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) certificate: rcgen::Certificate,
    /// The time at which the certificate expires, in seconds of Unix time.
    pub(crate) not_after: u64,
    pub(crate) renew_at: u64,
}

/// A certificate with its key.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// The time at which the certificate expires, in seconds of Unix time.
    pub(crate) not_after: u64,
    pub(crate) renew_at: u64,
}

impl Authorities {
    pub(crate) fn none(lifecycle: Lifecycle) -> Self {
        Self { lifecycle, all: Vec::new() }
    }

    /// Parses certificates and their keys, in the same order. Returns the valid authorities, because peers trust them,
    /// and the fault if the text has anything else.
    pub(crate) fn read(lifecycle: Lifecycle, certificates: &str, keys: &str) -> (Self, Result<(), InvalidAuthorities>) {
        let (certificates, keys) = (blocks(certificates), blocks(keys));
        let (mut all, mut outcome) = (Vec::new(), Ok(()));
        if certificates.len() != keys.len() {
            let (certificates, keys) = (certificates.len(), keys.len());
            outcome = Err(InvalidAuthorities(format!(
                "there must be one key for each certificate, and there are {certificates} certificates and {keys} keys"
            )));
        }
        for (certificate, key) in certificates.into_iter().zip(keys) {
            match Authority::read(certificate, key, ["ca.crt", "ca.key"]) {
                Ok(authority) => all.push(authority),
                Err(fault) => outcome = outcome.and(Err(fault)),
            }
        }
        (Self { lifecycle, all }, outcome)
    }

    /// Returns the authorities that should replace these, or `None` if no change is needed. An authority that is not
    /// yet valid, from a clock that was ahead, replaces no other one.
    pub(crate) fn renewed(&self, now: u64) -> Result<Option<Self>, rcgen::Error> {
        let newest = self.all.iter().filter(|it| it.not_before <= now).map(|it| it.not_after).max().unwrap_or(0);
        if newest >= now + self.lifecycle.overlap {
            return Ok(None);
        }
        let mut renewed = self.without_ended(now);
        renewed.all.push(Authority::fresh(self.lifecycle, now)?);
        Ok(Some(renewed))
    }

    /// Returns the authorities that should replace these if another issuer created `others` and none are created here,
    /// or `None` if no change is needed.
    pub(crate) fn adopting(&self, others: &Self, now: u64) -> Option<Self> {
        let has_new = others.all.iter().any(|other| !self.has(other));
        has_new.then(|| self.without_ended(now).followed_by(others))
    }

    /// Removes expired authorities, once another one signs. So if a clock is set forward by years and back again, the
    /// authorities that peers trust still exist. Expired authorities are removed only when one is added. Otherwise, a
    /// replica would remove the authority of another one whose clock is far behind, which would add the next one, and
    /// so on.
    fn without_ended(&self, now: u64) -> Self {
        let is_followed = self.all.iter().any(|it| self.can_sign_from(it) <= now && now < it.not_after);
        let all = self.all.iter().filter(|authority| !is_followed || now < authority.not_after).cloned().collect();
        Self { lifecycle: self.lifecycle, all }
    }

    /// Returns these authorities, followed by those of `others` that are new.
    pub(crate) fn followed_by(mut self, others: &Self) -> Self {
        let new = others.all.iter().filter(|other| !self.has(other)).cloned().collect::<Vec<_>>();
        self.all.extend(new);
        self
    }

    /// Returns true if both sets have an authority in common.
    pub(crate) fn shares_one_with(&self, others: &Self) -> bool {
        self.all.iter().any(|authority| others.has(authority))
    }

    fn has(&self, authority: &Authority) -> bool {
        self.all.iter().any(|it| it.certificate == authority.certificate)
    }

    /// Returns true if any authority is valid.
    pub(crate) fn usable(&self, now: u64) -> bool {
        self.all.iter().any(|authority| authority.is_valid(now))
    }

    /// Returns all certificates in PEM: the bundle that peers trust.
    pub(crate) fn certificates(&self) -> String {
        self.all.iter().map(|authority| authority.certificate.as_str()).collect()
    }

    pub(crate) fn keys(&self) -> String {
        self.all.iter().map(|authority| authority.key.as_str()).collect()
    }

    /// Issues a certificate with a new key. Returns `None` if there is no authority.
    pub(crate) fn leaf(&self, order: &Order<'_>, now: u64) -> Result<Option<Leaf>, rcgen::Error> {
        let key = KeyPair::generate()?;
        let certified = self.certify(order, &key, now)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(certified.map(|Certified { certificate, not_after, renew_at }| {
            let certificate = certificate.der().clone();
            Leaf { certificate, key, not_after, renew_at }
        }))
    }

    /// Issues a certificate for an existing key. Returns `None` if there is no authority.
    pub(crate) fn certify(
        &self,
        order: &Order<'_>,
        key: &impl PublicKeyData,
        now: u64,
    ) -> Result<Option<Certified>, rcgen::Error> {
        let Some(signer) = self.signer(order.signer, now) else { return Ok(None) };
        let mut params = CertificateParams::default();
        for name in order.names {
            params.subject_alt_names.push(subject_alternative(name)?);
        }
        params.distinguished_name = named(self.lifecycle.subject.to_owned());
        params.extended_key_usages = vec![order.usage.clone()];
        params.use_authority_key_identifier_extension = true;
        let not_after = signer.not_after.min(now + order.lives);
        valid(&mut params, now.saturating_sub(BACKDATED), not_after);
        let issuer = Issuer::from_ca_cert_pem(&signer.certificate, KeyPair::from_pem(&signer.key)?)?;
        let certificate = params.signed_by(key, &issuer)?;
        // A certificate is replaced after half of its life, or as soon as a newer authority can sign.
        let ripe = self.all.iter().map(|authority| self.can_sign_from(authority)).filter(|ripe| *ripe > now);
        let renew_at = ripe.chain([now.midpoint(not_after)]).min().unwrap_or(now);
        Ok(Some(Certified { certificate, not_after, renew_at }))
    }

    fn signer(&self, signer: Signer, now: u64) -> Option<&Authority> {
        let mut valid = self.all.iter().filter(|authority| authority.is_valid(now));
        let any = valid.clone().next().or(self.all.first());
        match signer {
            // The date decides, not the order: an authority that was added behind the others may be older, and unknown
            // to every peer.
            Signer::Newest => valid.filter(|it| self.can_sign_from(it) <= now).max_by_key(|it| it.not_before),
            // The authority must outlive the certificate by enough time to use it.
            Signer::Oldest => valid.find(|authority| now + self.lifecycle.published_for < authority.not_after),
        }
        .or(any)
    }

    fn can_sign_from(&self, authority: &Authority) -> u64 {
        authority.not_before + BACKDATED + self.lifecycle.published_for
    }
}

impl Authorities {
    /// Reads the authority of another issuer from a Secret of type `kubernetes.io/tls`. If the Secret contains a chain,
    /// the first certificate signs and is trusted.
    ///
    /// # Errors
    ///
    /// The authority is invalid. The message explains why, and how to create a valid one.
    pub(crate) fn made_elsewhere(
        lifecycle: Lifecycle,
        chain: &str,
        key: &str,
        now: u64,
    ) -> Result<Self, InvalidAuthorities> {
        let certificate = blocks(chain).into_iter().next();
        let certificate = certificate.ok_or_else(|| InvalidAuthorities("tls.crt has no certificate".to_owned()))?;
        let authority = Authority::read(certificate, blocks(key).concat(), ["tls.crt", "tls.key"])?;
        if now < authority.not_before {
            return Err(InvalidAuthorities(format!(
                "tls.crt becomes valid in {} s: check the clocks of the issuer and of this machine",
                authority.not_before - now
            )));
        }
        Ok(Self { lifecycle, all: vec![authority] })
    }
}

impl Authority {
    fn fresh(lifecycle: Lifecycle, now: u64) -> Result<Self, rcgen::Error> {
        let (not_before, not_after) = (now.saturating_sub(BACKDATED), now + lifecycle.lives);
        let key = KeyPair::generate()?;
        let certificate = authority_params(lifecycle, not_before, not_after).self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), not_before, not_after })
    }

    /// Reads an authority. `crt` and `key` name the fields that contain it.
    fn read(certificate: String, pair: String, [crt, key]: [&str; 2]) -> Result<Self, InvalidAuthorities> {
        let invalid = |problem: String| Err(InvalidAuthorities(problem));
        let public = match KeyPair::from_pem(&pair) {
            Ok(pair) => pair.public_key_raw().to_owned(),
            Err(error) => {
                return invalid(format!(
                    "{key}: {error}: the key must be an ECDSA, Ed25519 or RSA key in PKCS#8 format"
                ));
            }
        };
        let der = match CertificateDer::from_pem_slice(certificate.as_bytes()) {
            Ok(der) => der,
            Err(error) => return invalid(format!("{crt}: {error}")),
        };
        let parsed = match X509Certificate::from_der(&der) {
            Ok((_, parsed)) => parsed,
            Err(error) => return invalid(format!("{crt}: {error}")),
        };
        if !parsed.is_ca() {
            return invalid(format!("{crt} is not a certificate authority: issue it with isCA"));
        }
        if parsed.public_key().subject_public_key.data.as_ref() != public {
            return invalid(format!("{crt} and {key} do not match"));
        }
        let Range { start: not_before, end: not_after } = validity_of(&parsed);
        Ok(Self { certificate, key: pair, not_before, not_after })
    }

    fn is_valid(&self, now: u64) -> bool {
        (self.not_before..self.not_after).contains(&now)
    }
}

/// Returns the validity of a certificate in DER, in seconds of Unix time, or `None` if it cannot be parsed.
pub(crate) fn validity(certificate: &[u8]) -> Option<Range<u64>> {
    X509Certificate::from_der(certificate).ok().map(|(_, certificate)| validity_of(&certificate))
}

fn validity_of(certificate: &X509Certificate<'_>) -> Range<u64> {
    let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
    let validity = certificate.validity();
    seconds(validity.not_before)..seconds(validity.not_after)
}

/// Returns an address, a URI or a DNS name, depending on the form of the text.
fn subject_alternative(name: &str) -> Result<SanType, rcgen::Error> {
    Ok(match name.parse() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) if name.contains("://") => SanType::URI(name.try_into()?),
        Err(_) => SanType::DnsName(name.try_into()?),
    })
}

/// Returns the parameters of an authority's own certificate and of an issuer that signs with it.
fn authority_params(lifecycle: Lifecycle, not_before: u64, not_after: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(format!("{} authority", lifecycle.subject));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    valid(&mut params, not_before, not_after);
    params
}

fn named(name: String) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Sets the validity. rcgen uses the time crate's types.
fn valid(params: &mut CertificateParams, from: u64, to: u64) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(to);
}

/// Splits a PEM text into its blocks, unchanged.
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
mod tests;
