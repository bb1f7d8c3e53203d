//! What a connection has said so far, and what its next command asks of the queues.
//!
//! ```text
//! Said ─► begin ─┬─► Reply    known here
//!                ├─► Ask      a request to the queues: neighbours share a batch
//!                ├─► Wait     a reserve that waits
//!                └─► Apart    several requests, or a long one: those before it are answered first
//! ```
//! This module sends nothing and waits for nothing.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use super::command::{Command, Verb};
use super::held::HeldJobs;
use super::input::{InputFault, Said};
use super::reply;
use super::tubes::{TubeRole, TubeUse, Tubes};
use crate::security::{Access, Identity, Resource};
use crate::store::Value;
use crate::tasks::{AddTerms, BrowsedState, Family, QueueName, Request, ReservationEnd};

/// The tube that a connection uses and watches at first.
pub(super) const DEFAULT_TUBE: &[u8] = b"default";
/// The most tubes that a connection watches.
const WATCHED_MAX: usize = 1 << 10;
/// Milliseconds in a second.
const SECOND: u64 = 1_000;

/// What a command asks for, to be answered in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Put,
    /// Of this id, or the first one of a state.
    Peek(Option<u64>),
    /// Without a wait.
    Reserve,
    ReserveJob,
    Delete(u64),
    Release(u64),
    Bury(u64),
    KickJob,
    Touch(u64),
    StatsJob(u64),
}

/// What needs more than one request, or a long one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Apart {
    Kick(u64),
    Stats,
    StatsTube(Box<[u8]>),
    ListTubes,
    PauseTube(Box<[u8]>, u32),
    Auth(Box<[u8]>, Box<[u8]>),
}

/// What comes of a command.
#[derive(Debug)]
pub(super) enum Begun {
    Reply(Vec<u8>),
    Ask(Question, QueueName, Request),
    /// `None`: for ever. Else so many seconds.
    Wait(Option<u32>),
    Apart(Apart),
    Short(usize),
    Quit,
}

/// What a session needs to know of its server.
pub(super) struct SessionBounds {
    pub(super) job_bytes_max: u32,
    /// The length of leases of jobs that have none of their own, in milliseconds.
    pub(super) lease: u64,
    pub(super) is_draining: bool,
}

/// The user of a connection.
pub(super) enum Client {
    /// No user is needed.
    Anybody,
    /// A user is needed.
    Nobody,
    User(Identity),
}

/// What a connection has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    /// It has put.
    pub(super) is_producer: bool,
    /// It has reserved.
    pub(super) is_worker: bool,
}

/// What a connection has said so far.
pub(super) struct Session {
    /// The token of its reservations.
    pub(super) holder: u64,
    pub(super) client: Client,
    family: Family,
    tubes: Tubes,
    used: TubeUse,
    watched: Vec<TubeUse>,
    /// The queues of the watched tubes in which it may write, once a reserve has asked for them.
    waited: OnceCell<Arc<[QueueName]>>,
    pub(super) held: HeldJobs,
    roles: Roles,
    /// The beginnings of the names of queues in which it may read, and write.
    may_read: Arc<[Box<[u8]>]>,
    may_write: Arc<[Box<[u8]>]>,
}

impl Session {
    pub(super) fn new(holder: u64, client: Client, family: Family, tubes: Tubes) -> Self {
        let used = tubes.refer(DEFAULT_TUBE, TubeRole::Used);
        let watched = vec![tubes.refer(DEFAULT_TUBE, TubeRole::Watched)];
        let mut session = Self {
            holder,
            client: Client::Nobody,
            family,
            tubes,
            used,
            watched,
            waited: OnceCell::new(),
            held: HeldJobs::default(),
            roles: Roles::default(),
            may_read: Arc::new([]),
            may_write: Arc::new([]),
        };
        session.be(client);
        session
    }

