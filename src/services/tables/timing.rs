//! The times of replies about tables, and the names of their verbs.

use super::report::WorkerMetrics;
use super::wire::Command;
use crate::clock::Clock;
use crate::net::zeromq::{ConnectionState, Connections};
use crate::stats::slow_log::SlowLog;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "kv";
/// The value for no command.
pub(super) const NO_VERB: usize = Command::COUNT;

/// Records how long the replies took that the system has taken until now.
pub(crate) fn record_sent<S: ConnectionState>(
    connections: &mut Connections<S>,
    metrics: &WorkerMetrics,
    slow: &SlowLog,
    protocol: &'static str,
    clock: Clock,
) {
    connections.record_timed(clock, slow, protocol, |reply, nanos| {
        if reply.samples > 0
            && let Some(command) = Command::ALL.get(reply.verb)
        {
            metrics.whole(*command).record_times(nanos, reply.samples);
        }
        verb_name(reply.verb)
    });
}

/// The name of the verb with this number.
pub(super) fn verb_name(verb: usize) -> &'static str {
    Command::ALL.get(verb).map_or("none", |command| command.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_the_name_of_its_number() {
        for command in Command::ALL {
            assert_eq!(verb_name(usize::from(command.code())), command.name());
        }
        assert_eq!(verb_name(NO_VERB), "none");
    }
}
