use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use super::*;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn leaf(authority: &CertifiedIssuer<'static, KeyPair>) -> (String, String) {
    let mut params = CertificateParams::default();
    params.subject_alt_names.push(SanType::DnsName("operator.test".try_into().unwrap()));
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

struct Folder {
    folder: tempfile::TempDir,
    files: TlsFiles,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let files = TlsFiles { agent_ca: path("ca.crt"), client_cert: path("tls.crt"), client_key: path("tls.key") };
        let authority = authority();
        let (cert, key) = leaf(&authority);
        let written = Self { folder, files };
        for (name, text) in [("ca.crt", authority.pem()), ("tls.crt", cert), ("tls.key", key)] {
            written.write(name, &text);
        }
        written
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}

#[test]
fn invalid_files_are_named_with_their_flag() {
    let (cert, key) = leaf(&authority());
    for (name, text, flag, problem) in [
        ("ca.crt", "", "--agent-ca", "contains no certificate in PEM"),
        ("ca.crt", key.as_str(), "--agent-ca", "contains no certificate in PEM"),
        ("tls.crt", "-----BEGIN NONSENSE-----", "--client-cert", "is not PEM"),
        ("tls.crt", key.as_str(), "--client-cert", "contains no certificate in PEM"),
        ("tls.key", cert.as_str(), "--client-key", "must have a private key in PEM"),
        ("tls.key", key.as_str(), "--client-key", "is not the key of --client-cert"),
    ] {
        let folder = Folder::new();
        folder.write(name, text);
        let error = DialingFiles::open(folder.files.clone()).unwrap_err().to_string();
        let path = folder.folder.path().join(name).display().to_string();
        assert!(error.starts_with(&format!("{flag} {path}: {problem}")), "{name} {text:?}: {error}");
    }
    let folder = Folder::new();
    std::fs::remove_file(&folder.files.client_key).unwrap();
    let error = DialingFiles::open(folder.files).unwrap_err().to_string();
    assert!(error.contains("tls.key: cannot be read: No such file"), "{error}");
}

#[test]
fn changed_files_are_used_once_they_match() {
    let folder = Folder::new();
    let mut dialing = DialingFiles::open(folder.files.clone()).unwrap();
    let mut held = dialing.held();
    dialing.refresh().unwrap();
    assert!(!held.has_changed().unwrap(), "no file has changed");

    let (cert, key) = leaf(&authority());
    folder.write("tls.crt", &cert);
    for _ in 0..2 {
        let error = dialing.refresh().unwrap_err().to_string();
        assert!(error.contains("--client-key") && error.contains("is not the key of"), "{error}");
        assert!(!held.has_changed().unwrap(), "the previous configuration stays in use");
    }
    folder.write("tls.key", &key);
    dialing.refresh().unwrap();
    assert!(held.has_changed().unwrap());
    held.mark_unchanged();

    let authorities = folder.read("ca.crt");
    folder.write("ca.crt", "");
    assert!(dialing.refresh().is_err());
    folder.write("ca.crt", &authorities);
    dialing.refresh().unwrap();
    folder.write("ca.crt", &format!("{authorities}{}", authority().pem()));
    dialing.refresh().unwrap();
    assert!(held.has_changed().unwrap(), "a second authority");
}