    /// The connection is this client from now on.
    pub(super) fn be(&mut self, client: Client) {
        let prefixes = |access: Access| match &client {
            Client::Anybody => vec![self.family.prefix().into()],
            Client::Nobody => Vec::new(),
            Client::User(user) if user.permissions().admin => vec![self.family.prefix().into()],
            Client::User(user) => {
                let granted = user.permissions().jobs.at_least(access).iter();
                granted.map(|prefix| [self.family.prefix(), prefix].concat().into()).collect()
            }
        };
        let [read, write] = [Access::Read, Access::Write].map(prefixes).map(Arc::from);
        (self.may_read, self.may_write, self.client) = (read, write, client);
        self.waited = OnceCell::new();
    }

    /// Whether the client may use a tube so.
    pub(super) fn may(&self, access: Access, tube: &[u8]) -> bool {
        match &self.client {
            Client::Anybody => true,
            Client::Nobody => false,
            Client::User(user) => user.may(access, Resource::JobQueue(tube)),
        }
    }

    /// Whether it may put.
    pub(super) fn may_put(&self) -> bool {
        self.may(Access::Write, self.used.name())
    }

    /// The beginnings of the names of queues in which it may read.
    pub(super) fn may_read(&self) -> &Arc<[Box<[u8]>]> {
        &self.may_read
    }

    /// The queue of a tube.
    pub(super) fn queue(&self, tube: &[u8]) -> QueueName {
        self.family.queue(tube)
    }

    pub(super) fn used(&self) -> &[u8] {
        self.used.name()
    }

    pub(super) fn used_name(&self) -> &Rc<[u8]> {
        self.used.name()
    }

    pub(super) fn roles(&self) -> Roles {
        self.roles
    }

    /// The watched tubes in which it may write: there it waits.
    pub(super) fn waits_in(&self) -> Vec<&TubeUse> {
        self.watched.iter().filter(|tube| self.may(Access::Write, tube.name())).collect()
    }

    /// The request for the next job of the tubes that it watches, which waits for so many milliseconds. `None`: there are
    /// no such tubes.
    pub(super) fn reserve_next(&self, lease: u64, wait: u64) -> Option<(QueueName, Request)> {
        let waited = || self.waits_in().iter().map(|tube| self.queue(tube.name())).collect();
        let queues = Arc::clone(self.waited.get_or_init(waited));
        let first = queues.first()?.clone();
        Some((first, Request::ReserveNext { queues, holder: self.holder, timeout: lease, wait }))
    }

    /// The queue that has this job of its own.
    pub(super) fn queue_of_held(&self, id: u64) -> QueueName {
        self.family.queue_of(id, &Arc::from([Box::from(self.family.prefix())]))
    }

    /// Begins what the client has said.
    pub(super) fn begin(&mut self, said: Said<'_>, bounds: &SessionBounds) -> (Verb, Begun) {
        match said {
            Said::Short(missing) => (Verb::None, Begun::Short(missing)),
            Said::Fault(fault @ InputFault::Line(_)) => (Verb::None, Begun::Reply(reply::of_fault(fault).to_vec())),
            Said::Fault(InputFault::Refused) => {
                self.roles.is_producer = true;
                let refused = self.refusal(Access::Write, self.used.name());
                (Verb::Put, Begun::Reply(refused.unwrap_or_else(|| reply::of_fault(InputFault::Refused).to_vec())))
            }
            Said::Fault(fault) => {
                self.roles.is_producer = true;
                (Verb::Put, Begun::Reply(reply::of_fault(fault).to_vec()))
            }
            Said::Put(put, body) => {
                self.roles.is_producer = true;
                let terms = AddTerms {
                    class: put.class,
                    delay: u64::from(put.delay) * SECOND,
                    lease: Some(u64::from(put.lease.max(1)) * SECOND),
                    ..AddTerms::default()
                };
                let used = self.used.name();
                let begun = if bounds.is_draining {
                    Begun::Reply(reply::DRAINING.to_vec())
                } else if let Some(refused) = self.refusal(Access::Write, used) {
                    Begun::Reply(refused)
                } else {
                    let request = Request::Push { value: Value::from(body), terms: Some(Box::new(terms)) };
                    Begun::Ask(Question::Put, self.queue(used), request)
                };
                (Verb::Put, begun)
            }
            Said::Command(verb, command) => (verb, self.begin_command(command, bounds)),
        }
    }

