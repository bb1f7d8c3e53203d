//! The queue of libzmq between one thread and its workers: a ROUTER and a DEALER for each worker, over `inproc://`.
//!
//! ```text
//! QueueEnd (ROUTER) ══ [routing id][message] ══► WorkerEnd i (DEALER) ══ [message] ══► QueueEnd
//! ```
//! A message owns a value and passes it on without copying it: libzmq carries the pointer, and whoever closes the
//! message last frees the value ([`Message`]).
//!
//! What libzmq asks for, and where it stands here:
//! - A ROUTER drops silently what it cannot send. So it is mandatory, and knows every worker before [`queue`] returns,
//!   because each DEALER has sent a first message by then. A routing id does not begin with 0.
//! - A full pipe would make a sender wait, and a mark makes each side wake the other for nothing. So there are no marks,
//!   and the user bounds the messages that are under way.
//! - The descriptor of a socket is an edge: *any* call on the socket may take it away. So [`QueueEnd::is_quiet`] is true
//!   only after a receive that found nothing, with no send since, and only then may the thread sleep on the descriptor.
//! - No thread of libzmq is needed for `inproc://`. No time-out of libzmq is used: it may count by the wall clock.
//!
//! No peer reaches these sockets. This is the only file that names libzmq, and it does not know what the messages hold.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{EventfdFlags, eventfd};
use zmq_sys::{
    zmq_errno, zmq_msg_close, zmq_msg_data, zmq_msg_init, zmq_msg_init_data, zmq_msg_recv, zmq_msg_send, zmq_msg_size,
    zmq_msg_t, zmq_send,
};

const ENDPOINT: &str = "inproc://queue";
/// Descriptors of a context, beside that of each socket. Without them libzmq ends the process.
const CONTEXT_DESCRIPTORS: usize = 3;
/// The first byte of each routing id.
const ID_BEGINS: u8 = b'w';

/// The queue's end, and one for each worker.
pub type Ends<T> = (QueueEnd<T>, Vec<WorkerEnd<T>>);

/// A message that owns a value.
pub struct Message<T> {
    raw: RawMessage,
    owned: PhantomData<T>,
}

/// The end of the thread that gives out work.
pub struct QueueEnd<T> {
    socket: Socket,
    /// A receive has found nothing, and nothing was sent since.
    is_quiet: bool,
    /// The number of workers.
    workers: usize,
    carries: PhantomData<fn(T) -> T>,
}

/// The end of one worker.
pub struct WorkerEnd<T> {
    socket: Socket,
    carries: PhantomData<fn(T) -> T>,
}

/// Makes a queue with this many workers.
///
/// # Errors
/// If the process has no descriptor left.
///
/// # Panics
/// If libzmq does not do within the process what it promises.
pub fn queue<T: Send>(workers: usize) -> io::Result<Ends<T>> {
    has_descriptors(CONTEXT_DESCRIPTORS + 1 + workers)?;
    let context = zmq::Context::new();
    must(context.set_io_threads(0));
    let mut router = Socket::new(&context, zmq::ROUTER)?;
    must(router.options.set_router_mandatory(true));
    must(router.options.bind(ENDPOINT));
    let ends = (0..workers).map(|number| {
        let mut socket = Socket::new(&context, zmq::DEALER)?;
        must(socket.options.set_identity(&routing_id(number)));
        must(socket.options.connect(ENDPOINT));
        // The router knows a worker from its first message on.
        let greeted = socket.send_bytes(&[], 0) && receive_greeting(&mut router);
        assert!(greeted, "libzmq passes a first message on: errno {}", errno());
        Ok(WorkerEnd { socket, carries: PhantomData })
    });
    let ends = ends.collect::<io::Result<Vec<_>>>()?;
    Ok((QueueEnd { socket: router, is_quiet: false, workers, carries: PhantomData }, ends))
}

/// Whether the process has so many descriptors left.
fn has_descriptors(count: usize) -> io::Result<()> {
    let taken: Result<Vec<_>, _> = (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC)).collect();
    Ok(taken.map(drop)?)
}

