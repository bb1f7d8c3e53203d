//! What a router asks of its peers before it talks to them, where users are named.
//!
//! libzmq asks the process itself about each peer, over ZAP (RFC 27): the requests come to a router that is bound to
//! [`ZAP_ENDPOINT`]. Without one, no peer is let in.

use zmq_sys::zmq_setsockopt;

use super::{GO_ON, Socket, errno, must};
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::zmtp::SecretKey;

/// Where libzmq asks about peers.
pub const ZAP_ENDPOINT: &str = "inproc://zeromq.zap.01";
/// The domain of all requests about peers. The mechanisms of libzmq ask about a peer only if there is one.
const ZAP_DOMAIN: &str = "users";
/// Option of libzmq that the binding does not know: no peer is let in while no router is at [`ZAP_ENDPOINT`].
const ZAP_ENFORCE_DOMAIN: i32 = 93;
/// Router option that only the libzmq of this server has (`.cargo/libzmq`): with CURVE, PLAIN is taken too.
const PLAIN_TOO: i32 = 20_004;

/// The mechanisms that a router takes.
#[derive(Clone, Copy, Debug)]
pub struct RouterMechanisms<'k> {
    /// Names and passwords, not encrypted.
    pub plain: bool,
    /// The key of this end, if CURVE is taken.
    pub curve: Option<&'k SecretKey>,
}

impl Socket {
    /// From its next endpoint on, a peer of this router has to name a user by one of the mechanisms.
    ///
    /// # Panics
    /// If there is none of them, or the socket is no router.
    pub fn ask_for_users(&self, mechanisms: RouterMechanisms<'_>) {
        assert!(mechanisms.plain || mechanisms.curve.is_some(), "a peer can name a user");
        must(self.options.set_zap_domain(ZAP_DOMAIN));
        must(self.options.set_handshake_ivl(i32::try_from(HANDSHAKE_TIMEOUT.as_millis()).unwrap_or(i32::MAX)));
        match mechanisms.curve {
            None => must(self.options.set_plain_server(true)),
            Some(key) => {
                must(self.options.set_curve_server(true));
                must(self.options.set_curve_secretkey(key.to_secret_text().as_bytes()));
                if mechanisms.plain {
                    self.set_number(PLAIN_TOO, 1);
                }
            }
        }
        self.set_number(ZAP_ENFORCE_DOMAIN, 1);
    }

    /// Whether a router has a peer with this routing id.
    #[must_use]
    pub fn has_peer(&self, id: &[u8]) -> bool {
        // Letting a peer go on that was not held back changes nothing, and fails if there is none.
        self.set_option(GO_ON, id) == 0
    }

    /// Sets an option that is an integer.
    #[expect(clippy::host_endian_bytes, reason = "libzmq reads an integer of this host")]
    fn set_number(&self, option: i32, value: i32) {
        let status = self.set_option(option, &value.to_ne_bytes());
        assert_eq!(status, 0, "option {option}: errno {}", errno());
    }

    #[expect(unsafe_code, reason = "the binding does not know the options")]
    pub(super) fn set_option(&self, option: i32, value: &[u8]) -> i32 {
        // SAFETY: the socket is open as long as `self` is. The call reads the bytes of `value` and keeps none of them.
        unsafe { zmq_setsockopt(self.raw, option, value.as_ptr().cast(), value.len()) }
    }
}
