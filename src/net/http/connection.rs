//! One connection: hyper reads its requests and writes their replies. Then the connection is closed in a way that lets
//! the client read the last reply.
//!
//! ```text
//! hyper ─► ended ─► a request that hyper has left without a reply: 400 or 408 ─► shut down ─► discard input ─► close
//!   │        ▲                                                                                    │
//!   └────────┴─ the first head is late: 408                                                       │
//!   └── idle, and another client waits for the connection ◄───────────────────────────────────────┴──► close
//! ```
//! A client that closes its half after a request gets its reply. If the server closed a connection while its client is
//! sending, the system would reset it, and the client might never read its reply.
//!
//! This module does not know the other connections (`service`, `tcp/idle`), or the replies of the routes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::activity::Activity;
use super::limits::{DRAIN_TIME, DRAINED_BYTES_MAX, HEAD_BYTES_MAX};
use super::own_errors::OwnErrors;
use super::peer::{FromPeer, Peer};
use super::refusal::{HttpRefusal, encode};
use super::write_timeout::WriteTimeout;
use crate::clock::{http_date, wall_millis};
use crate::limits::PLACE_SILENT_TIME;
use crate::net::tcp::{ClientStream, IdleEntry, unless};

/// Bytes that are discarded at once.
const SCRAP_BYTES: usize = 16 << 10;

/// An idle connection has no time before it makes place for another: its client has sent nothing that the system holds.
const AT_ONCE: Duration = Duration::ZERO;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTimes {
    /// For its first head.
    pub(super) first_head: Duration,
    /// For the head of each further request.
    pub(super) head: Duration,
    /// To read on, when the system takes no more bytes of a reply.
    pub(super) reply: Duration,
}

/// How the exchange of requests and replies has ended.
enum ExchangeEnd {
    /// All requests have their replies.
    Done,
    /// By an error of hyper.
    Failed(hyper::Error),
    /// The first head has not come in time.
    Late,
    /// The connection was idle, and has lost its place.
    Lost,
}

/// Serves one connection to its end. It ends with the requests that have come when the sender of `ending` is gone.
pub(super) async fn converse(
    stream: ClientStream,
    mut idle: IdleEntry,
    router: Router,
    activity: Activity,
    times: ClientTimes,
    mut ending: watch::Receiver<()>,
) {
    // The runtime learns meanwhile of a request that the system has already. A connection with one is not idle.
    yield_now().await;
    stream.hurry();
    let mut wire = OwnErrors::new(WriteTimeout::new(stream, activity.clone(), times.reply));
    let end = exchange(&mut wire, router, activity, &mut idle, times, &mut ending).await;
    idle.work();
    if answer_rest(&mut wire, &end).await {
        idle.rest(AT_ONCE);
        idle.unless_lost(drain(wire.stream().stream(), &mut ending)).await;
    }
}

