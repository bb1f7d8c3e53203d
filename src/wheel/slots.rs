//! The rings: the slot of a position, and the set of occupied slots.
//!
//! ```text
//! number of a slot   level: 2 | position in the ring: 13, of which the first bit is the window's parity
//! words              one bit for each slot, 128 words for each ring
//! summaries          one bit for each word that is not zero, one u128 for each ring
//! ```
//! A ring holds two windows, the current one and the next. Slots behind the current position are empty. So a search
//! around the ring from there sees the rest of the current window, then the next window, then only empty slots.
//!
//! This module never sees a timer: a slot is a number here, and one bit says whether it has timers.

#![expect(
    clippy::indexing_slicing,
    reason = "slots are masked to their ring when they are made; a wrong one must stop the server"
)]

/// Rings. Four of them reach 2^48 ticks, which is 8,900 years of milliseconds.
pub(super) const LEVELS: u32 = 4;
/// Bits of a position within a window: a window has 4,096 slots.
pub(super) const WINDOW_BITS: u32 = 12;
/// Bits of a position in a ring, which holds two windows.
const RING_BITS: u32 = WINDOW_BITS + 1;
const RING_SLOTS: u32 = 1 << RING_BITS;
/// Slots of all rings together.
pub(super) const SLOTS: usize = (LEVELS * RING_SLOTS) as usize;

const WORD_BITS: u32 = u64::BITS;
const RING_WORDS: u32 = RING_SLOTS / WORD_BITS;

// The summary of a ring is one u128.
const _: () = assert!(RING_WORDS == u128::BITS);

/// A slot of one of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WheelSlot(u32);

impl WheelSlot {
    /// The slot of `level` that holds `position`, counted in slots of that level since tick zero.
    #[expect(clippy::cast_possible_truncation, reason = "the mask leaves 13 bits")]
    pub(super) const fn at(level: u32, position: u64) -> Self {
        let within = (position & (RING_SLOTS as u64 - 1)) as u32;
        Self(level << RING_BITS | within)
    }

    /// The number of the slot, for `WheelSlot::from_number`.
    pub(super) const fn number(self) -> u32 {
        self.0
    }

    /// The slot with the number `number`.
    pub(super) const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The index of this slot in an array with one element for each slot.
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    const fn word(self) -> usize {
        (self.0 / WORD_BITS) as usize
    }

    const fn mask(self) -> u64 {
        1 << (self.0 % WORD_BITS)
    }

    const fn level(self) -> usize {
        (self.0 >> RING_BITS) as usize
    }

    const fn summary_mask(self) -> u128 {
        1 << (self.0 / WORD_BITS % RING_WORDS)
    }
}

/// One bit for each slot that has timers.
#[derive(Debug)]
pub(super) struct Occupied {
    words: [u64; (LEVELS * RING_WORDS) as usize],
    summaries: [u128; LEVELS as usize],
}

impl Occupied {
    pub(super) const fn none() -> Self {
        Self { words: [0; (LEVELS * RING_WORDS) as usize], summaries: [0; LEVELS as usize] }
    }

    pub(super) fn insert(&mut self, slot: WheelSlot) {
        self.words[slot.word()] |= slot.mask();
        self.summaries[slot.level()] |= slot.summary_mask();
    }

    pub(super) fn remove(&mut self, slot: WheelSlot) {
        let word = &mut self.words[slot.word()];
        *word &= !slot.mask();
        if *word == 0 {
            self.summaries[slot.level()] &= !slot.summary_mask();
        }
    }

    pub(super) fn contains(&self, slot: WheelSlot) -> bool {
        self.words[slot.word()] & slot.mask() != 0
    }

    /// The first occupied position of `level` that is not before `position`.
    pub(super) fn first_from(&self, level: u32, position: u64) -> Option<u64> {
        let from = WheelSlot::at(level, position);
        let rest = self.words[from.word()] >> (from.0 % WORD_BITS);
        if rest != 0 {
            return Some(position + u64::from(rest.trailing_zeros()));
        }
        self.first_after_word(from).map(|slot| position + u64::from(slot.0.wrapping_sub(from.0) % RING_SLOTS))
    }

    /// The first occupied slot in ring order after the word of `from`. That word comes last, for its slots before
    /// `from`.
    fn first_after_word(&self, from: WheelSlot) -> Option<WheelSlot> {
        let next_word = from.0 / WORD_BITS % RING_WORDS + 1;
        let summary = self.summaries[from.level()].rotate_right(next_word);
        if summary == 0 {
            return None;
        }
        let ring = from.0 & !(RING_SLOTS - 1);
        let word = (next_word + summary.trailing_zeros()) % RING_WORDS + ring / WORD_BITS;
        let bit = self.words[word as usize].trailing_zeros();
        Some(WheelSlot(word * WORD_BITS + bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occupied(level: u32, positions: &[u64]) -> Occupied {
        let mut occupied = Occupied::none();
        for &position in positions {
            occupied.insert(WheelSlot::at(level, position));
        }
        occupied
    }

    #[test]
    fn an_empty_ring_has_no_first_slot() {
        assert_eq!(Occupied::none().first_from(0, 77), None);
    }

    #[test]
    fn the_slot_asked_for_counts_as_first() {
        assert_eq!(occupied(1, &[77]).first_from(1, 77), Some(77));
    }

    #[test]
    fn the_search_goes_from_word_to_word_and_around_the_end_of_the_ring() {
        for level in 0..LEVELS {
            for from in [0, 1, 63, 64, 4_095, 4_096, 8_191, 8_192, 1 << 40] {
                for ahead in [0, 1, 62, 63, 64, 65, 127, 128, 4_095, 4_096, 8_190, 8_191] {
                    let occupied = occupied(level, &[from + ahead]);
                    assert_eq!(occupied.first_from(level, from), Some(from + ahead));
                }
            }
        }
    }

    #[test]
    fn the_nearest_of_several_is_found_and_the_next_one_after_its_removal() {
        let mut occupied = occupied(0, &[100, 101, 9_000 - 1_024]);
        assert_eq!(occupied.first_from(0, 90), Some(100));
        occupied.remove(WheelSlot::at(0, 100));
        assert_eq!(occupied.first_from(0, 90), Some(101));
        occupied.remove(WheelSlot::at(0, 101));
        assert_eq!(occupied.first_from(0, 90), Some(9_000 - 1_024));
    }

    #[test]
    fn rings_do_not_see_each_other() {
        let occupied = occupied(2, &[5]);
        assert_eq!(occupied.first_from(1, 0), None);
        assert_eq!(occupied.first_from(3, 0), None);
        assert!(occupied.contains(WheelSlot::at(2, 5)));
    }

    #[test]
    fn a_slot_survives_being_written_as_a_number() {
        let slot = WheelSlot::at(3, 8_191);
        assert_eq!(WheelSlot::from_number(slot.number()), slot);
        assert_eq!(slot.index(), SLOTS - 1);
    }

    #[test]
    fn slots_that_share_a_word_with_the_position_and_lie_before_it_come_last() {
        let mut occupied = occupied(0, &[8_192 + 5, 100]);
        assert_eq!(occupied.first_from(0, 10), Some(100));
        occupied.remove(WheelSlot::at(0, 100));
        assert_eq!(occupied.first_from(0, 10), Some(8_192 + 5));
    }
}
