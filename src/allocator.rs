//! The allocator of the process, chosen when it starts: mimalloc, jemalloc or the system's.
//!
//! The choice never changes after the first allocation, since a block must go back to the allocator that it came from.
//! The code that decides allocates nothing. This module reports no errors: the command line refuses an unknown name.
//!
//! ```text
//!                    before main                              first allocation
//! argv ─► read_arguments ─► REQUESTED ─────────────────────► decide ─► DECIDED ─► every alloc, realloc, dealloc
//!         (.init_array)     SPINDLE_ALLOCATOR, if unset ────┘
//! ```
//!
//! The library has the type, [`Switch`]. A program that wants the choice makes it its `#[global_allocator]`.

#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait, and argv comes from the C runtime")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use mimalloc::MiMalloc;
use tikv_jemallocator::Jemalloc;

/// Environment variable that is read when the arguments name no allocator.
const VARIABLE: &CStr = c"SPINDLE_ALLOCATOR";
/// The argument that names the allocator.
const FLAG: &[u8] = b"--allocator";

/// No choice yet. The other values of [`REQUESTED`] and [`DECIDED`] are those of [`Choice::code`].
const NONE: u8 = 0;
const MIMALLOC: u8 = 1;
const JEMALLOC: u8 = 2;
const SYSTEM: u8 = 3;

/// The choice of the arguments. Written by `read_arguments` while the process has one thread, read by [`decide`].
static REQUESTED: AtomicU8 = AtomicU8::new(NONE);

/// The allocator of this process. Written once, by the first allocation, read by all later ones.
static DECIDED: AtomicU8 = AtomicU8::new(NONE);

/// An allocator that `--allocator` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// mimalloc 2: the default.
    Mimalloc,
    /// jemalloc 5.
    Jemalloc,
    /// `malloc` of the C library.
    System,
}

impl Choice {
    /// All choices, the default first.
    pub const ALL: [Self; 3] = [Self::Mimalloc, Self::Jemalloc, Self::System];

