//! Why a request about tables has failed, and what to do: the error of the command for each of the client and the server.

use crate::cli::CommandError;
use crate::clients::rust::tables::{Disconnected, Error};
use crate::services::tables::wire::Reason;

/// The error of the command for an error of the client.
pub(crate) fn failure(error: Error) -> CommandError {
    match error {
        Error::Refused(reason) => refusal(reason),
        Error::Disconnected(Disconnected::Endpoint { .. }) => CommandError::Usage(error.to_string()),
        Error::Disconnected(Disconnected::Denied { .. }) => CommandError::Denied(error.to_string()),
        _ => CommandError::Failed(error.to_string()),
    }
}

/// The error of the command for a refusal of the server.
fn refusal(reason: Reason) -> CommandError {
    let (what, advice) = (reason.text().to_lowercase(), advice(reason));
    match reason {
        Reason::TableNotFound | Reason::KeyNotFound => CommandError::NotFound(format!("{what}: {advice}")),
        Reason::TableExists => CommandError::AlreadyThere(format!("{what}: {advice}")),
        Reason::Denied => CommandError::Denied(format!("{what}: {advice}")),
        Reason::VersionMismatch { current: 0 } => {
            CommandError::VersionMismatch { what: format!("{what}: the element is absent: {advice}"), current: 0 }
        }
        Reason::VersionMismatch { current } => {
            CommandError::VersionMismatch { what: format!("{what}: it has version {current}: {advice}"), current }
        }
        _ => CommandError::Failed(format!("{what}: {advice}")),
    }
}

/// The remedy for a refusal.
fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::BadRequest | Reason::UnknownCommand => {
            "the server does not know this request; is it older than this program?"
        }
        Reason::BadTableName => "use 1 to 254 bytes without NUL",
        Reason::TableExists => "use it as it is, or delete it first with `spindle delete-table`",
        Reason::TableNotFound => "make it with `spindle create-table`, or see `spindle tables`",
        Reason::KeyTooLong => "shorten it, or start the server with a larger --max-key",
        Reason::KeyNotFound => "it was never set, was deleted or has expired; set it with `spindle set`",
        Reason::ValueTooLong => "shorten it, or start the server with a larger --max-value",
        Reason::BadTtl => "use at most 139 years; an older server knows whole seconds alone",
        Reason::VersionMismatch { .. } => "read the element again and decide anew",
        Reason::OutOfMemory => "delete something, or start the server with a larger --max-memory",
        Reason::ReplyTooLong => "ask for fewer keys at once",
        Reason::BadCursor => "scan again from the beginning: the table was made anew, or the server has started again",
        Reason::NotANumber => "count in another element, or set this one to a whole number in decimal",
        Reason::OutOfRange => "keep the number within 64 bits and a sign, and restore into a new table alone",
        Reason::FeedOff => "start the server with --feed",
        Reason::Compacted { .. } => "scan the table again, or start the server with a larger --feed-history",
        Reason::TooManyTables => "delete one, or start the server with a larger --max-tables",
        Reason::OutOfDisk => "delete something, make room on the disk of --data, or raise --max-disk",
        Reason::DiskFailed => "the disk of the durable tables has failed: look at the server's log, and start it again",
        Reason::Unavailable => {
            "the disk of the durable tables has failed, and the change was perhaps made: start the server again, and look"
        }
        Reason::Denied => "the user has no permission for it: see `spindle user list` on the server's host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do_in_one_line() {
        for reason in Reason::ALL {
            let line = match failure(Error::Refused(reason)) {
                CommandError::Failed(line)
                | CommandError::NotFound(line)
                | CommandError::AlreadyThere(line)
                | CommandError::Denied(line) => line,
                CommandError::VersionMismatch { what, .. } => what,
                CommandError::Usage(_) | CommandError::Output(_) => panic!("{reason:?} is no bad usage"),
            };
            assert!(line.contains(": ") && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_mismatch_has_the_current_version() {
        let mismatch = |current| match refusal(Reason::VersionMismatch { current }) {
            CommandError::VersionMismatch { what, current } => (what, current),
            other => panic!("{other:?}"),
        };
        assert!(matches!(mismatch(7), (what, 7) if what.contains("it has version 7")));
        assert!(matches!(mismatch(0), (what, 0) if what.contains("is absent")));
    }

    #[test]
    fn an_endpoint_that_the_client_does_not_take_is_bad_usage() {
        let error = Disconnected::Endpoint { endpoint: "tcp://*:*".to_owned(), problem: "no".to_owned() };
        assert!(matches!(failure(error.into()), CommandError::Usage(_)));
    }
}
