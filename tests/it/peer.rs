//! A client of a few lines, for things that a well-behaved one does not do: pipelines without reading, ids, half
//! messages.

use std::time::Duration;

/// How long a test waits for an expected message.
const PATIENCE_MILLIS: i32 = 20_000;

/// Frames of a request or a reply.
pub(crate) type Frames = Vec<Vec<u8>>;

/// A DEALER.
pub(crate) struct Peer {
    socket: zmq::Socket,
}

impl Peer {
    /// With an id that the server chooses.
    pub(crate) fn connect(context: &zmq::Context, endpoint: &str) -> Self {
        Self::connect_with(context, endpoint, |_| {})
    }

    /// With an id of the client's choice.
    pub(crate) fn connect_as(context: &zmq::Context, endpoint: &str, id: &[u8]) -> Self {
        Self::connect_with(context, endpoint, |socket| socket.set_identity(id).unwrap())
    }

    /// With options of the test's choice.
    pub(crate) fn connect_with(context: &zmq::Context, endpoint: &str, options: impl FnOnce(&zmq::Socket)) -> Self {
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(PATIENCE_MILLIS).unwrap();
        socket.set_sndtimeo(PATIENCE_MILLIS).unwrap();
        options(&socket);
        socket.connect(endpoint).unwrap();
        Self { socket }
    }

    /// Sends a request.
    pub(crate) fn ask(&self, frames: &[&[u8]]) {
        self.socket.send_multipart(frames, 0).expect("the server takes what is sent");
    }

    /// Sends a request to a server that may go meanwhile. Returns false if it takes none for a time.
    pub(crate) fn offer(&self, frames: &[&[u8]]) -> bool {
        self.socket.send_multipart(frames, 0).is_ok()
    }

    /// Receives a reply.
    pub(crate) fn answer(&self) -> Frames {
        self.socket.recv_multipart(0).expect("an answer comes")
    }

    /// Sends a request and receives its reply.
    pub(crate) fn call(&self, frames: &[&[u8]]) -> Frames {
        self.ask(frames);
        self.answer()
    }

    /// As [`Peer::call`], to a server that has taken the place of another one. A request that the peer's library sends
    /// before it has seen the end of its connection is lost with that, so it is sent again.
    pub(crate) fn call_again(&self, frames: &[&[u8]]) -> Frames {
        let answers = std::iter::repeat_with(|| {
            self.ask(frames);
            self.answer_within(Duration::from_secs(2))
        });
        answers.take(20).flatten().next().expect("an answer comes")
    }

    /// The next reply if one comes within this time: for replies that must not come, and for the end of a row of them.
    pub(crate) fn answer_within(&self, time: Duration) -> Option<Frames> {
        let millis = i64::try_from(time.as_millis()).unwrap();
        let there = self.socket.poll(zmq::POLLIN, millis).unwrap() > 0;
        there.then(|| self.answer())
    }

    /// STATS, read as JSON.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let reply = self.call(&[&[13]]);
        serde_json::from_slice(&reply[1]).expect("STATS is JSON")
    }

    /// A number of the clients in STATS.
    pub(crate) fn clients(&self, metric: &str) -> u64 {
        self.stats()["clients"][metric].as_u64().expect("STATS has it")
    }
}
