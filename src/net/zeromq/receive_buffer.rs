//! Bytes that a client has sent and the thread has not used yet.
//!
//! Most of the input is whole messages. The thread uses whole messages in the buffer in which it has received them. Its
//! connections share a few such buffers. Only the unused rest is copied to the connection's own buffer, and the next
//! bytes are received behind it.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::protocol::InputFault;
use super::tls::{TLS_SESSION_BYTES, TlsSession};
use crate::limits::{BUFFER_KEPT_BYTES, RECEIVE_BYTES};
use crate::security::Fingerprint;
use crate::zmtp::{MessageCutter, Opener, Unconsumed};

/// Outcome of one receive call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReceiveOutcome {
    /// No bytes, or some more bytes.
    Bytes,
    /// The client sends no more.
    End,
    /// The client has sent what cannot be opened.
    Fault(InputFault),
}

/// Bytes that are not used yet.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    /// `bytes[used..]` is not used yet.
    bytes: Vec<u8>,
    used: usize,
    /// `bytes[..scanned]` have no PING left, if `used` is 0.
    scanned: usize,
    /// Bytes received, ever.
    received: u64,
    /// With CURVE or TLS, the input before it is opened.
    sealed: Option<Box<SealedInput>>,
}

/// Sealed frames of which the last has not come whole.
#[derive(Debug)]
struct SealedInput {
    opener: InputOpener,
    bytes: Vec<u8>,
}

/// Opens input.
#[derive(Debug)]
enum InputOpener {
    /// Frames of CURVE, each with at most so many bytes.
    Curve(Opener, u64),
    /// TLS, which keeps a record that has not come whole.
    Tls(TlsSession),
    /// Nothing is opened any more.
    Broken,
}

impl SealedInput {
    /// Memory kept for it, in bytes.
    fn kept(&self) -> usize {
        let session = if let InputOpener::Tls(_) = self.opener { TLS_SESSION_BYTES } else { 0 };
        kept(&self.bytes) + session
    }

    /// Opens what has come whole.
    fn open(&mut self, out: &mut Vec<u8>) -> Result<(), InputFault> {
        let opened = match &mut self.opener {
            InputOpener::Curve(opener, frame_bytes) => opener.open(&self.bytes, *frame_bytes, out)?,
            InputOpener::Tls(session) => {
                if let Err(fault) = session.open(&self.bytes, out) {
                    self.opener = InputOpener::Broken;
                    self.bytes = Vec::new();
                    return Err(fault.into());
                }
                self.bytes.len()
            }
            InputOpener::Broken => self.bytes.len(),
        };
        self.bytes.drain(..opened);
        give_back(&mut self.bytes);
        Ok(())
    }
}

