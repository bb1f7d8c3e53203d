//! The server of a command that speaks plain TCP: its address, whether the connection is encrypted, and the user.

use std::path::PathBuf;

use clap::Args;

use super::endpoint::address_to_connect;
use crate::cli::CommandError;
use crate::clients::rust::stream::Authorities;

/// Schemes of addresses, and whether they ask for TLS.
const SCHEMES: [(&str, bool); 4] = [("tcp://", false), ("http://", false), ("tls://", true), ("https://", true)];

/// The address of a server over plain TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpAddress {
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// Whether the scheme asks for TLS. None: there is no scheme.
    is_encrypted: Option<bool>,
}

impl TcpAddress {
    /// Parses `HOST:PORT`, `:PORT` and `PORT`, with or without a scheme.
    ///
    /// # Errors
    /// The mistake in the text.
    pub(crate) fn parse(typed: &str) -> Result<Self, String> {
        let scheme = SCHEMES
            .into_iter()
            .find_map(|(scheme, is_encrypted)| Some((typed.strip_prefix(scheme)?.trim_end_matches('/'), is_encrypted)));
        let (rest, is_encrypted) = scheme.map_or((typed, None), |(rest, is_encrypted)| (rest, Some(is_encrypted)));
        Ok(Self { address: address_to_connect(rest)?, is_encrypted })
    }
}

/// The flag, as typed.
#[derive(Clone, Debug, Args)]
pub(crate) struct TlsFlags {
    /// Speak TLS with a server whose certificate leads to an authority in this file (PEM), and has its host's name. It is
    /// needed for tls:// and https://; the system's authorities are often in /etc/ssl/certs/ca-certificates.crt
    #[arg(long, value_name = "FILE", env = "SPINDLE_TLS_CA")]
    tls_ca: Option<PathBuf>,
}

impl TlsFlags {
    /// The authorities to trust, if the connection to the server is encrypted.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if flag and scheme contradict each other, [`CommandError::Failed`] if the file has no
    /// authority.
    pub(crate) fn authorities(&self, server: &TcpAddress) -> Result<Option<Authorities>, CommandError> {
        let usage = |why: &str| Err(CommandError::Usage(format!("{}: {why}", server.address)));
        match (&self.tls_ca, server.is_encrypted) {
            (None, None | Some(false)) => Ok(None),
            (None, Some(true)) => usage("to speak TLS, give the file of the authority to trust as --tls-ca"),
            (Some(_), Some(false)) => usage("leave out --tls-ca, or write the address with tls:// or without a scheme"),
            (Some(file), None | Some(true)) => {
                Authorities::open(file).map(Some).map_err(|why| CommandError::Failed(format!("--tls-ca {why}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn a_scheme_says_whether_the_connection_is_encrypted() {
        for (typed, is_encrypted) in [
            ("127.0.0.1:81", None),
            (":81", None),
            ("81", None),
            ("tcp://127.0.0.1:81", Some(false)),
            ("http://127.0.0.1:81/", Some(false)),
            ("tls://:81", Some(true)),
            ("https://127.0.0.1:81", Some(true)),
        ] {
            let parsed = TcpAddress::parse(typed).unwrap();
            assert_eq!(parsed, TcpAddress { address: "127.0.0.1:81".to_owned(), is_encrypted }, "{typed}");
        }
        for bad in ["", "https://", "https://h", "ftp://h:1", "https://h:1/stats", "tls://tcp://h:1", "ipc:///tmp/s"] {
            assert!(TcpAddress::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_flag_and_a_scheme_must_agree() {
        let authorities = |file: Option<&str>, address: &str| {
            let flags = TlsFlags { tls_ca: file.map(PathBuf::from) };
            flags.authorities(&TcpAddress::parse(address).unwrap())
        };
        assert!(authorities(None, "h:1").unwrap().is_none());
        assert!(authorities(None, "http://h:1").unwrap().is_none());
        assert!(matches!(authorities(None, "https://h:1"), Err(CommandError::Usage(why)) if why.contains("--tls-ca")));
        assert!(matches!(authorities(Some("f"), "tcp://h:1"), Err(CommandError::Usage(why)) if why.contains("tls://")));
        assert!(
            matches!(authorities(Some("/nowhere"), "h:1"), Err(CommandError::Failed(why)) if why.contains("--tls-ca /no"))
        );
    }
}