/// Takes the routing id and the empty frame of a worker's first message.
fn receive_greeting(router: &mut Socket) -> bool {
    (0..2).all(|_| router.receive(0).is_some())
}

fn routing_id(worker: usize) -> [u8; 5] {
    let [a, b, c, d] = u32::try_from(worker).expect("workers are few").to_be_bytes();
    [ID_BEGINS, a, b, c, d]
}

impl<T: Send> QueueEnd<T> {
    /// The number of workers that the queue was made with.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Gives a worker a message. Returns whether the worker is there: the message of one that has ended is dropped.
    #[must_use]
    pub fn send(&mut self, worker: usize, message: Message<T>) -> bool {
        self.is_quiet = false;
        self.socket.send_bytes(&routing_id(worker), zmq_sys::ZMQ_SNDMORE) && self.socket.send(message.raw)
    }

    /// A message that a worker has sent, and the worker.
    ///
    /// # Panics
    /// If libzmq gives half a message, or one of nobody.
    pub fn receive(&mut self) -> Option<(usize, Message<T>)> {
        let Some(id) = self.socket.receive(zmq_sys::ZMQ_DONTWAIT) else {
            self.is_quiet = true;
            return None;
        };
        let worker = match *id.bytes() {
            [ID_BEGINS, a, b, c, d] => u32::from_be_bytes([a, b, c, d]) as usize,
            ref other => panic!("libzmq gives the id of a worker, not {other:?}"),
        };
        let raw = self.socket.receive(zmq_sys::ZMQ_DONTWAIT).expect("libzmq gives messages whole");
        Some((worker, Message { raw, owned: PhantomData }))
    }

    /// Whether the thread may sleep on the descriptor.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }
}

impl<T: Send> WorkerEnd<T> {
    /// Sends a message to the queue.
    ///
    /// # Panics
    /// If the queue has ended.
    pub fn send(&mut self, message: Message<T>) {
        let sent = self.socket.send(message.raw);
        assert!(sent, "the queue ends after its workers: errno {}", errno());
    }

    /// A message from the queue, if one is there. If not, and nothing is sent meanwhile, the thread may sleep on the
    /// descriptor.
    pub fn receive(&mut self) -> Option<Message<T>> {
        self.socket.receive(zmq_sys::ZMQ_DONTWAIT).map(|raw| Message { raw, owned: PhantomData })
    }
}

impl<T> AsFd for QueueEnd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<T> AsFd for WorkerEnd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<T: Send> Message<T> {
    /// A message that owns this value.
    ///
    /// # Panics
    /// If the system has no memory left.
    #[must_use]
    #[expect(unsafe_code, reason = "libzmq takes over a pointer")]
    pub fn new(value: T) -> Self {
        let mut raw = RawMessage::new();
        let value = Box::into_raw(Box::new(value));
        // SAFETY: `raw` holds an empty message, which owns nothing. libzmq keeps the pointer and its size, and calls
        // `free` once, when the message is closed for the last time. `T` is Send: any thread may close it.
        let status = unsafe {
            zmq_msg_init_data(&mut raw.0, value.cast(), size_of::<T>(), Some(free::<T>), std::ptr::null_mut())
        };
        assert!(status == 0, "libzmq has memory for a message: errno {}", errno());
        Self { raw, owned: PhantomData }
    }
}

impl<T: Send + Default> Default for Message<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Frees the value of a message.
#[expect(unsafe_code, reason = "libzmq calls it")]
unsafe extern "C" fn free<T>(value: *mut c_void, _hint: *mut c_void) {
    // SAFETY: `Message::new` has made the pointer from a box of this type, and libzmq calls once for it.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

impl<T> Deref for Message<T> {
    type Target = T;

    #[expect(unsafe_code, reason = "the value lies behind a pointer of libzmq")]
    fn deref(&self) -> &T {
        // SAFETY: the message was made by `Message::new`: both ends of a queue are typed, and carry nothing else after
        // the greeting. So the pointer is that of a live box of this type. libzmq never copies such a message: each
        // socket passes it to one pipe. The borrow of `self` rules out a change.
        unsafe { &*self.raw.data().cast::<T>() }
    }
}

impl<T> DerefMut for Message<T> {
    #[expect(unsafe_code, reason = "the value lies behind a pointer of libzmq")]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`. Nobody else has a pointer to the value, and `self` is borrowed mutably.
        unsafe { &mut *self.raw.data().cast::<T>() }
    }
}

