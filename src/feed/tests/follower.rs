//! A follower of one table, for tests. It checks all messages of the feed, and has a copy of each life.

use std::collections::BTreeMap;

use crate::feed::{Digest, FeedContent, FeedMessage, FeedPosition, table_of_topic};

/// What a follower knows of one life.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    pub(crate) next: u64,
    pub(crate) elements: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    pub(crate) is_dropped: bool,
}

/// A follower that has received all messages of the table.
#[derive(Debug)]
pub(crate) struct Follower {
    epoch: u64,
    table: Vec<u8>,
    pub(crate) lives: BTreeMap<u64, Followed>,
    versions: BTreeMap<Vec<u8>, u64>,
    pub(crate) changes: u64,
}

impl Follower {
    pub(crate) fn new(epoch: u64, table: &[u8]) -> Self {
        Self { epoch, table: table.to_vec(), lives: BTreeMap::new(), versions: BTreeMap::new(), changes: 0 }
    }

    /// Checks a message, and merges it.
    pub(crate) fn receive(&mut self, topic: &[u8], payload: &[u8]) -> Result<(), String> {
        assert_eq!(table_of_topic(topic), Some(&*self.table));
        let message = FeedMessage::decode(payload).map_err(|fault| fault.to_string())?;
        let FeedPosition { epoch, incarnation, sequence } = message.position;
        assert_eq!(epoch, self.epoch);
        let life = self.lives.entry(incarnation).or_insert_with(|| Followed { next: 1, ..Followed::default() });
        if life.is_dropped {
            return Err(format!("a message of life {incarnation} after it was dropped"));
        }
        if sequence != life.next {
            return Err(format!("sequence {sequence} where {} comes next", life.next));
        }
        match message.content {
            FeedContent::Changes(changes) => {
                for change in changes {
                    life.next += 1;
                    self.changes += 1;
                    let before = self.versions.insert(change.key.to_vec(), change.version);
                    if before.is_some_and(|before| before >= change.version) {
                        return Err(format!("version {} after {before:?}", change.version));
                    }
                    if change.cause.is_live() {
                        life.elements.insert(change.key.to_vec(), (change.version, change.value.to_vec()));
                    } else {
                        life.elements.remove(change.key);
                    }
                }
            }
            FeedContent::Bookmark { elements, digest, durable } => {
                let own = life.digest();
                if (own.elements, own.sum, life.next) != (elements, digest, durable) {
                    return Err(format!("{own:?} at {} where the bookmark has {elements}, {digest}", life.next));
                }
            }
            FeedContent::Dropped => {
                life.is_dropped = true;
                if !life.elements.is_empty() {
                    return Err("a life is dropped with elements".to_owned());
                }
            }
        }
        Ok(())
    }
}

impl Followed {
    pub(crate) fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        self.elements.iter().for_each(|(key, (version, _))| digest.add(key, *version));
        digest
    }
}
