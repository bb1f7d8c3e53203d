//! Slots and cells one by one, without tables.

#![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

use crossbeam::epoch;

use super::key::LENGTH_APART;
use super::*;

fn slot_of(key: &[u8]) -> SlotHandle {
    let mut entry = EntryBox::new(b"value");
    entry.stamp(1, NEVER);
    SlotHandle::new(7, key, entry)
}

fn references(slot: &SlotHandle) -> u32 {
    slot.slot().header().references.load(Ordering::Relaxed) / REFERENCE
}

#[test]
fn a_slot_takes_its_header_and_its_key() {
    let sizes = |is_long| [0, 1, 16, 64].map(|key_bytes| Slot::layout(key_bytes, is_long).size());
    assert_eq!((sizes(false), sizes(true)), ([16, 17, 32, 80], [32, 33, 48, 96]));
    assert!((0..LENGTH_APART).all(|bytes| Slot::layout(bytes, false).size() == 16 + bytes));
    assert!((0..LENGTH_APART).all(|bytes| Slot::layout(bytes, true).size() == 32 + bytes));
}

#[test]
fn a_key_of_any_length_is_read_as_it_was_written_and_a_long_one_has_two_bytes_more() {
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(4_097).collect();
    for length in [0, 1, 7, 8, 63, 64, 65, 126, 127, 128, 255, 256, 257, 4_095, 4_096] {
        for deadline in [NEVER, 5] {
            let mut entry = EntryBox::new(b"value");
            entry.stamp(1, deadline);
            let key = &bytes[..length];
            let handle = SlotHandle::new(7, key, entry);
            let slot = handle.slot();
            assert!(slot.key() == key && slot.is_of(key), "{length}");
            assert!(!slot.is_of(&bytes[..=length]) && (length == 0 || !slot.is_of(&bytes[1..=length])), "{length}");
            let (part, apart) = (if deadline == NEVER { 0 } else { 16 }, if length < 127 { 0 } else { 2 });
            assert_eq!(slot.bytes(), 16 + part + apart + length);
            assert_eq!(slot.bytes(), Slot::layout(length, deadline != NEVER).size());
        }
    }
}

#[test]
fn an_element_stays_a_round_for_its_use_and_one_more() {
    let handle = slot_of(b"k");
    let slot = handle.slot();
    assert!(slot.is_unused());
    for _ in 0..2 {
        slot.note_use();
        slot.note_use();
        assert_eq!([(); 4].map(|()| slot.is_unused()), [false, false, true, true]);
    }
    assert_eq!(references(&handle), 1);
}

#[test]
fn a_slot_is_armed_once_for_a_deadline_and_again_for_an_earlier_one() {
    let handle = slot_of(b"k");
    let slot = handle.slot();
    slot.extend(7);
    assert!(slot.arm(50));
    assert_eq!(slot.armed(), None, "the message is on its way");
    assert!(!slot.arm(50) && !slot.arm(51));
    assert!(slot.arm(40));
    assert_eq!((slot.take_due(), slot.armed()), (40, Some(40)));
}

#[test]
fn the_wheel_does_not_raise_a_deadline_that_a_writer_has_lowered() {
    let handle = slot_of(b"k");
    let slot = handle.slot();
    slot.extend(7);
    assert!(slot.arm(50));
    assert_eq!(slot.take_due(), 50);
    assert!(slot.arm(40));
    assert!(!slot.rearm(50, NEVER));
    assert_eq!(slot.take_due(), 40);
    assert!(slot.rearm(40, NEVER));
    assert_eq!(slot.armed(), Some(NEVER));
}

#[test]
fn a_cell_distinguishes_slots_by_the_high_bits_of_their_hashes() {
    let guard = epoch::pin();
    let cell = SlotCell::empty();
    cell.put(0xABCD << 48 | 5, slot_of(b"k"), &guard);
    assert!(cell.candidate(0xABCD << 48 | 9, &guard).is_some_and(|slot| slot.key() == b"k"));
    assert!(cell.candidate(0xABCE << 48 | 5, &guard).is_none());
    cell.exchange(slot_of(b"k"), &guard);
    assert!(cell.candidate(0xABCD << 48, &guard).is_some() && cell.candidate(0, &guard).is_none());
}

#[test]
fn a_cell_that_is_dropped_releases_its_slot() {
    let slot = slot_of(b"k");
    let cell = SlotCell::empty();
    cell.put(0, slot.slot().handle(), &epoch::pin());
    assert_eq!(references(&slot), 2);
    drop(cell);
    assert_eq!(references(&slot), 1);
}

#[test]
fn each_entry_has_an_address_of_its_own() {
    let guard = epoch::pin();
    let slots = [slot_of(b"a"), slot_of(b"b")];
    let [a, b] = slots.each_ref().map(|slot| slot.slot().load(&guard).entry().map(|entry| entry.address()));
    assert!(a != b && a.is_some_and(|address| address.is_multiple_of(8)), "{a:?}, {b:?}");
}
