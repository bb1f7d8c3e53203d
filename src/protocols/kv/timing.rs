//! The names by which the requests of tables are timed, and the sizes of the replies of a turn. This module reads no
//! clock.

use super::wire::Command;
use crate::limits::BATCH_MAX;

/// The name of the protocol.
pub(super) const PROTOCOL: &str = "kv";
/// Stands for no command.
pub(super) const NO_VERB: usize = Command::COUNT;

/// The name of the verb with this number.
pub(super) fn verb_name(verb: usize) -> &'static str {
    Command::ALL.get(verb).map_or("none", |command| command.name())
}

/// Where the replies of a turn end.
pub(super) struct TurnSizes {
    begin: u64,
    /// Bytes of the stream to the client from `begin` on.
    ends: [u64; BATCH_MAX],
}

impl Default for TurnSizes {
    fn default() -> Self {
        Self { begin: 0, ends: [0; BATCH_MAX] }
    }
}

impl TurnSizes {
    /// Replies begin at this position.
    pub(super) fn begin(&mut self, position: u64) {
        self.begin = position;
    }

    /// Notes where the reply with this number ends.
    #[inline]
    pub(super) fn end(&mut self, number: usize, position: u64) {
        if let Some(end) = self.ends.get_mut(number) {
            *end = position;
        }
    }

    /// Bytes of the reply with this number.
    pub(super) fn bytes(&self, number: usize) -> u64 {
        let end = |number: usize| self.ends.get(number).copied().unwrap_or(self.begin);
        end(number).saturating_sub(number.checked_sub(1).map_or(self.begin, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_the_replies_of_a_turn_are_told_apart() {
        let mut sizes = TurnSizes::default();
        sizes.begin(100);
        [110, 110, 150].into_iter().enumerate().for_each(|(number, end)| sizes.end(number, end));
        assert_eq!([0, 1, 2].map(|number| sizes.bytes(number)), [10, 0, 40]);
        sizes.begin(150);
        sizes.end(0, 157);
        assert_eq!(sizes.bytes(0), 7);
        sizes.end(BATCH_MAX, 9);
    }

    #[test]
    fn each_command_has_the_name_of_its_number() {
        for command in Command::ALL {
            assert_eq!(verb_name(usize::from(command.code())), command.name());
        }
        assert_eq!(verb_name(NO_VERB), "none");
    }
}
