//! Checks the options once. A [`ControlConfig`] has only valid values.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
};

use weir_wire::OPERATOR_NAME;

use crate::{
    control::{InvalidTls, Tls, TlsFiles},
    https::InvalidServer,
    identity::Identity,
    jwks::{JwksFile, JwksUrl, Keys, Source},
    listen::{BindError, bind, bound_address},
    options::{ControlOptions, JwksOptions},
};

/// The validated options of a control port.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    pub(crate) control: SocketAddr,
    /// `None`: no TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// The source of the control port's credentials. `None` means that files have them, or that there is no TLS.
    pub(crate) identity: Option<Identity>,
    /// The JSON of the bootstrap snapshot, as given.
    pub(crate) bootstrap: Option<Vec<u8>>,
    pub(crate) snapshot_cache: Option<PathBuf>,
    pub(crate) wait_for_config: bool,
    /// The directory with the secrets of stores.
    pub(crate) store_secrets: Option<PathBuf>,
    pub(crate) log_keys: bool,
    /// `None`: tokens are not verified.
    pub(crate) jwks: Option<Keys>,
}

/// A control port that is bound and does not serve yet.
#[derive(Debug)]
pub struct BoundControl {
    pub(crate) config: ControlConfig,
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

/// The reason why options are invalid. Each message names the option by its flag: the field of `--control-cert` is
/// `control_cert`, and its environment variable is `WEIR_CONTROL_CERT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOptions {
    /// The control port would be open to other machines, and no option allows that.
    #[error(
        "--control {0} is reachable from beyond loopback, and every client that reaches it can change the limits: \
         use a loopback address, give --identity-url or --control-cert, --control-key and --control-client-ca for mutual \
         TLS, or set \
         --control-plaintext (WEIR_CONTROL_PLAINTEXT=true) and restrict access to the port"
    )]
    OpenControl(SocketAddr),
    /// The two options contradict each other.
    #[error("--control-plaintext and --control-cert contradict each other: remove one")]
    PlaintextTls,
    /// Two options that exclude each other are given.
    #[error("{0} and {1} exclude each other: remove one")]
    Both(&'static str, &'static str),
    /// An option needs another one.
    #[error("{0} needs {1}: give both, or neither")]
    Missing(&'static str, &'static str),
    /// The TLS files of a port are unusable.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
    /// The options of the identity service, or of the server with the key set, are unusable.
    #[error(transparent)]
    Server(#[from] InvalidServer),
    /// The bootstrap snapshot cannot be read.
    #[error("--bootstrap {}: cannot be read: {problem}", path.display())]
    Bootstrap {
        /// The option's value.
        path: PathBuf,
        /// The system's error.
        problem: String,
    },
    /// The key set file is unusable.
    #[error("--jwks {}: {problem}", path.display())]
    Jwks {
        /// The option's value.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
    /// The folder of the cache file does not exist.
    #[error("--snapshot-cache {}: its folder does not exist: create it, or mount a volume there", .0.display())]
    CacheFolder(PathBuf),
}

impl TryFrom<ControlOptions> for ControlConfig {
    type Error = InvalidOptions;

    fn try_from(options: ControlOptions) -> Result<Self, InvalidOptions> {
        // The parser of flags cannot check this: for it, an environment variable that is `false` is a given flag, too.
        if options.control_plaintext && options.control_cert.is_some() {
            return Err(InvalidOptions::PlaintextTls);
        }
        let identity = identity(&options)?;
        let tls = match &identity {
            Some(_) => Some(Arc::new(Tls::closed(OPERATOR_NAME.to_owned()))),
            None => control_tls(&options)?,
        };
        if !is_loopback(options.control) && tls.is_none() && !options.control_plaintext {
            return Err(InvalidOptions::OpenControl(options.control));
        }
        if let Some(cache) = options.snapshot_cache.as_ref().filter(|cache| !folder(cache).is_dir()) {
            return Err(InvalidOptions::CacheFolder(cache.clone()));
        }
        Ok(Self {
            control: options.control,
            tls,
            identity,
            bootstrap: options.bootstrap.map(bootstrap).transpose()?,
            snapshot_cache: options.snapshot_cache,
            wait_for_config: options.wait_for_config,
            store_secrets: options.store_secrets,
            log_keys: options.log_keys,
            jwks: None,
        })
    }
}

impl ControlConfig {
    /// Verifies tokens with these keys.
    ///
    /// # Errors
    ///
    /// Returns the invalid option.
    pub fn with_jwks(self, options: JwksOptions) -> Result<Self, InvalidOptions> {
        let JwksOptions { jwks, jwks_url, jwks_ca, jwks_refresh } = options;
        let jwks = match (jwks, jwks_url, jwks_ca) {
            (None, None, None) => None,
            (Some(path), None, None) => {
                let file = JwksFile::read(path.clone()).map_err(|problem| InvalidOptions::Jwks { path, problem })?;
                Some(Keys::File(file))
            }
            (None, Some(url), Some(ca)) => {
                Some(Keys::Url(JwksUrl { source: Source::new(&url, ca)?, refresh: jwks_refresh }))
            }
            (Some(_), ..) => return Err(InvalidOptions::Both("--jwks", "--jwks-url")),
            (None, Some(_), None) => return Err(InvalidOptions::Missing("--jwks-url", "--jwks-ca")),
            (None, None, Some(_)) => return Err(InvalidOptions::Missing("--jwks-ca", "--jwks-url")),
        };
        Ok(Self { jwks, ..self })
    }

    /// Binds the control port.
    ///
    /// # Errors
    ///
    /// Returns an error if the port is in use, or the address is not one of this machine.
    pub fn bind(self) -> Result<BoundControl, BindError> {
        let listener = bind("--control", self.control)?;
        let address = bound_address("--control", self.control, &listener)?;
        Ok(BoundControl { config: self, listener, address })
    }

    /// Whether the control port accepts plain HTTP from other machines.
    pub(crate) fn is_open(&self) -> bool {
        self.tls.is_none() && !is_loopback(self.control)
    }
}

impl BoundControl {
    /// The address of the control port. For port 0, the kernel has chosen the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn control_tls(options: &ControlOptions) -> Result<Option<Arc<Tls>>, InvalidOptions> {
    let given = [&options.control_cert, &options.control_key, &options.control_client_ca];
    let names = ["--control-cert", "--control-key", "--control-client-ca"];
    let Some([cert, key, client_ca]) = all_or_none(given, names)? else {
        return match options.control_client_name {
            Some(_) => Err(InvalidOptions::Missing("--control-client-name", "--control-cert")),
            None => Ok(None),
        };
    };
    let files = TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() };
    Ok(Some(Arc::new(Tls::read(files, options.control_client_name.clone())?)))
}