/// Lets hyper read requests and write replies, as long as the connection has its place.
async fn exchange(
    wire: &mut OwnErrors<WriteTimeout>,
    router: Router,
    activity: Activity,
    idle: &mut IdleEntry,
    times: ClientTimes,
    ending: &mut watch::Receiver<()>,
) -> ExchangeEnd {
    let peer = Peer::of(wire.stream().stream());
    let service = FromPeer { service: TowerToHyperService::new(router), peer, activity: activity.clone() };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .half_close(true)
        .header_read_timeout(times.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(wire), service);
    let (mut connection, mut ending) = (pin!(connection), pin!(ended(ending)));
    let mut first_head = pin!(sleep(times.first_head));
    let (mut is_ending, mut seen) = (false, (0, false));
    poll_fn(|context| {
        activity.begin_turn();
        if !is_ending && ending.as_mut().poll(context).is_ready() {
            is_ending = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(done) = connection.as_mut().poll(context) {
            return Poll::Ready(done.map_or_else(ExchangeEnd::Failed, |()| ExchangeEnd::Done));
        }
        // The rest begins anew behind each request, also if hyper has answered it in this one poll, and with a head.
        let now = (activity.asked(), activity.is_begun());
        if !activity.is_idle() || std::mem::replace(&mut seen, now) != now {
            idle.work();
        }
        if !activity.is_idle() {
            return Poll::Pending;
        }
        if activity.asked() == 0 && first_head.as_mut().poll(context).is_ready() {
            return Poll::Ready(ExchangeEnd::Late);
        }
        idle.rest(if activity.is_begun() { PLACE_SILENT_TIME } else { AT_ONCE });
        idle.poll_lost(context).map(|()| ExchangeEnd::Lost)
    })
    .await
}

/// Ready when the sender is gone.
pub(super) async fn ended(ending: &mut watch::Receiver<()>) {
    while ending.changed().await.is_ok() {}
}

/// Answers a request that hyper has left without a reply. False: there is nobody to read it.
async fn answer_rest(wire: &mut OwnErrors<WriteTimeout>, end: &ExchangeEnd) -> bool {
    let refusal = match end {
        ExchangeEnd::Done => return true,
        ExchangeEnd::Lost => return false,
        ExchangeEnd::Failed(error) => {
            tracing::debug!("an HTTP connection has ended: {error}");
            match error {
                _ if !wire.is_begun() => return error.is_parse(),
                error if error.is_timeout() => HttpRefusal::HeadLate,
                error if error.is_parse() || error.is_incomplete_message() => HttpRefusal::Unparsed(400),
                _ => return false,
            }
        }
        ExchangeEnd::Late if !wire.is_begun() => return false,
        ExchangeEnd::Late => HttpRefusal::HeadLate,
    };
    let stream = wire.stream();
    stream.write_all(&encode(&refusal, &http_date(wall_millis()))).await.is_ok() && stream.shutdown().await.is_ok()
}

/// Discards the bytes that the client still sends until it closes too, within bounds of time and bytes, or until the
/// server ends.
async fn drain(stream: &mut ClientStream, ending: &mut watch::Receiver<()>) {
    let drained = async {
        // The client has its time, and no more.
        let _late = timeout(DRAIN_TIME, discard(stream)).await;
    };
    unless(ended(ending), drained).await;
}

async fn discard(stream: &mut ClientStream) {
    let (mut scrap, mut thrown) = (vec![0; SCRAP_BYTES], 0);
    while thrown < DRAINED_BYTES_MAX {
        match stream.read(&mut scrap).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => thrown += bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use std::io::{Read, Write};
    use std::net::TcpStream as Client;

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::extract::{Request, State};
    use axum::routing::get;
    use hyper::service::Service;
    use tokio::net::TcpListener;
    use tokio::runtime::Builder;
    use tokio::sync::Notify;

    use super::*;
    use crate::clock::Clock;
    use crate::lock::Mutex;
    use crate::net::http::{Guard, HostRule, guarded, one_at_a_time};
    use crate::net::tcp::IdleConnections;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(600);

    /// The first client of a server that does this with its connection.
    fn with_server<T: Send>(
        client: impl FnOnce(Client) -> T + Send,
        serve: impl AsyncFnOnce(ClientStream, watch::Receiver<()>),
    ) -> T {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let client = scope.spawn(move || client(Client::connect(address).unwrap()));
            runtime.block_on(async {
                let (stream, _) = listener.accept().await.unwrap();
                let (_running, ending) = watch::channel(());
                serve(ClientStream::Plain(stream), ending).await;
            });
            client.join().unwrap()
        })
    }

    /// The bytes that a client receives after it has sent these.
    fn received(bytes: &'static [u8], times: ClientTimes) -> String {
        let client = |mut peer: Client| {
            let mut received = String::new();
            peer.write_all(bytes).unwrap();
            peer.read_to_string(&mut received).unwrap();
            received
        };
        with_server(client, async |stream, ending| {
            let idle = IdleConnections::new(Clock::start()).begin();
            converse(stream, idle, Router::new(), Activity::default(), times, ending).await;
        })
    }

    #[test]
    fn a_head_that_does_not_come_in_time_is_answered_408_and_a_connection_without_one_is_closed() {
        let soon = Duration::from_millis(20);
        let first = ClientTimes { first_head: soon, head: LONG, reply: LONG };
        let late = received(b"GET /events HTTP/1.1\r\nHost:", first);
        assert!(late.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{late}");
        assert!(late.ends_with("\r\n\r\n{\"error\":\"the head of the request did not come in time\"}"), "{late}");
        assert_eq!(received(b"", first), "");
        let later = ClientTimes { first_head: LONG, head: soon, reply: LONG };
        let idle = received(b"GET /events HTTP/1.1\r\nHost: h\r\n\r\n", later);
        assert!(idle.starts_with("HTTP/1.1 404") && !idle.contains("408"), "{idle}");
    }

    /// The bytes that a client receives after it has sent these bytes, when another client waits for its connection as
    /// soon as the connection rests. The server answers a request on command.
    fn received_when_another_waits(bytes: &'static [u8]) -> String {
        let client = |mut peer: Client| {
            let mut received = Vec::new();
            peer.write_all(bytes).unwrap();
            // A reset is an end, too.
            let _reset = peer.read_to_end(&mut received);
            String::from_utf8(received).unwrap()
        };
        with_server(client, async |stream, ending| {
            let all = IdleConnections::new(Clock::start());
            let ClientStream::Plain(plain) = &stream else { panic!("it is plain") };
            plain.readable().await.unwrap();
            let asked = Arc::new(Notify::new());
            let routes = Router::new().fallback(|State(asked): State<Arc<Notify>>| async move {
                asked.notify_one();
                yield_now().await;
                "an answer"
            });
            let (router, activity) = (guarded(routes.with_state(Arc::clone(&asked)), anybody()), Activity::default());
            let times = ClientTimes { first_head: LONG, head: LONG, reply: LONG };
            let served = tokio::spawn(converse(stream, all.begin(), router, activity, times, ending));
            if !bytes.ends_with(b"\r\n\r\n") {
                asked.notify_one();
            }
            asked.notified().await;
            while !all.make_place() {
                yield_now().await;
            }
            served.await.unwrap();
        })
    }

    fn anybody() -> Guard {
        Guard { hosts: HostRule::new(false, Vec::new(), "--host"), users: None, health: |_| false }
    }

    /// Silent clients kept others out for a minute.
    #[test]
    fn a_connection_without_a_request_under_way_makes_place_and_no_other() {
        assert_eq!(received_when_another_waits(b"GET / HTTP/1.1\r\nHost:"), "");
        let answered = received_when_another_waits(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(answered.ends_with("an answer"), "{answered}");
    }

    /// The replies to 512 requests, which one client had sent at once, were made before another client's was.
    #[test]
    fn requests_sent_without_a_wait_for_replies_do_not_go_before_others() {
        const REQUESTS: usize = 20;
        let client = |mut peer: Client| {
            let last = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let bytes = [b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(REQUESTS - 1), last.to_vec()].concat();
            peer.write_all(&bytes).unwrap();
            peer.read_to_end(&mut Vec::new()).unwrap();
        };
        let turns = Arc::new(AtomicUsize::new(0));
        let answered = Arc::new(Mutex::new(Vec::new()));
        with_server(client, async |stream, ending| {
            let others = Arc::clone(&turns);
            let other = tokio::spawn(async move {
                loop {
                    others.fetch_add(1, Ordering::Relaxed);
                    yield_now().await;
                }
            });
            let (turns, answered) = (Arc::clone(&turns), Arc::clone(&answered));
            let routes = Router::new().fallback(move || {
                answered.lock().push(turns.load(Ordering::Relaxed));
                std::future::ready("an answer")
            });
            let times = ClientTimes { first_head: LONG, head: LONG, reply: LONG };
            let idle = IdleConnections::new(Clock::start()).begin();
            converse(stream, idle, guarded(routes, anybody()), Activity::default(), times, ending).await;
            other.abort();
        });
        let answered = answered.lock();
        assert_eq!(answered.len(), REQUESTS);
        assert!(answered.is_sorted_by(|one, next| one < next), "{answered:?}");
    }

    /// Whoever asked for metrics on a hundred connections kept `/health` waiting for seconds.
    #[test]
    fn a_short_request_waits_for_one_long_one_at_most() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let noting = |what: &'static str| {
            let order = Arc::clone(&order);
            get(move || {
                order.lock().push(what);
                std::future::ready(())
            })
        };
        let routes = one_at_a_time(Router::new().route("/long", noting("long"))).route("/short", noting("short"));
        let service = TowerToHyperService::new(routes);
        Builder::new_current_thread().build().unwrap().block_on(async {
            let ask = |path| tokio::spawn(service.call(Request::get(path).body(Body::empty()).unwrap()));
            let asked: Vec<_> = (0..50).map(|_| ask("/long")).chain([ask("/short")]).collect();
            for reply in asked {
                reply.await.unwrap().unwrap();
            }
        });
        let order = order.lock();
        assert_eq!(order.len(), 51);
        assert!(order.iter().take(2).any(|what| *what == "short"), "{order:?}");
    }

    /// A connection whose client reads nothing would be held for ever.
    #[test]
    fn a_client_that_does_not_read_its_reply_loses_its_connection() {
        let client = |mut stalled: Client| {
            stalled.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            stalled
        };
        let mut stalled = with_server(client, async |stream, ending| {
            // More than the system takes for a client that does not read.
            let router = Router::new().fallback(|| async { vec![b'x'; 64 << 20] });
            let times = ClientTimes { first_head: LONG, head: LONG, reply: Duration::from_millis(20) };
            let idle = IdleConnections::new(Clock::start()).begin();
            let served = converse(stream, idle, router, Activity::default(), times, ending);
            assert!(timeout(Duration::from_secs(60), served).await.is_ok(), "the connection is still held");
        });
        let mut received = Vec::new();
        let cut = stalled.read_to_end(&mut received);
        assert!(cut.is_err() || received.len() < 64 << 20, "{} bytes", received.len());
    }
}
