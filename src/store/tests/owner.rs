//! The owner of a log in the histories: it knows the place of each record.

#![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeMap;

use super::model::RecordKey;
use crate::store::fault::{Fault, planted};
use crate::store::*;

/// The owner of the records: it knows where the last one of each key is.
pub(in crate::store) struct Owner {
    pub(in crate::store) log: Log,
    pub(in crate::store) places: BTreeMap<RecordKey, Place>,
    /// The small records, in memory.
    pub(in crate::store) known: BTreeMap<RecordKey, Value>,
    /// Values that readers hold, with their keys and bodies.
    pub(in crate::store) held: Vec<(StoredValue, RecordKey, Vec<u8>)>,
    /// Batches of copies that had to be written alone.
    pub(in crate::store) apart: u32,
}

impl Owner {
    pub(in crate::store) fn new(log: Log) -> Self {
        Self { log, places: BTreeMap::new(), known: BTreeMap::new(), held: Vec::new(), apart: 0 }
    }

    /// Writes copies and then records, in one batch.
    pub(in crate::store) fn commit(&mut self, batch: RecordBatch, idle: bool, drops: bool) -> Result<(), Error> {
        let (places, known) = (&self.places, &self.known);
        let mut is_live = |space, key: &[u8], place: Option<Place>| {
            let key = (space, key.to_vec());
            match known.get(&key) {
                _ if places.get(&key) != place.as_ref() => Liveness::Dead,
                Some(body) => Liveness::Known(body.clone()),
                None => Liveness::Live,
            }
        };
        if drops {
            // Copies that are not written are returned again.
            self.log.copies(&batch, &mut is_live)?;
        }
        let is_live = &mut is_live;
        let copies = if idle { self.log.idle_copies(is_live)? } else { self.log.copies(&batch, is_live)? };
        let again = self.unreadable(&copies.unreadable);
        let (mut all, is_apart) = match self.log.unless_unread(again)? {
            Some(again) => {
                let mut all = copies.batch;
                all.records.extend(again);
                (all, copies.is_apart)
            }
            None => Default::default(),
        };
        if is_apart {
            self.apart += 1;
            self.write(std::mem::take(&mut all))?;
        }
        match planted(Fault::CopyBehind) {
            true => all.records = batch.records.into_iter().chain(all.records).collect(),
            false => all.records.extend(batch.records),
        }
        self.write(all)
    }

    /// The records in these ranges, to be written again.
    fn unreadable(&self, ranges: &[UnreadableRange]) -> Result<Vec<Record>, Error> {
        let is_in = |place: &Place| ranges.iter().any(|range| range.contains(*place));
        let again = self.places.iter().filter(|(_, place)| is_in(place)).map(|((space, key), place)| {
            let body = match self.log.value(*place).expect("it is in use").read() {
                Ok(body) => Body::Bytes(body),
                Err(Error::Rotten { .. } | Error::SetAside { .. }) => Body::SetAside,
                Err(error) => return Err(error),
            };
            Ok(Record { space: *space, key: key[..].into(), body })
        });
        again.collect()
    }

    fn write(&mut self, batch: RecordBatch) -> Result<(), Error> {
        let new = self.log.append(&batch)?;
        for (Record { space, key, body }, place) in batch.records.into_iter().zip(new) {
            let at = (space, key.to_vec());
            match body {
                Body::Bytes(body) if space == Space::Tasks => drop(self.known.insert(at.clone(), body)),
                Body::Bytes(_) | Body::Removed | Body::SetAside => drop(self.known.remove(&at)),
            }
            let old = match place {
                Some(place) => self.places.insert(at, place),
                None => self.places.remove(&at),
            };
            if let Some(old) = old {
                self.log.replaced(space, old, key.len());
            }
        }
        assert!(self.log.segments.are_summed() && self.log.retired.are_summed());
        let listed: Vec<_> = self.log.set_aside().map(|(space, key)| (space, key.to_vec())).collect();
        let placed = self.places.iter().filter(|(_, place)| place.is_set_aside()).map(|(key, _)| key.clone());
        assert_eq!(listed, placed.collect::<Vec<_>>(), "what is set aside is listed");
        Ok(())
    }

    /// Gives back all space that idling gives back.
    pub(in crate::store) fn shrink(&mut self) -> Result<(), Error> {
        for _ in 0..10_000 {
            if !self.log.may_shrink() {
                return Ok(());
            }
            self.commit(RecordBatch::default(), true, false)?;
            self.log.sync()?;
        }
        panic!("an idle log never comes to rest: {:?}", self.log.metrics());
    }
}