/// A message of libzmq. It is always initialised.
struct RawMessage(zmq_msg_t);

// SAFETY: libzmq lets any thread use a message, one at a time. The values in it are Send (`Message::new`).
#[expect(unsafe_code, reason = "a message has pointers")]
unsafe impl Send for RawMessage {}

impl RawMessage {
    #[expect(unsafe_code, reason = "a call of libzmq")]
    fn new() -> Self {
        let mut raw = zmq_msg_t::default();
        // SAFETY: it writes an empty message there, whatever was there before.
        unsafe { zmq_msg_init(&mut raw) };
        Self(raw)
    }

    #[expect(unsafe_code, reason = "a call of libzmq")]
    fn data(&self) -> *mut c_void {
        // SAFETY: the message is initialised, and the call changes nothing.
        unsafe { zmq_msg_data(std::ptr::from_ref(&self.0).cast_mut()) }
    }

    #[expect(unsafe_code, reason = "the bytes lie behind a pointer of libzmq")]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the message is initialised. Its bytes live as long as it does, and the borrow rules out a change.
        unsafe { std::slice::from_raw_parts(self.data().cast(), zmq_msg_size(&self.0)) }
    }
}

impl Drop for RawMessage {
    #[expect(unsafe_code, reason = "a call of libzmq")]
    fn drop(&mut self) {
        // SAFETY: the message is initialised, and not used afterwards.
        unsafe { zmq_msg_close(&mut self.0) };
    }
}

/// A socket of libzmq, of one thread at a time.
struct Socket {
    /// The pointer by which libzmq knows it. Dropping `options` closes it.
    raw: *mut c_void,
    /// Readable when a command has come.
    descriptor: i32,
    /// The binding's handle, for options.
    options: zmq::Socket,
}

// SAFETY: libzmq lets another thread use a socket after a full fence, and handing the socket over is one. The pointer
// is the socket's own, and no copy of it outlives the socket.
#[expect(unsafe_code, reason = "a pointer is not Send by itself")]
unsafe impl Send for Socket {}

impl Socket {
    fn new(context: &zmq::Context, kind: zmq::SocketType) -> io::Result<Self> {
        let mut options = context.socket(kind).map_err(|error| match error {
            zmq::Error::EMFILE => io::Error::from_raw_os_error(libc::EMFILE),
            other => io::Error::other(other),
        })?;
        must(options.set_linger(0));
        must(options.set_sndhwm(0));
        must(options.set_rcvhwm(0));
        Ok(Self { raw: options.as_mut_ptr(), descriptor: must(options.get_fd()), options })
    }

    /// Sends a message. It has no frame after it.
    #[expect(unsafe_code, reason = "messages own their values")]
    fn send(&mut self, mut message: RawMessage) -> bool {
        // SAFETY: the socket is open as long as `self` is. The message is initialised, and the call leaves it so: empty
        // if it was sent.
        unsafe { zmq_msg_send(&mut message.0, self.raw, zmq_sys::ZMQ_DONTWAIT.cast_signed()) >= 0 }
    }

    /// Sends a copy of `bytes`.
    #[expect(unsafe_code, reason = "the binding makes a message of it first")]
    fn send_bytes(&mut self, bytes: &[u8], flags: u32) -> bool {
        let flags = (flags | zmq_sys::ZMQ_DONTWAIT).cast_signed();
        // SAFETY: the socket is open as long as `self` is. The call copies the bytes before it returns.
        unsafe { zmq_send(self.raw, bytes.as_ptr().cast(), bytes.len(), flags) >= 0 }
    }

