//! The words and numbers that flags of `spindle serve` take.

use clap::builder::TypedValueParser;

use super::amount::bytes_within;
use crate::limits::{KEY_BYTES_DEFAULT, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::net::zeromq::is_local;
use crate::services::jobs::wire::AckWording;
use crate::services::tables::serve::FrontendKind;
use crate::services::tasks::serve::Version;

/// The word of `--frontend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrontendWord {
    pub(crate) kind: FrontendKind,
    /// It is `proxy`, the old name of `queue`.
    pub(crate) is_old: bool,
}

pub(crate) fn frontend(typed: &str) -> Result<FrontendWord, String> {
    let (kind, is_old) = match typed {
        "queue" => (FrontendKind::Queue, false),
        "proxy" => (FrontendKind::Queue, true),
        "native" => (FrontendKind::Native, false),
        _ => return Err("it is queue or native".to_owned()),
    };
    Ok(FrontendWord { kind, is_old })
}

/// The bytes of `--max-key`.
pub(crate) fn key_bytes() -> impl TypedValueParser<Value = usize> {
    bytes_within(KEY_BYTES_DEFAULT as u64, KEY_BYTES_MAX as u64)
        .map(|bytes| usize::try_from(bytes).unwrap_or(KEY_BYTES_MAX))
}

/// The bytes of `--max-value`.
pub(crate) fn value_bytes() -> impl TypedValueParser<Value = usize> {
    bytes_within(0, VALUE_BYTES_MAX as u64).map(|bytes| usize::try_from(bytes).unwrap_or(VALUE_BYTES_MAX))
}

pub(crate) fn version(typed: &str) -> Result<Version, String> {
    match typed {
        "1.3" => Ok(Version::V1_3),
        "1.4" => Ok(Version::V1_4),
        _ => Err("there are 1.3 and 1.4".to_owned()),
    }
}

pub(crate) fn ack_words(typed: &str) -> Result<AckWording, String> {
    match typed {
        "ok" => Ok(AckWording::OkNo),
        "yes-no" => Ok(AckWording::YesNo),
        _ => Err("it is ok or yes-no".to_owned()),
    }
}

/// Whether clients of the tasks may end the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminate {
    /// Those that connect from this host.
    Local,
    Allow,
    Deny,
}

impl Terminate {
    /// Whether clients of this endpoint may.
    pub(crate) fn at(self, endpoint: &str) -> bool {
        match self {
            Self::Local => is_local(endpoint),
            Self::Allow => true,
            Self::Deny => false,
        }
    }
}

pub(crate) fn terminate(typed: &str) -> Result<Terminate, String> {
    match typed {
        "local" => Ok(Terminate::Local),
        "allow" => Ok(Terminate::Allow),
        "deny" => Ok(Terminate::Deny),
        _ => Err("it is local, allow or deny".to_owned()),
    }
}

pub(crate) fn at_least_one(typed: &str) -> Result<usize, String> {
    match typed.parse() {
        Ok(0) | Err(_) => Err("it must be a number, at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise any host could end the server.
    #[test]
    fn a_client_ends_the_server_from_this_host_alone_unless_it_is_allowed() {
        for endpoint in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "ipc://@a"] {
            assert_eq!(terminate("local").map(|terminate| terminate.at(endpoint)), Ok(true), "{endpoint}");
        }
        for endpoint in ["tcp://*:1", "tcp://10.0.0.1:1", "tcp://[::]:1"] {
            assert_eq!(terminate("local").map(|terminate| terminate.at(endpoint)), Ok(false), "{endpoint}");
            assert_eq!(terminate("allow").map(|terminate| terminate.at(endpoint)), Ok(true), "{endpoint}");
        }
        assert_eq!(terminate("deny").map(|terminate| terminate.at("ipc://@a")), Ok(false));
        assert!(terminate("always").is_err());
    }
}
