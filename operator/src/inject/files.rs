//! The webhook's certificate where somebody else makes it: two files, as a Secret of type `kubernetes.io/tls` has them.
//!
//! They are compared by content, because the kubelet swaps a link above them. Nothing here writes: the program that makes the
//! certificate tells the apiserver whom to believe, too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::serve;

/// Why the files do not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, io::Error),
    #[error("{0} is no PEM: {1}")]
    Pem(PathBuf, PemError),
    #[error("{0} and {1} do not go together: {2}")]
    Tls(PathBuf, PathBuf, rustls::Error),
}

/// A folder with `tls.crt` and `tls.key`, and what they were when they were last taken.
#[derive(Debug)]
pub(super) struct Files {
    certificates: PathBuf,
    key: PathBuf,
    taken: Option<[Vec<u8>; 2]>,
}

impl Files {
    /// Nothing is read yet.
    pub(super) fn new(folder: &Path) -> Self {
        Self { certificates: folder.join("tls.crt"), key: folder.join("tls.key"), taken: None }
    }

    /// What to serve with, if it is another one than was last taken. A set that does not go together, as between two writes,
    /// is a fault, and is looked at again the next time.
    ///
    /// # Errors
    ///
    /// What is wrong with the files.
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
    async fn files_are_taken_when_they_change_and_go_together() {
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
        let fault = async |files: &mut Files| files.newer().await.expect_err("it is wrong").to_string();

        assert!(fault(&mut files).await.contains("tls.crt cannot be read"));
        write("", "");
        assert!(fault(&mut files).await.contains("tls.key is no PEM"));
        write(&first.0, &first.1);
        assert!(files.newer().await.unwrap().is_some(), "the first");
        assert!(files.newer().await.unwrap().is_none(), "the same");
        // Half of it is there, then the rest.
        write(&second.0, &first.1);
        assert!(fault(&mut files).await.contains("do not go together"));
        assert!(fault(&mut files).await.contains("do not go together"), "it was forgotten");
        write(&second.0, &second.1);
        assert!(files.newer().await.unwrap().is_some(), "the second");
        // Gone for a moment, and back as it was.
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert!(fault(&mut files).await.contains("tls.key cannot be read"));
        write(&second.0, &second.1);
        assert!(files.newer().await.unwrap().is_none(), "nothing is new");
    }
}