    fn begin_command(&mut self, command: Command<'_>, bounds: &SessionBounds) -> Begun {
        if let Command::Auth { name, password } = command {
            return Begun::Apart(Apart::Auth(name.into(), password.into()));
        }
        if matches!(command, Command::Quit) {
            return Begun::Quit;
        }
        if matches!(self.client, Client::Nobody) {
            return Begun::Reply(reply::NOT_AUTHENTICATED.to_vec());
        }
        match command {
            Command::Reserve => self.begin_reserve(None, bounds),
            Command::ReserveWithTimeout(seconds) => self.begin_reserve(seconds, bounds),
            Command::PeekReady => self.peek(BrowsedState::Ready),
            Command::PeekDelayed => self.peek(BrowsedState::Delayed),
            Command::PeekBuried => self.peek(BrowsedState::Dead),
            Command::Use(tube) => {
                self.used = self.tubes.refer(tube, TubeRole::Used);
                Begun::Reply(reply::named("USING", tube))
            }
            Command::Watch(tube) => self.watch(tube),
            Command::Ignore(tube) => self.ignore(tube),
            Command::ListTubeUsed => Begun::Reply(reply::named("USING", self.used.name())),
            Command::ListTubesWatched => Begun::Reply(reply::list(self.watched.iter().map(|tube| &**tube.name()))),
            Command::Kick(most) => match self.refusal(Access::Write, self.used.name()) {
                Some(refused) => Begun::Reply(refused),
                None => Begun::Apart(Apart::Kick(most)),
            },
            Command::Stats => Begun::Apart(Apart::Stats),
            Command::ListTubes => Begun::Apart(Apart::ListTubes),
            Command::StatsTube(tube) if self.may(Access::Read, tube) => Begun::Apart(Apart::StatsTube(tube.into())),
            Command::PauseTube { tube, delay } if self.may(Access::Write, tube) => {
                Begun::Apart(Apart::PauseTube(tube.into(), delay))
            }
            Command::StatsTube(_) | Command::PauseTube { .. } => Begun::Reply(reply::NOT_FOUND.to_vec()),
            command => self.about_a_job(command, bounds),
        }
    }

    fn begin_reserve(&mut self, seconds: Option<u32>, bounds: &SessionBounds) -> Begun {
        self.roles.is_worker = true;
        if seconds != Some(0) {
            return Begun::Wait(seconds);
        }
        match self.reserve_next(bounds.lease, 0) {
            Some((queue, request)) => Begun::Ask(Question::Reserve, queue, request),
            None => Begun::Reply(reply::NOT_ALLOWED.to_vec()),
        }
    }

    fn watch(&mut self, tube: &[u8]) -> Begun {
        let is_watched = self.watched.iter().any(|watched| **watched.name() == *tube);
        if !is_watched && self.watched.len() >= WATCHED_MAX {
            return Begun::Reply(reply::OUT_OF_MEMORY.to_vec());
        }
        if !is_watched {
            self.watched.push(self.tubes.refer(tube, TubeRole::Watched));
            self.waited = OnceCell::new();
        }
        Begun::Reply(reply::numbered("WATCHING", self.watched.len() as u64))
    }

    fn ignore(&mut self, tube: &[u8]) -> Begun {
        let place = self.watched.iter().position(|watched| **watched.name() == *tube);
        if let Some(place) = place {
            if self.watched.len() == 1 {
                return Begun::Reply(reply::NOT_IGNORED.to_vec());
            }
            self.watched.remove(place);
            self.waited = OnceCell::new();
        }
        Begun::Reply(reply::numbered("WATCHING", self.watched.len() as u64))
    }