fn identity(options: &ControlOptions) -> Result<Option<Identity>, InvalidOptions> {
    let token_file = options.identity_token_file.as_ref().map(|file| file.display().to_string());
    let given = [&options.identity_url, &options.identity_ca, &token_file];
    let names = ["--identity-url", "--identity-ca", "--identity-token-file"];
    let Some([url, ca, token_file]) = all_or_none(given, names)? else { return Ok(None) };
    for (is_given, name) in
        [(options.control_cert.is_some(), "--control-cert"), (options.control_plaintext, "--control-plaintext")]
    {
        if is_given {
            return Err(InvalidOptions::Both("--identity-url", name));
        }
    }
    Ok(Some(Identity::new(url, ca, token_file.into())?))
}

/// The values of options that belong together, or `None` if none is given.
fn all_or_none<'a, T, const N: usize>(
    given: [&'a Option<T>; N],
    names: [&'static str; N],
) -> Result<Option<[&'a T; N]>, InvalidOptions> {
    let Some(first) = given.iter().position(|value| value.is_some()) else { return Ok(None) };
    if let Some(missing) = given.iter().position(|value| value.is_none()) {
        return Err(InvalidOptions::Missing(names[first], names[missing]));
    }
    Ok(Some(given.map(|value| value.as_ref().expect("every option is given"))))
}

/// The file's content, or the value itself if it is JSON.
fn bootstrap(given: String) -> Result<Vec<u8>, InvalidOptions> {
    if given.trim_start().starts_with('{') {
        return Ok(given.into_bytes());
    }
    fs::read(&given)
        .map_err(|error: io::Error| InvalidOptions::Bootstrap { path: given.into(), problem: error.to_string() })
}

fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_control_port_needs_a_flag() {
        for (address, open) in [
            ("127.0.0.1:1", false),
            ("127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            let options = ControlOptions { control: address, ..ControlOptions::default() };
            let refused = ControlConfig::try_from(options.clone()).err();
            let expected = open.then_some(InvalidOptions::OpenControl(address));
            assert_eq!(refused, expected, "{address}");
            let plaintext = ControlOptions { control_plaintext: true, ..options };
            assert!(ControlConfig::try_from(plaintext).is_ok(), "{address}");
        }
    }
}
