//! A file of a simulated device.

#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test that fails should say where")]

use std::io;

use super::{FileState, SimulatedFile, World};
use crate::store::failure::errnos::ENOSPC;
use crate::store::fault::{Fault, planted};
use crate::store::folder::LogFile;
use crate::store::format::SECTOR;

impl LogFile for SimulatedFile {
    fn size(&self) -> io::Result<u64> {
        let mut world = self.world.lock();
        world.call()?;
        Ok(world.files[self.file].now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let mut world = self.world.lock();
        world.read()?;
        let rest = world.files[self.file].readable(at as usize, bytes.len())?;
        let count = rest.len();
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn read_cached(&self, bytes: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        let waits = self.world.lock().rng.one_in(2);
        if waits { Ok(None) } else { self.read_at(bytes, at).map(Some) }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let mut world = self.world.lock();
        let failed = world.call().err();
        // What stands in one sector is written whole or not at all.
        let is_short = bytes.len() > SECTOR as usize && (failed.is_some() || world.rng.one_in(20));
        let count = if is_short { 1 + world.rng.below(bytes.len() as u64 - 1) as usize } else { bytes.len() };
        let at = at as usize;
        let grows = (at + count).saturating_sub(world.files[self.file].now.len()) as u64;
        if grows > 0 && world.bytes() + grows > world.space {
            return Err(failed.unwrap_or_else(|| io::Error::from_raw_os_error(ENOSPC)));
        }
        // A part of the failing write may have come. Later calls have no effect.
        let failed = match failed {
            Some(error) if world.failures.at != Some(world.calls) || world.rng.one_in(2) => return Err(error),
            failed => failed,
        };
        let file = &mut world.files[self.file];
        let in_hole = file.holes.iter().any(|(from, to)| at < *to && *from < at + count);
        assert!(!in_hole, "nothing is written into a hole");
        if file.now.len() < at + count {
            file.now.resize(at + count, 0);
        }
        file.now[at..at + count].copy_from_slice(&bytes[..count]);
        file.unsynced.push((at, at + count));
        failed.map_or(Ok(count), Err)
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        let is_of_backup = || world.names.iter().any(|((folder, _), file)| *folder > 0 && *file == self.file);
        if planted(Fault::NoSync) || planted(Fault::BackupUnsynced) && is_of_backup() {
            return Ok(());
        }
        let called = world.call();
        let World { files, rng, sector, failures, .. } = &mut *world;
        let file = &mut files[self.file];
        if called.is_err() {
            // The power failure decides what is kept, if it is one. Otherwise the pages read well, and the system does
            // not write them again.
            if !failures.power {
                file.resize_perhaps(rng);
                file.write_some(rng, *sector);
            }
            return called;
        }
        let FileState { now, durable, unsynced, .. } = file;
        durable.resize(now.len(), 0);
        for (from, to) in unsynced.drain(..) {
            durable[from..to].copy_from_slice(&now[from..to]);
        }
        Ok(())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        world.change(|world| world.files[self.file].now.resize(bytes as usize, 0))
    }

    fn allocated(&self) -> io::Result<u64> {
        let mut world = self.world.lock();
        world.call()?;
        Ok(world.files[self.file].allocated())
    }

    fn names(&self) -> io::Result<u64> {
        let mut world = self.world.lock();
        world.call()?;
        let names = world.names.values().filter(|file| **file == self.file).count() as u64;
        Ok(if planted(Fault::LinksIgnored) { 1 } else { names })
    }

    fn punch(&self, from: u64, length: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        // A file system gives blocks to other files only when it is durable that they are free.
        let is_durable = world.rng.one_in(2) || world.space < u64::MAX;
        world.change(|world| {
            let file = &mut world.files[self.file];
            let hole = (from as usize, (from + length) as usize);
            file.now[hole.0..hole.1].fill(0);
            file.holes.push(hole);
            if is_durable {
                file.durable[hole.0..hole.1].fill(0);
                file.durable_holes.push(hole);
            }
        })
    }

    fn start_write_back(&self, _from: u64, _length: u64) {}
}