    fn peek(&self, state: BrowsedState) -> Begun {
        if !self.may(Access::Read, self.used.name()) {
            return Begun::Reply(reply::NOT_FOUND.to_vec());
        }
        Begun::Ask(Question::Peek(None), self.queue(self.used.name()), Request::Peek { state })
    }

    /// A request about the job of an id, wherever it is.
    fn about_a_job(&mut self, command: Command<'_>, bounds: &SessionBounds) -> Begun {
        let (holder, timeout) = (self.holder, bounds.lease);
        let key = |id: u64| Box::from(id.to_be_bytes());
        let end = |id, how| Request::EndReservation { key: key(id), holder, how };
        let (id, access, question, request) = match command {
            Command::Peek(id) => (id, Access::Read, Question::Peek(Some(id)), Request::Look { key: key(id) }),
            Command::StatsJob(id) => (id, Access::Read, Question::StatsJob(id), Request::Show { key: key(id) }),
            Command::ReserveJob(id) => {
                self.roles.is_worker = true;
                (id, Access::Write, Question::ReserveJob, Request::Reserve { key: key(id), holder, timeout })
            }
            Command::Delete(id) => (id, Access::Write, Question::Delete(id), Request::Delete { key: key(id), holder }),
            Command::Release { id, class, delay } => {
                let how = ReservationEnd::Released { class, delay: u64::from(delay) * SECOND };
                (id, Access::Write, Question::Release(id), end(id, how))
            }
            Command::Bury { id, class } => {
                (id, Access::Write, Question::Bury(id), end(id, ReservationEnd::Buried { class }))
            }
            Command::KickJob(id) => (id, Access::Write, Question::KickJob, Request::Kick { key: key(id) }),
            Command::Touch(id) => {
                (id, Access::Write, Question::Touch(id), Request::Touch { key: key(id), holder, timeout })
            }
            _ => return Begun::Reply(reply::of_fault(InputFault::PutLine).to_vec()),
        };
        let prefixes = if access == Access::Read { &self.may_read } else { &self.may_write };
        Begun::Ask(question, self.family.queue_of(id, prefixes), request)
    }

    /// The answer to a client that may not use a tube so.
    fn refusal(&self, access: Access, tube: &[u8]) -> Option<Vec<u8>> {
        match &self.client {
            _ if self.may(access, tube) => None,
            Client::User(user) => {
                user.note_denied();
                Some(reply::NOT_ALLOWED.to_vec())
            }
            _ => Some(reply::NOT_AUTHENTICATED.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::clock::ClockReading;
    use crate::store::tests::fake_disk::FakeDisk;
    use crate::tasks::{self, LeaseOrder, Policy};

    /// Each reserve of many tubes had names of its own.
    #[test]
    fn the_queues_of_a_reserve_are_named_once_for_what_is_watched() {
        let (_tasks, mut committer) = tasks::open(Box::new(FakeDisk::new()), ClockReading::from_millis(0)).unwrap();
        let family = committer.family(b"jobs/", LeaseOrder::Fifo, Policy::Always).unwrap();
        let mut session = Session::new(7, Client::Anybody, family.clone(), Tubes::new(|_, _| {}));
        let queues = |session: &Session| match session.reserve_next(9, 0) {
            Some((_, Request::ReserveNext { queues, .. })) => queues,
            other => panic!("{other:?}"),
        };
        let named = |tubes: &[&[u8]]| tubes.iter().map(|tube| family.queue(tube)).collect::<Arc<[_]>>();
        let first = queues(&session);
        assert!(Arc::ptr_eq(&first, &queues(&session)) && first == named(&[DEFAULT_TUBE]));
        session.watch(b"mail");
        assert_eq!(queues(&session), named(&[DEFAULT_TUBE, b"mail"]));
        session.ignore(DEFAULT_TUBE);
        assert_eq!(queues(&session), named(&[b"mail"]));
        session.be(Client::Nobody);
        assert!(session.reserve_next(9, 0).is_none());
    }
}
