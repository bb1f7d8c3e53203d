//! The users of a worker's clients, and what each may have carried out.
//!
//! A message names its user by the number of a login. A request of a user that was removed or changed is refused.

use std::ops::Deref;
use std::sync::Arc;

use crate::protocols::kv::client_names::ClientNames;
use crate::protocols::kv::packet::Sender;
use crate::protocols::kv::responder::RequestParts;
use crate::security::{Identity, LoginReader};

/// The users of the clients of one worker.
pub(super) struct WorkerUsers {
    /// None where users are not named, and every client may do everything.
    logins: Option<LoginReader>,
    names: Arc<ClientNames>,
}

impl WorkerUsers {
    pub(super) fn new(logins: Option<LoginReader>, names: Arc<ClientNames>) -> Self {
        Self { logins, names }
    }

    #[inline]
    pub(super) fn are_named(&self) -> bool {
        self.logins.is_some()
    }

    /// To be called before each batch: forgets users that were removed or changed.
    #[inline]
    pub(super) fn renew(&mut self) {
        if let Some(logins) = &mut self.logins {
            logins.renew();
        }
    }

    /// Replaces a request that its user may not have carried out by its refusal. Returns whether it did.
    #[inline]
    pub(super) fn restrict<F: Deref<Target = [u8]>>(
        &mut self,
        sender: Sender,
        request: &mut RequestParts<'_, F>,
    ) -> bool {
        match &mut self.logins {
            None => false,
            Some(logins) => request.restrict_silently(logins.user(sender.login)),
        }
    }

    /// The user of a client, if it may not read all tables.
    pub(super) fn reader_of_some(&self, sender: Sender) -> Option<&Identity> {
        let user = self.logins.as_ref()?.known(sender.login);
        user.filter(|user| !user.permissions().admin)
    }

    /// Counts a refused request.
    #[cold]
    pub(super) fn note_denied(&self, sender: Sender) {
        if let Some(logins) = &self.logins {
            logins.note_denied(sender.login, self.names.address(sender.tag));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{Denied, Logins, NO_LOGIN, Permissions, Users};

    #[test]
    fn a_refused_request_is_counted() {
        let (users, _) = Users::invented(Permissions::default());
        let worker = WorkerUsers::new(Some(Logins::new(&users).reader()), Arc::default());
        worker.note_denied(Sender { tag: 0, login: NO_LOGIN });
        assert_eq!(users.refusals(Denied::Permission), 1);
    }
}
