//! The times of replies about tables, and the names of their verbs.

use super::report::WorkerMetrics;
use super::wire::Command;
use crate::clock::Clock;
use crate::net::zeromq::{ConnectionState, Connections};
use crate::stats::service::ServiceMetrics;
use crate::stats::slow_log::SlowLog;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "kv";
/// The value for no command.
pub(super) const NO_VERB: usize = Command::COUNT;
/// The number of verbs with that value. A worker that serves another protocol too numbers its verbs from here.
pub(crate) const VERBS: usize = NO_VERB + 1;

/// Records how long the replies took that the system has taken until now. Verbs behind those of the tables' own protocol
/// are of `others`.
pub(crate) fn record_sent<S: ConnectionState>(
    connections: &mut Connections<S>,
    metrics: &WorkerMetrics,
    others: Option<&ServiceMetrics>,
    slow: &SlowLog,
    protocol: &'static str,
    clock: Clock,
) {
    connections.record_timed(clock, slow, |reply, nanos| {
        if let Some(others) = others
            && let Some(verb) = reply.verb.checked_sub(VERBS)
        {
            if let Some(verb) = others.verbs.get(verb).filter(|_| reply.samples > 0) {
                verb.whole.record_times(nanos, reply.samples);
            }
            return (others.protocol, others.name(verb));
        }
        if reply.samples > 0
            && let Some(command) = Command::ALL.get(reply.verb)
        {
            metrics.whole(*command).record_times(nanos, reply.samples);
        }
        (protocol, verb_name(reply.verb))
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
            assert_eq!(verb_name(command.index()), command.name());
        }
        assert_eq!(verb_name(NO_VERB), "none");
    }
}
