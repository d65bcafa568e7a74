//! The webhook's certificate from an external issuer: two files, as in a Secret of type `kubernetes.io/tls`.
//!
//! The files are compared by content, because the kubelet replaces a symbolic link in their path. This module writes
//! nothing: the issuer also configures the authority that the apiserver trusts.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{Error as PemError, PemObject},
    },
};

use crate::{authority::validity, serve};

#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, io::Error),
    #[error("{0} is not PEM: {1}")]
    Pem(PathBuf, PemError),
    #[error("{0} and {1} do not match: {2}")]
    Tls(PathBuf, PathBuf, rustls::Error),
    #[error("{0} has expired or is not yet valid: the certificate in use, which is valid, stays in use")]
    NotValid(PathBuf),
}

/// A folder with `tls.crt` and `tls.key`, and their content when they were last used.
#[derive(Debug)]
pub(super) struct Files {
    certificates: PathBuf,
    key: PathBuf,
    taken: Option<[Vec<u8>; 2]>,
    /// The validity of the certificate in use, in seconds of Unix time.
    validity: Range<u64>,
}

impl Files {
    /// Returns the files of a folder, not yet read.
    pub(super) fn new(folder: &Path) -> Self {
        Self { certificates: folder.join("tls.crt"), key: folder.join("tls.key"), taken: None, validity: 0..0 }
    }

    /// Returns the TLS configuration, if the files have changed. Files that do not match, as between two writes, are an
    /// error, and are read again the next time.
    ///
    /// # Errors
    ///
    /// A file cannot be read, the files are invalid or do not match, or a valid certificate would be replaced by one
    /// that is not valid `now`.
    pub(super) async fn newer(&mut self, now: u64) -> Result<Option<Arc<ServerConfig>>, FilesError> {
        let read =
            async |path: &PathBuf| tokio::fs::read(path).await.map_err(|error| FilesError::Read(path.clone(), error));
        let found = [read(&self.certificates).await?, read(&self.key).await?];
        if self.taken.as_ref() == Some(&found) {
            return Ok(None);
        }
        let of = |path: &PathBuf, error| FilesError::Pem(path.clone(), error);
        let chain = CertificateDer::pem_slice_iter(&found[0]).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| of(&self.certificates, error))?;
        let key = PrivateKeyDer::from_pem_slice(&found[1]).map_err(|error| of(&self.key, error))?;
        let validity = chain.first().and_then(|first| validity(first)).unwrap_or_default();
        let tls = serve::tls(chain, key);
        let tls = tls.map_err(|error| FilesError::Tls(self.certificates.clone(), self.key.clone(), error))?;
        if self.validity.contains(&now) && !validity.contains(&now) {
            return Err(FilesError::NotValid(self.certificates.clone()));
        }
        (self.taken, self.validity) = (Some(found), validity);
        Ok(Some(tls))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    /// Writes a certificate with this validity, and its key.
    fn write(folder: &Path, (from, to): (i32, i32)) {
        let mut params = rcgen::CertificateParams::new(["hook.weir-system.svc".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(folder.join("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
    }

    #[tokio::test]
    async fn a_valid_certificate_is_replaced_only_by_a_valid_one() {
        // `NOW` is in January 2027.
        let (expired, valid, early) = ((2020, 2026), (2026, 2028), (2028, 2030));
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path());
        write(folder.path(), expired);
        assert!(files.newer(NOW).await.unwrap().is_some(), "without a valid certificate, any is used");
        write(folder.path(), early);
        assert!(files.newer(NOW).await.unwrap().is_some(), "the certificate in use is not valid either");
        write(folder.path(), valid);
        assert!(files.newer(NOW).await.unwrap().is_some(), "a valid certificate is used");
        for invalid in [expired, early] {
            write(folder.path(), invalid);
            let error = files.newer(NOW).await.expect_err("the certificate is not valid").to_string();
            assert!(error.contains("tls.crt has expired or is not yet valid"), "{error}");
        }
        let later = NOW + 2 * 365 * 86_400;
        assert!(files.newer(later).await.unwrap().is_some(), "the last file is valid later");
    }

    #[tokio::test]
    async fn files_are_used_when_they_changed_and_match() {
        let folder = tempfile::tempdir().unwrap();
        let write = |certificate: &str, key: &str| {
            fs::write(folder.path().join("tls.crt"), certificate).unwrap();
            fs::write(folder.path().join("tls.key"), key).unwrap();
        };
        let made = || {
            let made = rcgen::generate_simple_self_signed(["hook.weir-system.svc".to_owned()]).unwrap();
            (made.cert.pem(), made.signing_key.serialize_pem())
        };
        let (first, second) = (made(), made());
        let mut files = Files::new(folder.path());
        let fault = async |files: &mut Files| files.newer(NOW).await.expect_err("the files are not usable").to_string();

        assert!(fault(&mut files).await.contains("tls.crt cannot be read"));
        write("", "");
        assert!(fault(&mut files).await.contains("tls.key is not PEM"));
        write(&first.0, &first.1);
        assert!(files.newer(NOW).await.unwrap().is_some(), "the first files are used");
        assert!(files.newer(NOW).await.unwrap().is_none(), "unchanged files are not used again");
        // The new certificate is written first, and then its key.
        write(&second.0, &first.1);
        assert!(fault(&mut files).await.contains("do not match"));
        assert!(fault(&mut files).await.contains("do not match"), "the error must remain");
        write(&second.0, &second.1);
        assert!(files.newer(NOW).await.unwrap().is_some(), "the second files are used");
        // A file is missing for a short time, and then exists again unchanged.
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert!(fault(&mut files).await.contains("tls.key cannot be read"));
        write(&second.0, &second.1);
        assert!(files.newer(NOW).await.unwrap().is_none(), "unchanged files are not used again");
    }
}
