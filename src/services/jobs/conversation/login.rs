//! The user of a connection, where users are named: its line comes first, and the command behind it.
//!
//! ```text
//! AUTH name password ─► Login, checked by the thread `users` ─► the command is read │ ERROR │ BUSY
//! no line ─► the user of the certificate ─► the command is read │ ERROR
//! ```
//! A line that is malformed or wrong is answered with ERROR, as any other request that is refused. A password
//! that was not checked may be right, so it has an answer of its own. While a password is checked, nothing is read.

use tokio::time::timeout;

use super::{JobConversation, Need, RequestBuffer};
use crate::limits::JOB_SILENCE;
use crate::security::{Denied, Identity, PeerAddress, Users};
use crate::services::jobs::pace::PaceStage;
use crate::services::jobs::permission::may;
use crate::services::jobs::wire::{DecodedAuth, Reply, Request, decode_auth};

/// The sender of a request.
pub(super) enum Asker {
    /// No user is needed.
    Anybody,
    /// A user that has logged in.
    User(Identity),
    /// A user is needed, and none has logged in: the reply that says so.
    Refused(Reply<'static>),
}

impl<'h> JobConversation<'h> {
    /// Reads the line and takes it off the request.
    pub(super) async fn log_in(&self, users: &Users, inbox: &mut RequestBuffer<'h>) -> std::io::Result<Asker> {
        let address = PeerAddress::of_client(self.stream.address());
        self.read_until(inbox, |bytes| match decode_auth(bytes) {
            DecodedAuth::Short => Need::More { missing: 1, patience: JOB_SILENCE },
            DecodedAuth::Whole { .. } | DecodedAuth::Wrong => Need::Nothing,
        })
        .await?;
        let DecodedAuth::Whole { name, password, length } = decode_auth(&inbox.bytes) else {
            return Ok(self.certified(users, address));
        };
        let login = users.password(name, password, address);
        inbox.bytes.drain(..length);
        self.pace.enter(PaceStage::Busy, self.shared.clock.now());
        let checked = timeout(self.left(), self.shared.ends.unless_over(login)).await;
        self.pace.enter(PaceStage::Reading, self.shared.clock.now());
        Ok(match checked.ok().flatten() {
            Some(Ok(user)) => Asker::User(user),
            Some(Err(Denied::Busy)) | None => Asker::Refused(Reply::Busy),
            Some(Err(_)) => Asker::Refused(Reply::Error),
        })
    }

    /// Who a client is that sends no line.
    fn certified(&self, users: &Users, address: PeerAddress) -> Asker {
        let Some(certificate) = self.stream.certificate() else {
            users.refused(address, Denied::Anonymous, "");
            return Asker::Refused(Reply::Error);
        };
        users.certificate(&certificate, address).map_or(Asker::Refused(Reply::Error), Asker::User)
    }

    /// Whether the user may have the request carried out now. Without users, any client may do everything.
    pub(super) fn is_allowed(&self, user: Option<&Identity>, request: &Request<'_>) -> bool {
        let (Some(users), Some(user)) = (&self.shared.users, user) else { return self.shared.users.is_none() };
        let is_allowed = request.queues().all(|queue| may(user, request.verb(), queue));
        if !is_allowed {
            user.note_denied();
        }
        // The user may have changed since it logged in.
        is_allowed && users.is_current(user)
    }
}