    /// Receives a frame. `None`: none is there, or none came in time.
    #[expect(unsafe_code, reason = "messages own their values")]
    fn receive(&mut self, flags: u32) -> Option<RawMessage> {
        let mut message = RawMessage::new();
        loop {
            // SAFETY: the socket is open as long as `self` is. The message is initialised, and the call leaves it so.
            let status = unsafe { zmq_msg_recv(&mut message.0, self.raw, flags.cast_signed()) };
            match errno() {
                _ if status >= 0 => return Some(message),
                libc::EAGAIN => return None,
                // A signal has come to a process that did not block it.
                libc::EINTR => {}
                error => panic!("receiving: errno {error}"),
            }
        }
    }
}

impl AsFd for Socket {
    #[expect(unsafe_code, reason = "libzmq gives the descriptor as a number")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: libzmq keeps the descriptor of the socket's mailbox open until the socket is closed. Only dropping
        // the socket closes it, and the borrow ends before.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

/// Unwraps a result that libzmq guarantees for these arguments.
fn must<R>(result: zmq::Result<R>) -> R {
    result.unwrap_or_else(|error| panic!("libzmq refused a valid call: {error}"))
}

/// The error of this thread's last call of libzmq.
#[expect(unsafe_code, reason = "the binding panics at an errno that it does not list")]
fn errno() -> i32 {
    // SAFETY: it reads a variable of the calling thread.
    unsafe { zmq_errno() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::threads;

    /// Counts how often it is dropped.
    struct Counted(Arc<AtomicUsize>, u64);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_value_passes_to_a_worker_and_back_without_moving() {
        let (mut queue, mut workers) = queue::<Vec<u8>>(3).unwrap();
        for (number, worker) in workers.iter_mut().enumerate() {
            let message = Message::new(vec![7; 100]);
            let address = std::ptr::from_ref(&*message);
            assert!(queue.send(number, message));
            let mut received = worker.receive().unwrap();
            assert_eq!(std::ptr::from_ref(&*received), address);
            received.push(8);
            worker.send(received);
            let (from, back) = queue.receive().unwrap();
            assert_eq!((from, back.len()), (number, 101));
            assert!(worker.receive().is_none());
        }
        assert!(queue.receive().is_none());
    }

    #[test]
    fn each_value_is_freed_once_wherever_its_message_is() {
        let freed = Arc::new(AtomicUsize::new(0));
        let made = |number| Message::new(Counted(Arc::clone(&freed), number));
        let (mut queue, mut workers) = queue::<Counted>(1).unwrap();
        drop(made(0));
        assert!((1..4).all(|number| queue.send(0, made(number))));
        let received = workers[0].receive().unwrap();
        assert_eq!((received.1, freed.load(Ordering::SeqCst)), (1, 1));
        workers[0].send(received);
        drop(workers);
        drop(queue);
        assert_eq!(freed.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn a_thread_that_sleeps_on_the_descriptor_is_woken_by_each_message() {
        const MESSAGES: u64 = 10_000;
        let (mut queue, workers) = queue::<u64>(2).unwrap();
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                threads::spawn("echo", None, move || {
                    loop {
                        let Some(message) = worker.receive() else {
                            poll(&mut [PollFd::new(&worker, PollFlags::IN)], None).unwrap();
                            continue;
                        };
                        let is_last = *message == MESSAGES;
                        worker.send(message);
                        if is_last {
                            break;
                        }
                    }
                })
                .unwrap()
            })
            .collect();
        let (mut next, mut back) = (0, 0);
        loop {
            while let Some((_, message)) = queue.receive() {
                assert!(*message <= MESSAGES);
                back += 1;
            }
            if next <= MESSAGES && next * 2 == back {
                assert!((0..2).all(|worker| queue.send(worker, Message::new(next))));
                next += 1;
            }
            // The ends of the workers need not wake it.
            if back == 2 * (MESSAGES + 1) {
                break;
            }
            if queue.is_quiet() {
                poll(&mut [PollFd::new(&queue, PollFlags::IN)], None).unwrap();
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_message_to_a_worker_that_is_gone_is_not_dropped_silently() {
        let (mut queue, workers) = queue::<u64>(1).unwrap();
        assert!(queue.send(0, Message::new(1)));
        drop(workers);
        while queue.send(0, Message::new(1)) {
            assert!(queue.receive().is_none());
        }
    }
}
