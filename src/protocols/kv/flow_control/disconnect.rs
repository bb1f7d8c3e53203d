//! Who is held back, who is cut off, and who is forgotten.

use super::client::{ClientClass, ClientStanding, Id, TrackedClient};
use super::{ClientIndex, FlowControl, TrackedConnection};

/// How many clients are looked at for one to forget, when a new one comes and many are idle.
const LOOKS_PER_ADMISSION: usize = 4;

impl<F, L: TrackedConnection> FlowControl<F, L> {
    /// Whether no further request should be taken for now, from whoever it is.
    pub(in crate::protocols::kv) fn is_full(&self) -> bool {
        self.over || self.held > self.bounds.held_bytes
    }

    /// The next client of which the router has to be told: true, to take nothing more from it; false, to go on.
    ///
    /// Who is held back has something outstanding, and so there will be an answer after which it may go on.
    #[inline]
    pub(in crate::protocols::kv) fn next_told(&mut self) -> Option<(ClientIndex, bool)> {
        while let Some(place) = self.untold.pop() {
            if let Some(client) = self.entry(place).as_mut().filter(|client| client.is_untold()) {
                let held_back = client.class == ClientClass::Pressing;
                client.held_back = held_back;
                self.holds += u64::from(held_back);
                return Some((place, held_back));
            }
        }
        None
    }

    /// How often a client was held back.
    pub(in crate::protocols::kv) fn holds(&self) -> u64 {
        self.holds
    }

    pub(super) fn cut(&mut self, place: ClientIndex) {
        self.drop_replies(place);
        let client = self.client_mut(place);
        client.standing = ClientStanding::Cut;
        let dropped = client.pending.clear();
        self.cut_off += 1;
        self.cuts += 1;
        self.release(place, dropped);
    }

    /// How often a client was cut off.
    pub(in crate::protocols::kv) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Whether anybody is cut off now.
    pub(in crate::protocols::kv) fn has_cut_off(&self) -> bool {
        self.cut_off > 0
    }

    /// Forgets those that are cut off and whose connection is gone.
    ///
    /// Messages of a connection may still be waiting in the router when it is gone, and must not be taken for those of a
    /// client in good standing. So an entry goes at the second call that finds the connection gone, and **between two
    /// calls the router must have been found empty**.
    pub(in crate::protocols::kv) fn forget_gone(&mut self) {
        if self.cut_off == 0 {
            return;
        }
        for place in self.places() {
            let Some(client) = self.entry(place) else { continue };
            match client.standing {
                ClientStanding::Cut if !client.connection.is_open() => client.standing = ClientStanding::CutAndGone,
                ClientStanding::CutAndGone if client.bytes == 0 => {
                    self.forget(place);
                    self.cut_off -= 1;
                }
                _ => {}
            }
        }
    }

    /// Looks at a few clients, each time at others, and forgets those that are idle and whose pipe is empty: of one whose
    /// pipe is not, the meter must be kept. It looks at more than one for each that is admitted, so it keeps up.
    pub(super) fn forget_some(&mut self) {
        for _ in 0..LOOKS_PER_ADMISSION {
            let place = ClientIndex(self.hand);
            self.hand = if place.0 as usize + 1 < self.clients.len() { place.0 + 1 } else { 0 };
            if self.entry(place).as_ref().is_some_and(TrackedClient::is_at_rest) && self.is_pipe_empty(place) {
                self.forget(place);
                self.idle -= 1;
            }
        }
    }

    fn forget(&mut self, place: ClientIndex) {
        self.empty_pipe(place);
        match self.entry(place).take().map(|client| client.id) {
            Some(Id::Chosen(number, _)) => drop(self.chosen.remove(&number)),
            Some(Id::Own(bytes)) => drop(self.own.remove(&bytes)),
            None => return,
        }
        self.vacant.push(place);
    }

    /// Clients that have an entry, and bytes outstanding of all but for what is in their pipes.
    pub(in crate::protocols::kv) fn totals(&self) -> (usize, u64) {
        (self.clients.len() - self.vacant.len(), self.held)
    }
}
