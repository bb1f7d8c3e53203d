//! A link between a client and a database that is cut when a COMMIT has been carried out, before its answer comes back:
//! only the database knows the outcome.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The end of the packet with the statement: the command COM_QUERY, and its text.
const COMMIT: &[u8] = b"\x03COMMIT";

/// The link. Its threads end with their connections.
pub(crate) struct CutLink {
    address: SocketAddr,
    state: Arc<LinkState>,
}

#[derive(Default)]
struct LinkState {
    /// Whether the next COMMIT is the last statement of its connection.
    cuts_next: AtomicBool,
    /// The commits that came.
    commits: AtomicU64,
}

impl CutLink {
    /// A link to the database with this URL.
    pub(crate) fn to(url: &str) -> Self {
        let (_, rest) = url.rsplit_once('@').unwrap();
        let database = rest.split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<LinkState>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (Ok(database), state) = (TcpStream::connect(&database), Arc::clone(&shared)) else { return };
                thread::spawn(move || carry(&client, &database, &state));
            }
        });
        Self { address, state }
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the connection of the next COMMIT.
    pub(crate) fn cut_next(&self) {
        self.state.cuts_next.store(true, Ordering::SeqCst);
    }

    /// Whether the cut is still to come.
    pub(crate) fn will_cut(&self) -> bool {
        self.state.cuts_next.load(Ordering::SeqCst)
    }

    /// The number of commits that came.
    pub(crate) fn commits(&self) -> u64 {
        self.state.commits.load(Ordering::SeqCst)
    }
}

/// Carries one connection. A client of MySQL waits for each answer, so there is one statement on the way.
fn carry(client: &TcpStream, database: &TcpStream, state: &LinkState) {
    let is_cut = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pump(client, database, |bytes| {
                if bytes.ends_with(COMMIT) {
                    state.commits.fetch_add(1, Ordering::SeqCst);
                    is_cut.fetch_or(state.cuts_next.swap(false, Ordering::SeqCst), Ordering::SeqCst);
                }
                true
            });
            let _gone = database.shutdown(Shutdown::Write);
        });
        // The answer says that the database has carried the COMMIT out, and nobody receives it.
        pump(database, client, |_| !is_cut.load(Ordering::SeqCst));
        let _gone = (client.shutdown(Shutdown::Both), database.shutdown(Shutdown::Both));
    });
}

/// Passes bytes on as long as `goes` says so of them.
fn pump(mut from: &TcpStream, mut to: &TcpStream, goes: impl Fn(&[u8]) -> bool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !goes(&bytes[..read]) || to.write_all(&bytes[..read]).is_err() {
            return;
        }
    }
}
