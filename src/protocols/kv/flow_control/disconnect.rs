//! Holding clients back, new connections of clients, cutting clients off, and forgetting them.

use super::client::{ClientClass, ClientStanding, RoutingId, TrackedClient};
use super::{ClientIndex, FlowControl, TrackedConnection};

/// Clients that are checked for one to forget, when a new client comes and many are idle. With more than one for each
/// new client, the idle ones cannot pile up.
const LOOKS_PER_ADMISSION: usize = 4;

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// Whether the proxy should take no further request for now, from any client.
    pub(in crate::protocols::kv) fn is_full(&self) -> bool {
        self.over || self.held > self.bounds.held_bytes
    }

    /// The next client whose state in the router is to change. True: the router takes no further message from it.
    /// False: the router goes on.
    ///
    /// A client that is held back has a request or a reply outstanding, so an answer will come after which it may go
    /// on.
    #[inline]
    pub(in crate::protocols::kv) fn next_told(&mut self) -> Option<(ClientIndex, bool)> {
        while let Some(index) = self.untold.pop() {
            if let Some(client) = self.entry(index).as_mut().filter(|client| client.is_untold()) {
                let held_back = client.class == ClientClass::Pressing;
                client.held_back = held_back;
                self.holds += u64::from(held_back);
                return Some((index, held_back));
            }
        }
        None
    }

    /// The number of times that a client was held back.
    pub(in crate::protocols::kv) fn holds(&self) -> u64 {
        self.holds
    }

    /// The client has come with another connection. Replies for the old connection are dropped, and a client that was
    /// cut off returns to good standing. Requests taken from the old connection and not yet executed are still
    /// executed, before those of the new one.
    pub(in crate::protocols::kv) fn reconnected(&mut self, index: ClientIndex, connection: L) {
        self.drop_replies(index);
        let client = self.client_mut(index);
        // Its pipe no longer counts, so it must not last. If it cannot be ended now, its end comes when the client
        // reads or leaves.
        let _ended = client.connection.end();
        client.connection = connection;
        client.held_back = false;
        self.empty_pipe(index);
        self.classify(index);
        let client = self.client_mut(index);
        if client.standing != ClientStanding::Good {
            client.standing = ClientStanding::Good;
            self.cut_off -= 1;
            self.classify(index);
        }
    }

    /// The client's connection is gone: replies to the requests of that connection are dropped.
    pub(in crate::protocols::kv) fn gone(&mut self, index: ClientIndex) {
        self.drop_replies(index);
    }

    pub(super) fn cut(&mut self, index: ClientIndex) {
        self.drop_replies(index);
        let client = self.client_mut(index);
        client.standing = ClientStanding::Cut;
        let dropped = client.pending.clear();
        self.cut_off += 1;
        self.cuts += 1;
        self.release(index, dropped);
    }

    /// The number of times that a client was cut off.
    pub(in crate::protocols::kv) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Whether any client is cut off now.
    pub(in crate::protocols::kv) fn has_cut_off(&self) -> bool {
        self.cut_off > 0
    }

    /// Forgets the clients that are cut off and whose connection is gone.
    ///
    /// Messages of a connection may still wait in the router when the connection is gone. If the entry were removed at
    /// once, these messages would be taken for those of a new client in good standing. So the first call that finds the
    /// connection gone marks the entry, and a later call removes it once none of its bytes is outstanding. **Between
    /// two calls the caller must have found the router empty**: then all messages of the connection have been taken.
    pub(in crate::protocols::kv) fn forget_gone(&mut self) {
        if self.cut_off == 0 {
            return;
        }
        for index in self.indices() {
            let Some(client) = self.entry(index) else { continue };
            match client.standing {
                ClientStanding::Cut if !client.connection.is_open() => client.standing = ClientStanding::CutAndGone,
                ClientStanding::CutAndGone if client.bytes == 0 => {
                    self.forget(index);
                    self.cut_off -= 1;
                }
                _ => {}
            }
        }
    }

    /// Checks a few clients, other ones each time, and forgets those that are idle and have an empty pipe. While the
    /// pipe is not empty, its `in_flight` count must be kept. Each admission checks more than one client, so forgetting
    /// keeps up.
    pub(super) fn forget_some(&mut self) {
        for _ in 0..LOOKS_PER_ADMISSION {
            let index = ClientIndex(self.hand);
            self.hand = if index.0 as usize + 1 < self.clients.len() { index.0 + 1 } else { 0 };
            if self.entry(index).as_ref().is_some_and(TrackedClient::is_at_rest) && self.is_pipe_empty(index) {
                self.forget(index);
                self.idle -= 1;
            }
        }
    }

    fn forget(&mut self, index: ClientIndex) {
        self.empty_pipe(index);
        match self.entry(index).take().map(|client| client.id) {
            Some(RoutingId::Chosen(number, _)) => drop(self.chosen.remove(&number)),
            Some(RoutingId::Own(bytes)) => drop(self.own.remove(&bytes)),
            None => return,
        }
        self.vacant.push(index);
    }

    /// The number of clients that have an entry, and the outstanding bytes of all clients without those in their pipes.
    pub(in crate::protocols::kv) fn totals(&self) -> (usize, u64) {
        (self.clients.len() - self.vacant.len(), self.held)
    }
}
