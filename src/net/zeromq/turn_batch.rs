//! Turns that are out: another thread answers their messages, and brings the replies back.
//!
//! ```text
//! Connections::send_out ─► TurnBatch: bytes │ turn, turn, turn … ─► another thread ─► Connections::take_back
//!                            received bytes ┘   └ id, state, positions of messages ─► replies, outcome
//! ```
//! A batch owns all that its turns need, so nothing of a connection is shared between threads. The messages of a turn
//! lie in the bytes that the batch has received for several connections, or in a buffer of the turn's own. This is the
//! buffer in which its connection has collected a message that came in pieces, or a buffer that an earlier turn has
//! left.
//!
//! The rest of a waiting turn stays with the other thread ([`TurnBatch::answer`]), which brings it back in a later
//! batch ([`TurnBatch::answer_late`]).
//!
//! This module does not decide how many turns go into a batch, and does not answer messages.

use super::ConnectionId;
use super::reply_buffer::ReplyBuffer;
use super::turn::{TurnBytes, TurnOutcome};
use crate::limits::RECEIVE_BYTES;
use crate::net::budget::{Budget, WorkerShare};
use crate::zmtp::{MessageView, Messages};

/// A turn of one connection.
#[derive(Debug)]
pub struct TurnOut<S> {
    id: ConnectionId,
    /// The frontend's state for the connection. It goes and comes back with the turn.
    pub(super) state: S,
    pub(super) messages: Messages,
    pub(super) bytes: TurnBytes,
    /// Filled by the thread that answers.
    pub(super) replies: ReplyBuffer,
    /// Written by the thread that answers.
    pub(super) outcome: TurnOutcome,
    /// It may have a large reply while the frontend holds too much. Written by the owner of the connection.
    pub(super) is_exempt: bool,
}

/// What a thread needs to answer a turn.
pub struct TurnParts<'t, S> {
    /// The connection.
    pub id: ConnectionId,
    /// The frontend's state for it.
    pub state: &'t mut S,
    /// The messages.
    pub messages: MessageView<'t>,
    /// For the replies.
    pub replies: &'t mut ReplyBuffer,
}

impl<S: Default> TurnOut<S> {
    fn new(id: ConnectionId) -> Self {
        Self {
            id,
            state: S::default(),
            messages: Messages::default(),
            bytes: TurnBytes::Shared(0..0),
            replies: ReplyBuffer::default(),
            outcome: TurnOutcome::All,
            is_exempt: false,
        }
    }

    /// The connection.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    fn answer(
        &mut self,
        shared: &[u8],
        budget: &Budget,
        share: &mut WorkerShare,
        answer: impl FnOnce(TurnParts<'_, S>) -> TurnOutcome,
    ) -> Option<Self> {
        let Self { id, state, messages, bytes, replies, is_exempt, .. } = self;
        if !*is_exempt && budget.is_over() {
            replies.set_tight(true);
        }
        self.outcome = answer(TurnParts { id: *id, state, messages: messages.view(bytes.of(shared)), replies });
        share.add(budget, self.replies.kept());
        let TurnOutcome::Parked(answered) = self.outcome else { return None };
        Some(self.part(answered, shared))
    }

    /// Parts the messages from `answered` on from the turn, with the state and with bytes of their own.
    fn part(&mut self, answered: usize, shared: &[u8]) -> Self {
        let (messages, bytes) = self.rest(answered, shared);
        let state = std::mem::take(&mut self.state);
        let replies = self.replies.successor();
        Self { messages, bytes, state, replies, is_exempt: self.is_exempt, ..Self::new(self.id) }
    }

    /// The messages from `answered` on, with bytes of their own.
    pub(super) fn rest(&mut self, answered: usize, shared: &[u8]) -> (Messages, TurnBytes) {
        match &mut self.bytes {
            TurnBytes::Own(bytes, start) if answered == 0 => {
                (std::mem::take(&mut self.messages), TurnBytes::Own(std::mem::take(bytes), *start))
            }
            bytes => {
                let (messages, bytes) = self.messages.rest(answered, bytes.of(shared));
                (messages, TurnBytes::Own(bytes, 0))
            }
        }
    }
}

/// Turns that go to another thread together, and come back together.
#[derive(Debug)]
pub struct TurnBatch<S> {
    /// Bytes that were received for several of the turns, one connection's after the other's.
    pub(super) bytes: Vec<u8>,
    /// The first `len` of them are in use. The others keep their memory.
    turns: Vec<TurnOut<S>>,
    len: usize,
    /// The memory of the replies, which the thread that answers has counted.
    pub(super) share: WorkerShare,
}

impl<S> Default for TurnBatch<S> {
    fn default() -> Self {
        Self { bytes: Vec::new(), turns: Vec::new(), len: 0, share: WorkerShare::default() }
    }
}

impl<S: Default> TurnBatch<S> {
    /// How many turns it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no turn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that were received for its turns.
    #[must_use]
    pub fn received(&self) -> usize {
        self.bytes.len()
    }

    /// The states and messages of the turns from `first` on.
    pub fn ahead(&self, first: usize) -> impl Iterator<Item = (&S, MessageView<'_>)> {
        let turns = self.turns.get(first..self.len).unwrap_or_default();
        turns.iter().map(|turn| (&turn.state, turn.messages.view(turn.bytes.of(&self.bytes))))
    }

    /// Has the turn at this place answered. A turn that has to wait is parted: the caller keeps the rest.
    ///
    /// # Panics
    /// If there is no such turn.
    pub fn answer(
        &mut self,
        place: usize,
        budget: &Budget,
        answer: impl FnOnce(TurnParts<'_, S>) -> TurnOutcome,
    ) -> Option<TurnOut<S>> {
        let Self { turns, bytes, share, .. } = self;
        let turn = turns.get_mut(place).expect("the place is below the length");
        turn.answer(bytes, budget, share, answer)
    }

    /// As [`TurnBatch::answer`], for a turn that has waited, which is added to the batch with its replies.
    pub fn answer_late(
        &mut self,
        mut turn: TurnOut<S>,
        budget: &Budget,
        answer: impl FnOnce(TurnParts<'_, S>) -> TurnOutcome,
    ) -> Option<TurnOut<S>> {
        let rest = turn.answer(&[], budget, &mut self.share, answer);
        self.turns.truncate(self.len);
        self.turns.push(turn);
        self.len += 1;
        rest
    }

    pub(super) fn turns_mut(&mut self) -> (&mut [TurnOut<S>], &[u8]) {
        (self.turns.get_mut(..self.len).unwrap_or_default(), &self.bytes)
    }

    /// The place for a further turn, which is not part of the batch before [`TurnBatch::keep_last`].
    pub(super) fn next_place(&mut self, id: ConnectionId) -> (&mut TurnOut<S>, &mut Vec<u8>) {
        if self.turns.len() == self.len {
            self.turns.push(TurnOut::new(id));
        }
        let turn = self.turns.get_mut(self.len).expect("it was made");
        turn.id = id;
        (turn, &mut self.bytes)
    }

    pub(super) fn keep_last(&mut self) {
        self.len += 1;
    }

    /// Makes the batch empty. It keeps its memory, but not that of large messages.
    pub(super) fn clear(&mut self) {
        for turn in self.turns.iter_mut().take(self.len) {
            turn.bytes = TurnBytes::Shared(0..0);
            if turn.messages.kept_bytes() > 2 * RECEIVE_BYTES {
                turn.messages = Messages::default();
            }
        }
        self.len = 0;
        self.bytes.clear();
    }
}
