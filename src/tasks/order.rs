//! The position of a task in its queue: the two orders, as arithmetic.
//!
//! ```text
//!                 priority                                          fifo
//! added           Tail: serial · Head: 0                            behind all tasks added before
//! settled         front + (serial − front) / 2^boost                its old position
//! lease expired   0, behind those that came back before             its old position
//! ```
//! Ready tasks are leased by smallest priority. Tasks of equal priority are leased in the order in which they entered.
//! `serial` is the queue's counter of entries, already increased for the entry that is being made. It starts at
//! [`SERIAL_START`], so the first task that is added has priority 2.
//!
//! This module holds no queue and no counts; see `queue.rs`.

/// The serial of a queue without entries.
pub(super) const SERIAL_START: u64 = 1;

/// The rule by which a queue leases its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOrder {
    /// By priority. Settling a task changes it.
    Priority,
    /// In the order of adding. A task that comes back keeps its position.
    Fifo,
}

/// The end of a queue at which a task is added. A fifo queue has only its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEnd {
    /// Before all tasks with a priority above 0, behind those with priority 0.
    Head,
    /// Behind all tasks.
    Tail,
}

/// How the holder of a lease gives the task back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// To a position twice as far from the front, at most the tail.
    Penalty,
    /// To a position half as far from the front.
    Reward,
    /// To the front.
    Front,
    /// Out of the queue for good. Its key and value stay.
    Drop,
    /// Gone, with its key and value.
    Done,
}

/// The sort key of ready tasks. No two in a queue are equal, because `entered` grows with each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The smallest is leased first.
    pub priority: u64,
    /// The serial of the queue when the task last entered it.
    pub entered: u64,
}

impl Position {
    /// Before all others.
    pub const FIRST: Self = Self { priority: 0, entered: 0 };
}

impl LeaseOrder {
    /// The position of a task that is added. `serial` is already increased for it.
    #[must_use]
    pub fn added(self, end: QueueEnd, serial: u64) -> Position {
        match (self, end) {
            (Self::Priority, QueueEnd::Head) => Position { priority: 0, entered: serial },
            (Self::Priority, QueueEnd::Tail) | (Self::Fifo, _) => Position { priority: serial, entered: serial },
        }
    }

    /// The position of a task at `old` whose lease has expired. `serial` is already increased for it.
    #[must_use]
    pub fn expired(self, old: Position, serial: u64) -> Position {
        match self {
            Self::Priority => Position { priority: 0, entered: serial },
            Self::Fifo => old,
        }
    }

    /// Boost and position of a task at `old` that is settled and stays. `serial` is already increased for it. `front`
    /// is the priority of the next ready task, 0 if there is none.
    #[must_use]
    pub fn settled(self, how: Settlement, boost: u8, old: Position, serial: u64, front: u64) -> (u8, Position) {
        match self {
            Self::Priority => {
                let region = serial - front;
                let boost = boosted(how, boost, region);
                let priority = if how == Settlement::Front { 0 } else { front + shifted(region, boost) };
                (boost, Position { priority, entered: serial })
            }
            Self::Fifo => (boost, old),
        }
    }
}

/// The boost after a settlement. A reward does not change it when the next halving would give 0.
fn boosted(how: Settlement, boost: u8, region: u64) -> u8 {
    match how {
        Settlement::Penalty => boost.saturating_sub(1),
        Settlement::Reward if shifted(region, boost.saturating_add(1)) > 0 => boost + 1,
        Settlement::Reward | Settlement::Front | Settlement::Drop | Settlement::Done => boost,
    }
}

fn shifted(region: u64, boost: u8) -> u64 {
    region.checked_shr(u32::from(boost)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Position = Position { priority: 7, entered: 3 };

    fn settled(how: Settlement, boost: u8, serial: u64, front: u64) -> (u8, u64) {
        let (boost, position) = LeaseOrder::Priority.settled(how, boost, OLD, serial, front);
        assert_eq!(position.entered, serial);
        (boost, position.priority)
    }

    #[test]
    fn rewards_halve_the_way_to_the_front_and_penalties_double_it() {
        // 16 tasks were added and the first is leased: the next ready task has priority 2.
        let mut boost = 0;
        for (serial, expected) in [(17, 9), (18, 6), (19, 4), (20, 3)] {
            let (next, priority) = settled(Settlement::Reward, boost, serial, 2);
            assert_eq!((next, priority), (boost + 1, expected));
            boost = next;
        }
        assert_eq!(settled(Settlement::Penalty, 2, 18, 2), (1, 10));
        assert_eq!(settled(Settlement::Penalty, 1, 18, 2), (0, 18), "the tail");
        assert_eq!(settled(Settlement::Penalty, 0, 18, 2), (0, 18));
    }

    #[test]
    fn a_reward_ends_where_there_is_no_way_left_to_halve() {
        assert_eq!(settled(Settlement::Reward, 3, 18, 2), (4, 3), "16 >> 4 is 1");
        assert_eq!(settled(Settlement::Reward, 4, 18, 2), (4, 3), "16 >> 5 is 0");
        assert_eq!(settled(Settlement::Reward, 63, u64::MAX, 0), (63, 1));
    }

    #[test]
    fn the_front_is_priority_0_and_keeps_the_boost() {
        assert_eq!(settled(Settlement::Front, 3, 18, 2), (3, 0));
        assert_eq!(LeaseOrder::Priority.expired(OLD, 18), Position { priority: 0, entered: 18 });
        assert_eq!(LeaseOrder::Priority.added(QueueEnd::Head, 18), Position { priority: 0, entered: 18 });
        assert_eq!(LeaseOrder::Priority.added(QueueEnd::Tail, 18), Position { priority: 18, entered: 18 });
    }

    #[test]
    fn in_a_fifo_queue_everybody_keeps_their_place() {
        assert_eq!(LeaseOrder::Fifo.added(QueueEnd::Tail, 9), Position { priority: 9, entered: 9 });
        assert_eq!(LeaseOrder::Fifo.expired(OLD, 18), OLD);
        assert_eq!(LeaseOrder::Fifo.settled(Settlement::Reward, 0, OLD, 18, 2), (0, OLD));
    }
}