    /// The name that the command line uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::System => "system",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Mimalloc => MIMALLOC,
            Self::Jemalloc => JEMALLOC,
            Self::System => SYSTEM,
        }
    }

    fn by_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name().as_bytes() == name)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not one of [`Choice::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such allocator: {0} (mimalloc, jemalloc or system)")]
pub struct UnknownAllocator(pub String);

impl FromStr for Choice {
    type Err = UnknownAllocator;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::by_name(name.as_bytes()).ok_or_else(|| UnknownAllocator(name.to_owned()))
    }
}

/// The allocator of this process. It is also [`Choice::System`] where [`Switch`] is not the global allocator.
#[must_use]
pub fn in_use() -> Choice {
    // Relaxed: no other data is published with the value. It is written once, before any block that this thread can
    // have received.
    match DECIDED.load(Ordering::Relaxed) {
        MIMALLOC => Choice::Mimalloc,
        JEMALLOC => Choice::Jemalloc,
        _ => Choice::System,
    }
}

/// The global allocator, which chooses on the first allocation.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: spindle::allocator::Switch = spindle::allocator::Switch;
///
/// let boxed = Box::new(7);
/// # let _ = boxed;
/// println!("memory comes from {}", spindle::allocator::in_use());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Switch;

/// Hands a call of `GlobalAlloc` to the allocator with this code.
macro_rules! dispatch {
    ($code:expr, $method:ident($($argument:expr),*)) => {
        match $code {
            MIMALLOC => MiMalloc.$method($($argument),*),
            JEMALLOC => Jemalloc.$method($($argument),*),
            _ => System.$method($($argument),*),
        }
    };
}

// SAFETY: the three allocators keep the contract of GlobalAlloc, and each block always goes to the same one: DECIDED
// goes from NONE to one value and stays. A thread that holds a block received it after that, from a thread that had
// seen the value.
unsafe impl GlobalAlloc for Switch {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`: a layout that is not empty.
        unsafe { dispatch!(decided(), alloc(layout)) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`: a layout that is not empty.
        unsafe { dispatch!(decided(), alloc_zeroed(layout)) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller says that `block` came from this allocator with `layout`. DECIDED has not changed since
        // then.
        unsafe { dispatch!(decided(), dealloc(block, layout)) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller says that `block` came from this allocator with `layout`, and that `bytes` is not 0.
        unsafe { dispatch!(decided(), realloc(block, layout, bytes)) }
    }
}

unsafe extern "C" {
    /// mimalloc: frees the unused memory of the calling thread's heap. With `force`, its pages go back to the system at
    /// once.
    safe fn mi_collect(force: bool);
    /// jemalloc's `mallctl`, under the name that its crate gives it.
    fn _rjem_mallctl(
        name: *const c_char,
        old: *mut c_void,
        old_bytes: *mut usize,
        new: *mut c_void,
        new_bytes: usize,
    ) -> c_int;
}

/// Makes the allocator give back the free memory that it keeps for the calling thread. mimalloc reclaims blocks that
/// other threads have freed of a thread's memory only on this thread. So each thread calls this that allocates memory
/// for others to free.
///
/// It looks at all memory of the thread, which takes some milliseconds for a gigabyte.
pub fn collect_thread() {
    match in_use() {
        Choice::Mimalloc => {
            mi_collect(true);
            // The first call returns the pages as they were before it freed anything itself.
            mi_collect(true);
        }
        // jemalloc refuses this on a thread without a cache.
        Choice::Jemalloc => _ = command(c"thread.tcache.flush"),
        Choice::System => {}
    }
}

/// Makes the allocator keep no freed blocks for the calling thread. Without this, jemalloc reuses the block that the
/// thread freed last for its next allocation. A thread that copies elements out of memory pages to empty them would
/// then fill them again with the copies.
///
/// mimalloc and the C library keep less. With them this does nothing.
pub fn keep_nothing() {
    if in_use() == Choice::Jemalloc {
        disable_cache();
    }
}

/// Disables jemalloc's cache for the calling thread.
fn disable_cache() {
    let none = std::ptr::null_mut;
    let mut enabled = false;
    let (value, bytes) = ((&raw mut enabled).cast(), size_of_val(&enabled));
    // SAFETY: the name ends in NUL. jemalloc reads one `bool` from `value`, and writes to no pointer, since those are
    // null.
    let status = unsafe { _rjem_mallctl(c"thread.tcache.enabled".as_ptr(), none(), none().cast(), value, bytes) };
    debug_assert_eq!(status, 0, "a thread may do without at any time");
}

/// Makes the allocator give back all unused memory, and the C library as well, which libzmq always allocates from.
pub fn collect_process() {
    if in_use() == Choice::Jemalloc {
        // 4096 addresses all arenas (`MALLCTL_ARENAS_ALL`).
        let purged = command(c"arena.4096.purge");
        debug_assert!(purged, "arenas can be purged at any time");
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Runs a command of jemalloc that takes and returns no value. Returns whether it succeeded.
fn command(name: &CStr) -> bool {
    let none = std::ptr::null_mut;
    // SAFETY: the name ends in NUL, and with null pointers jemalloc neither reads nor writes a value.
    unsafe { _rjem_mallctl(name.as_ptr(), none(), none().cast(), none(), 0) == 0 }
}

/// The code of the allocator in use. The first call decides.
#[inline]
fn decided() -> u8 {
    // Relaxed: no other data is published with the value.
    match DECIDED.load(Ordering::Relaxed) {
        NONE => decide(),
        code => code,
    }
}

/// The allocator that the arguments name, else that of the environment, else mimalloc. Threads that race here agree on
/// one.
#[cold]
fn decide() -> u8 {
    // Relaxed: written before there was a second thread.
    let code = match REQUESTED.load(Ordering::Relaxed) {
        NONE => choice_of_environment().unwrap_or(Choice::Mimalloc).code(),
        code => code,
    };
    // Relaxed on both sides: the loser of the race takes the winner's value, and no other data is published with it.
    match DECIDED.compare_exchange(NONE, code, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => code,
        Err(winner) => winner,
    }
}

fn choice_of_environment() -> Option<Choice> {
    // SAFETY: the name ends in NUL. The first allocation happens before any thread could change the environment.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the string that getenv returns ends in NUL, and is not changed while it is read here, as above.
    Choice::by_name(unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// The first allocator that the arguments name, as `--allocator X` or `--allocator=X`, before a `--`.
fn choice_of_arguments<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> Option<Choice> {
    while let Some(argument) = arguments.next() {
        if argument == b"--" {
            return None;
        }
        match argument.strip_prefix(FLAG) {
            Some([]) => return Choice::by_name(arguments.next()?),
            Some([b'=', name @ ..]) => return Choice::by_name(name),
            _ => {}
        }
    }
    None
}

/// Reads argv before `main`. Only glibc hands argv to the functions of `.init_array`. Elsewhere the environment
/// decides.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod start {
    use std::ffi::{CStr, c_char, c_int};
    use std::sync::atomic::Ordering;

    use super::{REQUESTED, choice_of_arguments};

    #[used]
    // SAFETY: glibc calls each entry of this section once, before main, with (argc, argv, envp): this function's type.
    #[unsafe(link_section = ".init_array")]
    static READ_ARGUMENTS: extern "C" fn(c_int, *const *const c_char) = read_arguments;

    extern "C" fn read_arguments(count: c_int, arguments: *const *const c_char) {
        let count = usize::try_from(count).unwrap_or(0);
        let words = (1..count).map(|index| {
            // SAFETY: the C runtime gives `count` pointers to strings that end in NUL and outlive the process's start.
            unsafe { CStr::from_ptr(*arguments.add(index)) }.to_bytes()
        });
        if let Some(choice) = choice_of_arguments(words) {
            // Relaxed: the process still has one thread.
            REQUESTED.store(choice.code(), Ordering::Relaxed);
        }
    }
}

/// Bytes of a machine word.
const WORD: usize = size_of::<usize>();
/// Up to this many words, size classes are two words apart (`MI_ALIGN2W`).
const EVEN_WORDS_MAX: usize = 8;
/// Above this many bytes, a block has memory pages of its own (`MI_MEDIUM_OBJ_SIZE_MAX`).
const CLASS_BYTES_MAX: usize = 64 << 10;
/// Bytes of a memory page.
const PAGE: usize = 4 << 10;

/// The bytes that a block of `bytes` takes in mimalloc, which rounds each request up to one of its classes.
///
/// ```text
/// 8, 16, 32, 48, 64, then four classes for each doubling: 80, 96, 112, 128, 160, 192, 224, 256, 320, … 64 KiB,
/// then whole memory pages
/// ```
/// Source: `mi_bin` and `mi_good_size` in `src/page-queue.c` of mimalloc 2, with 64-bit words and pages of 4 KiB. The
/// count leaves out mimalloc's own metadata, which is below 1 % of the size of small blocks.
///
/// ```
/// assert_eq!(spindle::allocator::size_class(100), 112);
/// ```
#[must_use]
pub const fn size_class(bytes: usize) -> usize {
    let words = bytes.div_ceil(WORD);
    if words <= 1 {
        return WORD;
    }
    if words <= EVEN_WORDS_MAX {
        return words.next_multiple_of(2) * WORD;
    }
    if bytes > CLASS_BYTES_MAX {
        return bytes.next_multiple_of(PAGE);
    }
    let quarter = 1 << ((words - 1).ilog2() - 2);
    words.next_multiple_of(quarter) * WORD
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::sync::atomic::AtomicPtr;

    use super::*;

    unsafe extern "C" {
        /// mimalloc's own result, a pure function of the size.
        safe fn mi_good_size(bytes: usize) -> usize;
    }

    fn choice(arguments: &[&str]) -> Option<Choice> {
        choice_of_arguments(arguments.iter().map(|argument| argument.as_bytes()))
    }

    #[test]
    fn arguments_name_the_allocator_in_both_spellings() {
        assert_eq!(choice(&["serve", "--allocator", "jemalloc"]), Some(Choice::Jemalloc));
        assert_eq!(choice(&["serve", "--allocator=system", "--kv", "off"]), Some(Choice::System));
        assert_eq!(choice(&["serve", "--kv", "off"]), None);
    }

    #[test]
    fn arguments_that_name_no_known_allocator_choose_none() {
        assert_eq!(choice(&["--allocator"]), None);
        assert_eq!(choice(&["--allocator", "tcmalloc"]), None);
        assert_eq!(choice(&["--allocator="]), None);
        assert_eq!(choice(&["--allocators", "system"]), None);
        assert_eq!(choice(&["set", "t", "k", "--", "--allocator=system"]), None);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for choice in Choice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let refused = "Mimalloc".parse::<Choice>().unwrap_err();
        assert!(refused.to_string().contains("Mimalloc"), "{refused}");
    }

    #[test]
    fn where_the_switch_is_not_the_global_allocator_the_system_serves() {
        // The test program has no `#[global_allocator]`, and other tests here call the allocators themselves.
        assert_eq!(in_use(), Choice::System);
    }

    #[test]
    fn each_allocator_keeps_what_a_block_holds_while_it_grows_and_shrinks() {
        for code in [MIMALLOC, JEMALLOC, SYSTEM] {
            for align in [1, 8, 16, 64, 4096] {
                assert_block_survives(code, align);
            }
        }
    }

    /// Allocates an aligned block of zeros, fills it, grows it a hundredfold and shrinks it again. It keeps its bytes.
    fn assert_block_survives(code: u8, align: usize) {
        let layout = |bytes| Layout::from_size_align(bytes, align).unwrap();
        // SAFETY: the layouts are not empty, each is the one of the block's last change, and no byte outside is
        // touched.
        unsafe {
            let block = dispatch!(code, alloc_zeroed(layout(100)));
            assert!(!block.is_null() && block.addr().is_multiple_of(align));
            assert_eq!(std::slice::from_raw_parts(block, 100), [0; 100]);
            block.write_bytes(7, 100);
            let block = dispatch!(code, realloc(block, layout(100), 10_000));
            assert!(!block.is_null() && block.addr().is_multiple_of(align));
            assert_eq!(std::slice::from_raw_parts(block, 100), [7; 100]);
            let block = dispatch!(code, realloc(block, layout(10_000), 10));
            assert!(!block.is_null() && block.addr().is_multiple_of(align));
            assert_eq!(std::slice::from_raw_parts(block, 10), [7; 10]);
            dispatch!(code, dealloc(block, layout(10)));
        }
    }

    #[test]
    fn each_allocator_gives_back_on_request() {
        mi_collect(true);
        for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
            command(name);
        }
        collect_thread();
        collect_process();
    }

    #[test]
    fn size_classes_are_those_of_mimalloc() {
        for bytes in (0..=70_000).chain([100_000, 1 << 20, (1 << 24) + 1]) {
            assert_eq!(size_class(bytes), mi_good_size(bytes), "{bytes} bytes");
        }
    }

    /// A thread calls `prepare`, then frees a hundred jemalloc blocks of another thread, and allocates a new one after
    /// each. Returns how many of the new blocks have the address of the one before.
    fn given_again(prepare: fn()) -> usize {
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: the layout is not empty.
        let make = move || AtomicPtr::new(unsafe { Jemalloc.alloc(layout) });
        // SAFETY: each block is of this layout, and is used no longer.
        let free = move |block: &AtomicPtr<u8>| unsafe { Jemalloc.dealloc(block.load(Ordering::Relaxed), layout) };
        let address = |block: &AtomicPtr<u8>| block.load(Ordering::Relaxed).addr();
        let blocks: Vec<_> = (0..100).map(|_| make()).collect();
        let thread = std::thread::spawn(move || {
            // jemalloc never keeps the first block that a thread frees.
            free(&make());
            prepare();
            let pairs: Vec<_> = blocks.into_iter().map(|old| (free(&old), make(), old)).collect();
            pairs.iter().for_each(|((), new, _)| free(new));
            pairs.iter().filter(|((), new, old)| address(new) == address(old)).count()
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_thread_that_keeps_nothing_is_not_given_what_it_has_freed_of_another_thread() {
        assert_eq!(given_again(|| ()), 100, "jemalloc keeps a cache for each thread");
        assert_eq!(given_again(disable_cache), 0);
    }

    #[test]
    fn every_allocator_is_asked_to_keep_and_to_give_back_by_whoever_likes() {
        let asked = || {
            keep_nothing();
            collect_thread();
            collect_process();
            let flushed = command(c"thread.tcache.flush");
            disable_cache();
            [flushed, command(c"thread.tcache.flush"), command(c"arena.4096.purge"), command(c"no.such.name")]
        };
        let answers = std::thread::spawn(asked).join().unwrap();
        assert_eq!(answers, [true, false, true, false], "a thread without a cache has none to empty");
    }
}
