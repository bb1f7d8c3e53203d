//! Where a task stands in its queue: the two orders, as arithmetic.
//!
//! ```text
//!                 priority                                          fifo
//! added           Tail: serial · Head: 0                            behind all that were added before
//! settled         front + (serial − front) / 2^boost                where it stood
//! lease run out   0, behind those that came back before             where it stood
//! ```
//! Ready tasks are leased by smallest priority, and of the same priority in the order in which they entered. `serial` is the
//! queue's count of entries, and has grown for the one that is being made.
//!
//! What is not here: the queue, and any count that is kept.

/// By which rule a queue leases its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOrder {
    /// By priority, which settling moves.
    Priority,
    /// As they were added; what comes back stands where it stood.
    Fifo,
}

/// At which end of a queue a task is added. A fifo queue has only its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEnd {
    /// Before all that have a priority above 0, behind those that have 0.
    Head,
    /// Behind all.
    Tail,
}

/// How the holder of a lease gives the task back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// To a place twice as far from the front, at most the tail.
    Penalty,
    /// To a place half as far from the front.
    Reward,
    /// To the front.
    Front,
    /// Not at all: it leaves the queue for good, and its key and value stay.
    Drop,
}

/// What ready tasks are compared by; no two of a queue are equal, since `entered` grows with each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The smallest is leased first.
    pub priority: u64,
    /// The serial of the queue when the task entered it, last time.
    pub entered: u64,
}

impl LeaseOrder {
    /// The position of a task that is added; `serial` has grown for it.
    #[must_use]
    pub fn added(self, end: QueueEnd, serial: u64) -> Position {
        match (self, end) {
            (Self::Priority, QueueEnd::Head) => Position { priority: 0, entered: serial },
            (Self::Priority, QueueEnd::Tail) | (Self::Fifo, _) => Position { priority: serial, entered: serial },
        }
    }

    /// The position of a task at `old` whose lease has run out; `serial` has grown for it.
    #[must_use]
    pub fn ran_out(self, old: Position, serial: u64) -> Position {
        match self {
            Self::Priority => Position { priority: 0, entered: serial },
            Self::Fifo => old,
        }
    }

    /// Boost and position of a task at `old` that is settled and stays; `serial` has grown for it. `front` is the priority
    /// of the next ready task, 0 if there is none.
    #[must_use]
    pub fn settled(self, how: Settlement, (boost, old): (u8, Position), serial: u64, front: u64) -> (u8, Position) {
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

/// The boost after a settlement: a reward that would move the task no further leaves it.
fn boosted(how: Settlement, boost: u8, region: u64) -> u8 {
    match how {
        Settlement::Penalty => boost.saturating_sub(1),
        Settlement::Reward if shifted(region, boost.saturating_add(1)) > 0 => boost + 1,
        Settlement::Reward | Settlement::Front | Settlement::Drop => boost,
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
        let (boost, position) = LeaseOrder::Priority.settled(how, (boost, OLD), serial, front);
        assert_eq!(position.entered, serial);
        (boost, position.priority)
    }

    #[test]
    fn rewards_halve_the_way_to_the_front_and_penalties_double_it() {
        // 16 tasks were added, the first is leased: the next ready one has priority 2.
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
        assert_eq!(LeaseOrder::Priority.ran_out(OLD, 18), Position { priority: 0, entered: 18 });
        assert_eq!(LeaseOrder::Priority.added(QueueEnd::Head, 18), Position { priority: 0, entered: 18 });
        assert_eq!(LeaseOrder::Priority.added(QueueEnd::Tail, 18), Position { priority: 18, entered: 18 });
    }

    #[test]
    fn in_a_fifo_queue_everybody_keeps_their_place() {
        assert_eq!(LeaseOrder::Fifo.added(QueueEnd::Tail, 9), Position { priority: 9, entered: 9 });
        assert_eq!(LeaseOrder::Fifo.ran_out(OLD, 18), OLD);
        assert_eq!(LeaseOrder::Fifo.settled(Settlement::Reward, (0, OLD), 18, 2), (0, OLD));
    }
}
