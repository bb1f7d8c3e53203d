//! The memory of freed entries that a thread keeps for the entries that it makes next.
//!
//! An entry is freed hundreds of changes after it was replaced. An allocator links the block into the free blocks of its
//! page, and hands it out when the page has its turn: the memory has left the processor's cache by then, and the first
//! load of the next allocation waits for it. Here the last block freed is the first one used, and the processor is asked
//! to fetch a block some allocations ahead.
//!
//! ```text
//! free  ─► the list of its size ─ more than KEPT_BYTES_MAX together ─► the allocator
//! alloc ◄─ the list of its size ─ none ◄────────────────────────────── the allocator
//! ```
//! This is the magazine of a slab allocator (Bonwick and Adams, "Magazines and Vmem", 2001), without the depot behind it.
//! Lists are kept by thread, and nothing is shared. What a thread keeps is freed at its end, and when the compactor calls.

use std::alloc::{self, Layout};
use std::cell::RefCell;
use std::ptr::NonNull;

use super::prefetch_to_write;

/// Bytes of the largest block that is kept.
const BLOCK_BYTES_MAX: usize = 512;
/// Bytes that a thread keeps at most. It frees up to 512 objects at once.
const KEPT_BYTES_MAX: usize = 128 << 10;
/// Sizes are multiples of this, so that the blocks of one list are alike.
const STEP: usize = 8;
/// The block that is used after as many others is fetched.
const AHEAD: usize = 3;

/// Free blocks, by size.
struct FreeLists {
    blocks: [Vec<NonNull<u8>>; BLOCK_BYTES_MAX / STEP + 1],
    bytes: usize,
}

thread_local! {
    /// Blocks that no other thread knows, each from the allocator with the layout of its list.
    static FREE: RefCell<FreeLists> = const { RefCell::new(FreeLists::new()) };
}

/// The layout of a block with at least so many bytes.
pub(super) fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(STEP), STEP)
        .unwrap_or_else(|_| unreachable!("an entry is much smaller than half of the address space"))
}

impl FreeLists {
    const fn new() -> Self {
        Self { blocks: [const { Vec::new() }; BLOCK_BYTES_MAX / STEP + 1], bytes: 0 }
    }

    #[inline]
    fn put(&mut self, block: NonNull<u8>, bytes: usize) -> bool {
        let Some(blocks) = self.blocks.get_mut(bytes / STEP) else { return false };
        let has_room = self.bytes + bytes <= KEPT_BYTES_MAX;
        if has_room {
            self.bytes += bytes;
            blocks.push(block);
        }
        has_room
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let blocks = self.blocks.get_mut(bytes / STEP)?;
        let block = blocks.pop()?;
        self.bytes -= bytes;
        if let Some(next) = blocks.len().checked_sub(AHEAD).and_then(|place| blocks.get(place)) {
            prefetch_to_write(next.as_ptr(), bytes);
        }
        Some(block)
    }

    fn clear(&mut self) {
        if self.bytes == 0 {
            return;
        }
        for (number, blocks) in self.blocks.iter_mut().enumerate() {
            // SAFETY: `put` was given each block with this layout, and it is taken out once.
            std::mem::take(blocks)
                .into_iter()
                .for_each(|block| unsafe { alloc::dealloc(block.as_ptr(), layout(number * STEP)) });
        }
        self.bytes = 0;
    }
}

impl Drop for FreeLists {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A block of this layout, not initialised. Ends the process if there is no memory.
#[inline]
pub(super) fn allocate(layout: Layout) -> NonNull<u8> {
    debug_assert!(layout.size() > 0 && layout == self::layout(layout.size()));
    // At the end of the thread the lists may be gone.
    if let Ok(Some(block)) = FREE.try_with(|free| free.borrow_mut().take(layout.size())) {
        return block;
    }
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc::alloc(layout) }).unwrap_or_else(|| alloc::handle_alloc_error(layout))
}

/// Frees a block.
///
/// # Safety
/// The block came from [`allocate`] with this layout, on any thread. No thread reaches it any more, and it is freed once.
#[inline]
pub(super) unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if FREE.try_with(|free| free.borrow_mut().put(block, layout.size())) != Ok(true) {
        // SAFETY: by this function's contract.
        unsafe { alloc::dealloc(block.as_ptr(), layout) }
    }
}

/// Gives what this thread keeps back to the allocator.
pub(in crate::tables) fn give_back() {
    // At the end of the thread there may be nothing to give back.
    let _gone = FREE.try_with(|free| free.borrow_mut().clear());
}

#[cfg(all(test, not(feature = "models")))]
mod tests {
    use super::*;

    fn kept() -> usize {
        FREE.with(|free| free.borrow().bytes)
    }

    #[test]
    fn the_block_freed_last_is_used_first_for_any_size_of_its_step() {
        let [first, second] = [17, 24].map(|bytes| allocate(layout(bytes)));
        // SAFETY: both were allocated above, with layouts of 24 bytes.
        unsafe {
            free(first, layout(20));
            free(second, layout(24));
        }
        assert_eq!(kept(), 48);
        assert_ne!(allocate(layout(25)), second, "32 bytes");
        assert_eq!([allocate(layout(18)), allocate(layout(24))], [second, first]);
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_thread_keeps_so_many_bytes_of_small_blocks_and_gives_them_back() {
        let blocks: Vec<_> = (0..1_000).map(|_| allocate(layout(400))).collect();
        // SAFETY: they were allocated above.
        blocks.into_iter().for_each(|block| unsafe { free(block, layout(400)) });
        assert_eq!(kept(), KEPT_BYTES_MAX / 400 * 400);
        give_back();
        assert_eq!(kept(), 0);
        for (bytes, is_kept) in [(BLOCK_BYTES_MAX, true), (BLOCK_BYTES_MAX + 1, false)] {
            let block = allocate(layout(bytes));
            // SAFETY: as above.
            unsafe { free(block, layout(bytes)) };
            assert_eq!(kept() > 0, is_kept, "{bytes}");
            give_back();
        }
    }

    #[test]
    fn a_block_may_be_freed_by_another_thread_which_ends() {
        let block = allocate(layout(64)).as_ptr().expose_provenance();
        let thread = std::thread::spawn(move || {
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(block));
            // SAFETY: the other thread allocated it and does not use it.
            block.into_iter().for_each(|block| unsafe { free(block, layout(64)) });
            kept()
        });
        assert_eq!(thread.join().ok(), Some(64));
    }
}
