//! The pages of a simulated file: those that reads return, and those on the device.

#![allow(clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::io;
use std::sync::Arc;

use crate::seeded_rng::SeededRng;
use crate::store::failure::errnos::EIO;

#[derive(Debug, Default)]
pub(in crate::store) struct FileState {
    /// The bytes that reads return.
    pub(in crate::store) now: Vec<u8>,
    /// The bytes on the device.
    pub(in crate::store) durable: Vec<u8>,
    /// The ranges written since the last sync.
    pub(in crate::store) unsynced: Vec<(usize, usize)>,
    /// The ranges without blocks.
    pub(in crate::store) holes: Vec<(usize, usize)>,
    pub(in crate::store) durable_holes: Vec<(usize, usize)>,
    /// Cloned by each descriptor.
    pub(in crate::store) handles: Arc<()>,
    /// How often the file was opened.
    pub(in crate::store) opens: u32,
    /// A byte that the device does not return.
    pub(in crate::store) lost: Option<usize>,
}

impl FileState {
    /// The bytes that a read of at most this many returns: those before a lost one.
    pub(in crate::store) fn readable(&self, at: usize, most: usize) -> io::Result<&[u8]> {
        let rest = self.now.get(at..).unwrap_or_default();
        let count = match self.lost.and_then(|lost| lost.checked_sub(at)) {
            Some(0) if most > 0 => return Err(io::Error::from_raw_os_error(EIO)),
            Some(before) => before.min(most),
            None => most,
        };
        Ok(rest.get(..count).unwrap_or(rest))
    }

    /// Writes sectors of the unsynced ranges to the device: none, all, or any subset.
    pub(in crate::store) fn write_some(&mut self, rng: &mut SeededRng, sector: usize) {
        // The worst cases are as likely as the mixed ones.
        let mode = rng.below(4);
        for (from, to) in self.unsynced.drain(..) {
            let mut at = from - from % sector;
            while at < to {
                let keeps = match mode {
                    0 => false,
                    1 => true,
                    _ => rng.one_in(2),
                };
                let part = at..(at + sector).min(self.now.len()).min(self.durable.len());
                let pair = self.durable.get_mut(part.clone()).zip(self.now.get(part));
                if let Some((durable, now)) = pair.filter(|_| keeps) {
                    durable.copy_from_slice(now);
                }
                at += sector;
            }
        }
    }

    /// The length on the device becomes that of the file, or stays.
    pub(in crate::store) fn resize_perhaps(&mut self, rng: &mut SeededRng) {
        let length = if rng.one_in(2) { self.now.len().max(self.durable.len()) } else { self.durable.len() };
        let fill = if rng.one_in(2) { 0 } else { 0xa5 };
        self.durable.resize(length, fill);
    }

    /// The bytes of its blocks.
    pub(in crate::store) fn allocated(&self) -> u64 {
        let holes: usize = self.holes.iter().map(|(from, to)| to - from).sum();
        self.now.len().saturating_sub(holes) as u64
    }
}
