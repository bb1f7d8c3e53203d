//! The bodies of the records of tasks that opening has found, until their owner takes them.
//!
//! ```text
//! blocks   body body body … │ body … │        found   key, block, offset, length, in the order of the keys
//! ```
//! They stand side by side in large blocks. Each block goes back to the system as soon as its bodies are taken.
//!
//! This module does not interpret them.

use crate::store::interface::TaskKey;
use crate::store::places::TaskId;

/// The bytes of a block.
const BLOCK_BYTES: usize = 1 << 20;

/// The place of a body in the blocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct BodyAt {
    block: u32,
    from: u32,
    length: u32,
}

/// A block of bodies.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// The bodies in it that are still needed.
    left: u32,
}

/// The bytes of bodies.
#[derive(Debug, Default)]
pub(in crate::store) struct BodyBlocks(Vec<Block>);

/// The bodies that were found.
#[derive(Debug, Default)]
pub(in crate::store) struct FoundBodies {
    /// In the order of the keys.
    pub(in crate::store) found: Vec<(TaskId, BodyAt)>,
    pub(in crate::store) blocks: BodyBlocks,
}

impl BodyBlocks {
    /// Keeps a body.
    pub(in crate::store) fn add(&mut self, body: &[u8]) -> BodyAt {
        if self.0.last().is_none_or(|block| block.bytes.len() + body.len() > block.bytes.capacity()) {
            let bytes = Vec::with_capacity(BLOCK_BYTES.max(body.len()));
            self.0.push(Block { bytes, left: 0 });
        }
        let index = self.0.len() - 1;
        let block = self.0.last_mut().expect("one has room");
        let from = block.bytes.len();
        block.bytes.extend_from_slice(body);
        block.left += 1;
        let fits = |number: usize| u32::try_from(number).expect("a body has less than 4 GiB");
        BodyAt { block: fits(index), from: fits(from), length: fits(body.len()) }
    }

    pub(in crate::store) fn get(&self, at: BodyAt) -> &[u8] {
        let from = at.from as usize;
        let block = self.0.get(at.block as usize);
        block.and_then(|block| block.bytes.get(from..from + at.length as usize)).unwrap_or_default()
    }

    /// A body is no longer needed.
    pub(in crate::store) fn release(&mut self, at: BodyAt) {
        let is_open = at.block as usize + 1 == self.0.len();
        let Some(block) = self.0.get_mut(at.block as usize) else { return };
        block.left -= 1;
        if block.left == 0 && !is_open {
            block.bytes = Vec::new();
        }
    }
}

impl FoundBodies {
    /// The keys, in their order.
    pub(in crate::store) fn keys(&self) -> impl Iterator<Item = TaskKey> {
        self.found.iter().map(|(id, _)| TaskKey::from(*id))
    }

    /// Calls `each` with keys and bodies, in the order of the keys.
    pub(in crate::store) fn consume(self, mut each: impl FnMut(&TaskKey, &[u8])) {
        let Self { found, mut blocks } = self;
        for (id, at) in found {
            each(&TaskKey::from(id), blocks.get(at));
            blocks.release(at);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn bodies_stay_until_they_are_taken() {
        let mut blocks = BodyBlocks::default();
        let large = vec![9; BLOCK_BYTES + 1];
        let bodies = [b"one".to_vec(), large, Vec::new(), b"last".to_vec()];
        let found: Vec<_> =
            bodies.iter().zip(0..).map(|(body, key)| (TaskId::from([key; 12]), blocks.add(body))).collect();
        let found = FoundBodies { found, blocks };
        assert!(found.keys().eq((0..4).map(|key| [key; 12])));
        let mut taken = Vec::new();
        found.consume(|key, body| taken.push((*key, body.to_vec())));
        assert!(taken.into_iter().eq((0..4).map(|key| [key; 12]).zip(bodies)));
    }

    #[test]
    fn a_block_goes_with_its_last_body() {
        let mut blocks = BodyBlocks::default();
        let at: Vec<BodyAt> = (0..3).map(|_| blocks.add(&vec![1; BLOCK_BYTES / 2])).collect();
        blocks.release(at[0]);
        assert_eq!(blocks.get(at[1]).len(), BLOCK_BYTES / 2);
        blocks.release(at[1]);
        assert!(blocks.0.first().is_some_and(|block| block.bytes.capacity() == 0));
        assert_eq!(blocks.get(at[2]).len(), BLOCK_BYTES / 2);
    }
}
