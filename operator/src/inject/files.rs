//! The webhook's certificate from an external issuer: two files, as in a Secret of type `kubernetes.io/tls`.
//!
//! The files are compared by content, because the kubelet replaces a symbolic link in their path. This module writes
//! nothing: the issuer also configures the authority that the apiserver trusts.

use std::{
    io,
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

use crate::serve;

#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, io::Error),
    #[error("{0} is not PEM: {1}")]
    Pem(PathBuf, PemError),
    #[error("{0} and {1} do not match: {2}")]
    Tls(PathBuf, PathBuf, rustls::Error),
}

/// A folder with `tls.crt` and `tls.key`, and their content when they were last used.
#[derive(Debug)]
pub(super) struct Files {
    certificates: PathBuf,
    key: PathBuf,
    taken: Option<[Vec<u8>; 2]>,
}

impl Files {
    /// Returns the files of a folder, not yet read.
    pub(super) fn new(folder: &Path) -> Self {
        Self { certificates: folder.join("tls.crt"), key: folder.join("tls.key"), taken: None }
    }

    /// Returns the TLS configuration, if the files have changed. Files that do not match, as between two writes, are an
    /// error, and are read again the next time.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the files are invalid or do not match.
    pub(super) async fn newer(&mut self) -> Result<Option<Arc<ServerConfig>>, FilesError> {
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
        let tls = serve::tls(chain, key);
        let tls = tls.map_err(|error| FilesError::Tls(self.certificates.clone(), self.key.clone(), error))?;
        self.taken = Some(found);
        Ok(Some(tls))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
        let fault = async |files: &mut Files| files.newer().await.expect_err("the files are not usable").to_string();

        assert!(fault(&mut files).await.contains("tls.crt cannot be read"));
        write("", "");
        assert!(fault(&mut files).await.contains("tls.key is not PEM"));
        write(&first.0, &first.1);
        assert!(files.newer().await.unwrap().is_some(), "the first files are used");
        assert!(files.newer().await.unwrap().is_none(), "unchanged files are not used again");
        // The new certificate is written first, and then its key.
        write(&second.0, &first.1);
        assert!(fault(&mut files).await.contains("do not match"));
        assert!(fault(&mut files).await.contains("do not match"), "the error must remain");
        write(&second.0, &second.1);
        assert!(files.newer().await.unwrap().is_some(), "the second files are used");
        // A file is missing for a short time, and then exists again unchanged.
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert!(fault(&mut files).await.contains("tls.key cannot be read"));
        write(&second.0, &second.1);
        assert!(files.newer().await.unwrap().is_none(), "unchanged files are not used again");
    }
}
