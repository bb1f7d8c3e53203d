//! The words that flags of `spindle serve` take.

use crate::protocols::jobs::wire::AckWording;
use crate::protocols::kv::serve::FrontendKind;
use crate::protocols::spiderq::serve::Version;

pub(super) fn frontend(typed: &str) -> Result<FrontendKind, String> {
    match typed {
        "proxy" => Ok(FrontendKind::Proxy),
        "native" => Ok(FrontendKind::Native),
        _ => Err("it is proxy or native".to_owned()),
    }
}

pub(super) fn version(typed: &str) -> Result<Version, String> {
    match typed {
        "1.3" => Ok(Version::V1_3),
        "1.4" => Ok(Version::V1_4),
        _ => Err("there are 1.3 and 1.4".to_owned()),
    }
}

pub(super) fn ack_words(typed: &str) -> Result<AckWording, String> {
    match typed {
        "ok" => Ok(AckWording::OkNo),
        "yes-no" => Ok(AckWording::YesNo),
        _ => Err("it is ok or yes-no".to_owned()),
    }
}

pub(super) fn allowed(typed: &str) -> Result<bool, String> {
    match typed {
        "allow" => Ok(true),
        "deny" => Ok(false),
        _ => Err("it is allow or deny".to_owned()),
    }
}
