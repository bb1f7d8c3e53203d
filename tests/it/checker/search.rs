//! Looks for an order in which operations can have happened, one after the other.
//!
//! The search is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory of Lowe
//! ("Testing for Linearizability", 2017): take an operation that may come first, apply it to a model of the element, go
//! on with the rest, and never search twice from the same set of operations taken in the same state of the model.
//!
//! It knows no element: see [`Sequential`].

use std::collections::HashSet;
use std::hash::Hash;

/// What a history is of.
pub(crate) trait Sequential: Clone + Eq + Hash {
    type Operation: Clone;

    /// When an operation was invoked, and when it had returned.
    fn times(operation: &Self::Operation) -> (u64, u64);

    /// The possible models after the operation: none if the answer cannot have come from this model.
    fn successors(&self, operation: &Self::Operation) -> Vec<Self>;
}

/// Whether the operations can have happened one after the other, each between its invocation and its return.
pub(crate) fn is_linearizable_from<M: Sequential>(start: &M, history: &[M::Operation]) -> bool {
    Search::new(history).succeeds(start)
}

pub(super) struct Search<M: Sequential> {
    /// In the order of their invocations.
    operations: Vec<M::Operation>,
    /// The taken operations, with the model that they led to: no such pair is searched twice.
    visited: HashSet<(Taken, M)>,
}

/// Some operations, taken in some order, and those that may come next.
struct Node<M> {
    /// The last one taken. It has no meaning in the first node.
    took: usize,
    /// Operations that may come next, each with the model that it leads to, the best at the end.
    choices: Vec<(usize, M)>,
}

impl<M: Sequential> Search<M> {
    pub(super) fn new(history: &[M::Operation]) -> Self {
        let mut operations = history.to_vec();
        operations.sort_by_key(|operation| M::times(operation).0);
        Self { operations, visited: HashSet::new() }
    }

    /// Whether there is an order.
    fn succeeds(mut self, start: &M) -> bool {
        self.find(start, &mut |_| true)
    }

    /// All models at the end of an order that no search before has found.
    pub(super) fn ends(&mut self, start: &M) -> HashSet<M> {
        let mut ends = HashSet::new();
        self.find(start, &mut |end| {
            ends.insert(end.clone());
            false
        });
        ends
    }

    /// Goes depth first, and calls `is_enough` with the model at the end of each order. The path holds one node more than
    /// operations taken.
    fn find(&mut self, start: &M, is_enough: &mut dyn FnMut(&M) -> bool) -> bool {
        if self.operations.is_empty() {
            return is_enough(start);
        }
        let mut taken = Taken::nothing_of(self.operations.len());
        let mut path = vec![Node { took: 0, choices: self.choices(&taken, start) }];
        while let Some(node) = path.last_mut() {
            let depth = self.operations.len();
            if let Some((index, model)) = node.choices.pop() {
                taken.add(index);
                if path.len() == depth {
                    if is_enough(&model) {
                        return true;
                    }
                    taken.take_back(index);
                } else if self.visited.insert((taken.clone(), model.clone())) {
                    let choices = self.choices(&taken, &model);
                    path.push(Node { took: index, choices });
                } else {
                    taken.take_back(index);
                }
            } else {
                taken.take_back(node.took);
                path.pop();
            }
        }
        false
    }

    /// An operation may come next if it was invoked before any other remaining one returned. Those that returned first
    /// are the likeliest.
    fn choices(&self, taken: &Taken, model: &M) -> Vec<(usize, M)> {
        let mut horizon = u64::MAX;
        let mut candidates = Vec::new();
        for (index, operation) in self.operations.iter().enumerate().skip(taken.prefix()) {
            if taken.has(index) {
                continue;
            }
            let (invoked, returned) = M::times(operation);
            if invoked > horizon {
                break;
            }
            horizon = horizon.min(returned);
            candidates.push((index, operation));
        }
        candidates.sort_by_key(|(_, operation)| std::cmp::Reverse(M::times(operation).1));
        candidates
            .into_iter()
            .flat_map(|(index, operation)| model.successors(operation).into_iter().map(move |next| (index, next)))
            .collect()
    }
}

/// A set of operations, by their indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Taken(Box<[u64]>);

impl Taken {
    fn nothing_of(operations: usize) -> Self {
        Self(vec![0; operations.div_ceil(64)].into_boxed_slice())
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn take_back(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    /// How many operations from the first on are all in the set, at least.
    fn prefix(&self) -> usize {
        64 * self.0.iter().take_while(|&&word| word == u64::MAX).count()
    }
}