/// Receives once, behind the bytes of `buffer`.
fn receive(
    descriptor: &OwnedFd,
    buffer: &mut Vec<u8>,
    mut sealed: Option<&mut SealedInput>,
    received: &mut u64,
) -> Result<ReceiveOutcome, Errno> {
    // The buffer doubles while a large message comes: its bytes move a few times, and not once for each portion.
    let wire = sealed.as_deref_mut().map_or(&mut *buffer, |sealed| &mut sealed.bytes);
    wire.reserve(RECEIVE_BYTES);
    match recv(descriptor, spare_capacity(wire), RecvFlags::DONTWAIT) {
        Ok((0, _)) => Ok(ReceiveOutcome::End),
        Ok((_, count)) => {
            *received += count as u64;
            let opened = sealed.map_or(Ok(()), |sealed| sealed.open(buffer));
            Ok(opened.map_or_else(ReceiveOutcome::Fault, |()| ReceiveOutcome::Bytes))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(ReceiveOutcome::Bytes),
        Err(error) => Err(error),
    }
}

impl ReceiveBuffer {
    /// Length of the buffer, in bytes.
    pub(super) fn held(&self) -> usize {
        self.bytes.len() + self.sealed.as_ref().map_or(0, |sealed| sealed.bytes.len())
    }

    /// Bytes received, ever.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Memory kept for the buffer, in bytes.
    pub(super) fn kept(&self) -> usize {
        kept(&self.bytes) + self.sealed.as_ref().map_or(0, |sealed| sealed.kept())
    }

    /// From now on all input is sealed, also what is not used yet. Frames have at most `frame_bytes`.
    pub(super) fn open_from_here(&mut self, opener: Opener, frame_bytes: u64) -> Result<(), InputFault> {
        let bytes = self.bytes.split_off(self.used);
        (self.bytes, self.used) = (Vec::new(), 0);
        let mut sealed = Box::new(SealedInput { opener: InputOpener::Curve(opener, frame_bytes), bytes });
        let opened = sealed.open(&mut self.bytes);
        self.sealed = Some(sealed);
        opened
    }

    /// All input is TLS of this session. Called before any comes.
    pub(super) fn secure(&mut self, session: TlsSession) {
        self.sealed = Some(Box::new(SealedInput { opener: InputOpener::Tls(session), bytes: Vec::new() }));
    }

    /// Whether the handshake of TLS is under way.
    pub(super) fn is_securing(&self) -> bool {
        let opener = self.sealed.as_ref().map(|sealed| &sealed.opener);
        opener.is_some_and(|opener| matches!(opener, InputOpener::Tls(session) if session.is_shaking()))
    }

    /// The fingerprint of the certificate of a client with TLS, if it has shown one.
    pub(super) fn certificate(&self) -> Option<Fingerprint> {
        let sealed = self.sealed.as_ref()?;
        if let InputOpener::Tls(session) = &sealed.opener { session.certificate() } else { None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Receives once: behind the bytes of `shared` if no earlier bytes are left, else into the connection's own buffer.
    pub(super) fn receive(&mut self, descriptor: &OwnedFd, shared: &mut Vec<u8>) -> Result<ReceiveOutcome, Errno> {
        let is_empty = self.is_empty();
        let Self { bytes, received, sealed, .. } = self;
        receive(descriptor, if is_empty { shared } else { bytes }, sealed.as_deref_mut(), received)
    }

    /// Receives once into the connection's own buffer.
    pub(super) fn receive_own(&mut self, descriptor: &OwnedFd) -> Result<ReceiveOutcome, Errno> {
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
        }
        let Self { bytes, received, sealed, .. } = self;
        receive(descriptor, bytes, sealed.as_deref_mut(), received)
    }

    /// Answers the PINGs among the unused bytes, and removes them. `cutter` has read some of these bytes before.
    pub(super) fn answer_pings(&mut self, cutter: &MessageCutter, out: &mut Vec<u8>) {
        self.bytes.drain(..std::mem::take(&mut self.used));
        self.scanned = cutter.answer_pings(&mut self.bytes, self.scanned, out);
    }

    /// The bytes not used yet: in `shared`, or in the connection's own buffer if earlier bytes were left.
    pub(super) fn unused<'b>(&'b self, shared: &'b [u8]) -> &'b [u8] {
        if self.is_empty() { shared } else { self.bytes.get(self.used..).unwrap_or_default() }
    }

    /// As [`ReceiveBuffer::unused`], for a cutter that writes words without their quotes.
    pub(super) fn unused_mut<'b>(&'b mut self, shared: &'b mut [u8]) -> &'b mut [u8] {
        if self.is_empty() { shared } else { self.bytes.get_mut(self.used..).unwrap_or_default() }
    }

    /// Keeps the unused bytes, and gives the used ones away with their buffer, if they lie in the connection's own. Returns
    /// that buffer, and where they begin.
    pub(super) fn detach(&mut self, left: &Unconsumed, shared: &[u8]) -> Option<(Vec<u8>, usize)> {
        self.scanned = 0;
        if self.is_empty() {
            self.keep(left, shared);
            return None;
        }
        let unused = self.bytes.get(self.used..).unwrap_or_default();
        let begun = unused.get(left.begun.clone()).unwrap_or_default();
        let kept = [begun, unused.get(left.rest..).unwrap_or_default()].concat();
        Some((std::mem::replace(&mut self.bytes, kept), std::mem::take(&mut self.used)))
    }

    /// Keeps the unused bytes.
    pub(super) fn keep(&mut self, left: &Unconsumed, shared: &[u8]) {
        self.scanned = 0;
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
            self.bytes.extend_from_slice(shared.get(left.begun.clone()).unwrap_or_default());
            self.bytes.extend_from_slice(shared.get(left.rest..).unwrap_or_default());
            return;
        }
        if left.begun.end < left.rest {
            self.bytes.drain(self.used + left.begun.end..self.used + left.rest);
        }
        self.used += left.begun.start;
        // At least half of the buffer has been used since the last move.
        if self.used > self.bytes.len() / 2 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        give_back(&mut self.bytes);
    }
}

/// Memory kept for a buffer, in bytes. For a buffer at or below [`BUFFER_KEPT_BYTES`], only its used length counts.
pub(super) fn kept(bytes: &Vec<u8>) -> usize {
    if bytes.capacity() > BUFFER_KEPT_BYTES { bytes.capacity() } else { bytes.len() }
}

/// Shrinks a buffer that a large message has grown.
pub(super) fn give_back(bytes: &mut Vec<u8>) {
    if bytes.capacity() > BUFFER_KEPT_BYTES.max(4 * bytes.len()) {
        bytes.shrink_to(BUFFER_KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_are_received_into_the_shared_buffer_unless_earlier_ones_are_left() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (descriptor, mut buffer, mut shared) = (OwnedFd::from(ours), ReceiveBuffer::default(), Vec::new());
        theirs.write_all(b"abcd").unwrap();
        assert_eq!(buffer.receive(&descriptor, &mut shared), Ok(ReceiveOutcome::Bytes));
        assert_eq!((&*shared, buffer.unused(&shared), buffer.held()), (&b"abcd"[..], &b"abcd"[..], 0));
        assert!(buffer.is_empty());
        buffer.keep(&Unconsumed { begun: 1..2, rest: 3 }, &shared);
        assert!(!buffer.is_empty());
        theirs.write_all(b"ef").unwrap();
        shared.clear();
        assert_eq!(buffer.receive(&descriptor, &mut shared), Ok(ReceiveOutcome::Bytes));
        assert_eq!((buffer.unused(&shared), buffer.held(), shared.len()), (&b"bdef"[..], 4, 0));
        drop(theirs);
        assert_eq!(buffer.receive(&descriptor, &mut shared), Ok(ReceiveOutcome::End));
    }

    /// Keeps these parts of a buffer that holds 0 to 15, of which the first `used` are used. Returns the unused bytes,
    /// and how many bytes the buffer then holds.
    fn kept(used: usize, begun: std::ops::Range<usize>, rest: usize) -> (Vec<u8>, usize) {
        let mut buffer = ReceiveBuffer { bytes: (0..16).collect(), used, ..ReceiveBuffer::default() };
        buffer.keep(&Unconsumed { begun, rest }, b"");
        (buffer.unused(b"").to_vec(), buffer.held())
    }

    #[test]
    fn the_begun_message_and_the_rest_are_kept_and_what_lies_between_is_not() {
        assert_eq!(kept(3, 0..2, 4), ([3, 4].into_iter().chain(7..16).collect(), 14));
        assert_eq!(kept(3, 1..2, 4), ([4].into_iter().chain(7..16).collect(), 14));
        assert_eq!(kept(3, 0..4, 4), ((3..16).collect(), 16), "nothing lies between");
    }

    #[test]
    fn used_bytes_are_dropped_once_they_are_more_than_half() {
        assert_eq!(kept(3, 5..5, 5), ((8..16).collect(), 16), "half");
        assert_eq!(kept(3, 6..6, 6), ((9..16).collect(), 7));
    }

    #[test]
    fn a_session_of_tls_counts_before_any_byte_has_come() {
        let mut buffer = ReceiveBuffer::default();
        assert_eq!(buffer.kept(), 0);
        buffer.secure(crate::net::zeromq::tls::tests::ends().0);
        assert_eq!((buffer.kept(), buffer.held(), buffer.is_securing()), (TLS_SESSION_BYTES, 0, true));
    }

    #[test]
    fn a_buffer_shrinks_when_less_than_a_quarter_of_it_is_in_use() {
        let capacity = |length| {
            let mut bytes = Vec::with_capacity(8 * BUFFER_KEPT_BYTES);
            bytes.resize(length, 0);
            give_back(&mut bytes);
            bytes.capacity()
        };
        assert_eq!(capacity(2 * BUFFER_KEPT_BYTES), 8 * BUFFER_KEPT_BYTES);
        assert!(capacity(2 * BUFFER_KEPT_BYTES - 1) < 8 * BUFFER_KEPT_BYTES);
    }
}
