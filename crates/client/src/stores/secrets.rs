//! The secrets of one store: files in a directory, which the kubelet writes from the Secrets of a `RateLimitStore`.

use std::{fs, io, path::Path};

use weir_store::{Credentials, RedisTls};

/// The files of one store. A store without secrets has no directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SecretFiles<'a>(pub(super) Option<&'a Path>);

impl SecretFiles<'_> {
    /// The user and its password. `prefix` is the beginning of the names of both files. `None` without a password.
    pub(super) fn credentials(self, prefix: &str) -> Result<Option<Credentials>, String> {
        let text = |file: &str| {
            let bytes = self.read(&format!("{prefix}{file}"))?;
            Ok::<_, String>(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned()))
        };
        // Templates of Secrets write an empty name for the default user.
        let username = text("username")?.filter(|name| !name.is_empty());
        match text("password")? {
            Some(password) => Ok(Some(Credentials { username, password })),
            None if username.is_some() => Err(self.without_password(prefix)),
            None => Ok(None),
        }
    }

    /// The certificates for TLS. With `has_authorities`, the file of the authorities must exist.
    pub(super) fn tls(self, has_authorities: bool) -> Result<RedisTls, String> {
        let authorities = self.read("ca.crt")?;
        if has_authorities && authorities.is_none() {
            return Err(self.missing("ca.crt", "add the key ca.crt to the Secret of spec.redis.tls.caSecretRef"));
        }
        let neither = "add the keys tls.crt and tls.key, or neither, to the Secret of spec.redis.credentialsSecretRef";
        let identity = match (self.read("tls.crt")?, self.read("tls.key")?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (None, Some(_)) => return Err(self.missing("tls.crt", neither)),
            (Some(_), None) => return Err(self.missing("tls.key", neither)),
        };
        Ok(RedisTls { authorities, identity })
    }

    /// The error for a missing password.
    pub(super) fn without_password(self, prefix: &str) -> String {
        let key = format!("{prefix}password");
        self.missing(&key, &format!("add the key {key} to the Secret of spec.redis.credentialsSecretRef"))
    }

    fn missing(self, file: &str, fix: &str) -> String {
        let path = self.0.unwrap_or(Path::new("")).join(file);
        format!("{}: no such file: {fix}", path.display())
    }

    /// The content of a file, or `None` if the file does not exist.
    fn read(self, file: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = self.0.map(|directory| directory.join(file)) else { return Ok(None) };
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }
}
