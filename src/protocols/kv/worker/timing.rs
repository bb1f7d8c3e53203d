//! How long a worker's requests take from end to end: from their receive to the send of their replies to the proxy.
//!
//! ```text
//! received ─► a stretch of requests begins ─► its replies are sent ─► the next stretch
//!          └─ queue ─┘└────── execution ──────┘
//! ```
//! One of [`TIMED_ONE_OF`] requests is picked for the histograms. The slow log looks at stretches of requests that are
//! decoded together, and reads the clock once for each of them. A request that may take long by itself is a stretch of
//! its own. Libzmq, the proxy and the pipes between them are not part of these times: a message has no room for a time.

use std::sync::Arc;

use super::WorkerMessage;
use crate::clock::{Clock, Now};
use crate::limits::LOOK_AHEAD;
use crate::protocols::kv::client_names::ClientNames;
use crate::protocols::kv::packet::{PACKED_MAX, ReceivedMessage, unpack};
use crate::protocols::kv::report::WorkerMetrics;
use crate::protocols::kv::responder::TIMED_ONE_OF;
use crate::protocols::kv::timing::{PROTOCOL, verb_name};
use crate::protocols::kv::wire::Command;
use crate::protocols::sockets::Frame;
use crate::stats::Sampler;
use crate::stats::slow_log::{SlowLog, SlowRequest, Stages};

/// Times the requests of one worker.
pub(super) struct RequestTimer {
    clock: Clock,
    picker: Sampler,
    log: Arc<SlowLog>,
    names: Arc<ClientNames>,
    /// The messages of the proxy name users.
    has_users: bool,
    /// When the present stretch began.
    begun: Now,
    /// The number of its first request among those that are decoded together.
    first: usize,
    /// Bytes of the replies. None: the request was deferred.
    sizes: [Option<u64>; LOOK_AHEAD],
}

impl RequestTimer {
    pub(super) fn new(clock: Clock, log: Arc<SlowLog>, names: Arc<ClientNames>, has_users: bool) -> Self {
        let (picker, begun) = (Sampler::new(TIMED_ONE_OF), clock.now());
        Self { clock, picker, log, names, has_users, begun, first: 0, sizes: [None; LOOK_AHEAD] }
    }

    /// Requests were received until `now`, and the first stretch begins.
    pub(super) fn begin(&mut self, now: Now) {
        self.begun = now;
    }

    /// Notes a reply of so many bytes that was sent to the request with this number. None: it was deferred.
    #[inline]
    pub(super) fn note(&mut self, number: usize, bytes: Option<u64>) {
        if let Some(size) = self.sizes.get_mut(number) {
            *size = bytes;
        }
    }

    /// Whether the next request is timed.
    #[inline]
    pub(super) fn picks(&mut self) -> bool {
        self.picker.picks()
    }

    /// Records a request that is timed, and whose reply was just sent.
    #[inline]
    pub(super) fn record(&self, parsed: &WorkerMessage<'_>, received: Now, metrics: &WorkerMetrics) {
        if let Some(command) = parsed.command() {
            metrics.whole(command).record(received.nanos_until(self.clock.now()));
        }
    }

    /// Ends the stretch before the request with the number `end`. `message` gives a request and its frames by its
    /// number.
    #[inline]
    pub(super) fn end_stretch<'m>(
        &mut self,
        received: Now,
        end: usize,
        message: impl Fn(usize) -> Option<(&'m WorkerMessage<'m>, &'m [Frame])>,
    ) {
        if self.first == end {
            return;
        }
        let now = self.clock.now();
        if self.log.is_slow(received.nanos_until(now)) {
            for number in self.first..end {
                let size = self.sizes.get(number).copied().flatten();
                if let (Some(bytes), Some((parsed, frames))) = (size, message(number)) {
                    self.log(parsed, frames, bytes, [received, self.begun, now]);
                }
            }
        }
        self.begun = now;
        self.first = end;
    }

    /// The requests that are decoded next have numbers from 0 on.
    pub(super) fn restart(&mut self) {
        self.first = 0;
    }

    /// Adds an answered request to the slow log if it was slow.
    pub(super) fn note_late(&self, parsed: &WorkerMessage<'_>, frames: &[Frame], bytes: u64, received: Now) {
        let now = self.clock.now();
        if self.log.is_slow(received.nanos_until(now)) {
            self.log(parsed, frames, bytes, [received, self.begun, now]);
        }
    }

    #[cold]
    fn log(&self, parsed: &WorkerMessage<'_>, frames: &[Frame], reply_bytes: u64, [received, begun, sent]: [Now; 3]) {
        let (queue, execution) = (received.nanos_until(begun), begun.nanos_until(sent));
        self.log.add(SlowRequest {
            unix_millis: self.clock.start_wall_millis() + sent.millis(),
            nanos: received.nanos_until(sent),
            stages: Stages { queue: Some(queue), execution: Some(execution), write: None },
            client: self.names.get(parsed.sender.tag),
            protocol: PROTOCOL,
            verb: verb_name(parsed.command().map_or(Command::COUNT, |command| usize::from(command.code()))),
            table: parsed.table().map_or_else(Box::default, Box::from),
            request_bytes: request_bytes(frames, self.has_users),
            reply_bytes,
        });
    }
}

/// Bytes of the client's message in these frames of the proxy.
fn request_bytes(frames: &[Frame], has_users: bool) -> u64 {
    let mut unpacked = [&[][..]; PACKED_MAX];
    let bytes: usize = match ReceivedMessage::read(frames, has_users) {
        ReceivedMessage::AsItCame(_, frames) => frames.iter().map(|frame| frame.len()).sum(),
        ReceivedMessage::Packed(_, packet, apart) => {
            unpack(packet, apart, &mut unpacked).iter().map(|frame| frame.len()).sum()
        }
    };
    bytes as u64
}

/// Whether the request may take long by itself.
pub(super) fn is_alone(command: Option<Command>) -> bool {
    matches!(
        command,
        Some(
            Command::CreateTable
                | Command::DeleteTable
                | Command::GetMany
                | Command::UpdateMany
                | Command::DeleteMany
                | Command::ListTables
                | Command::Stats
                | Command::Scan
                | Command::FeedState
                | Command::Changes
        )
    )
}
