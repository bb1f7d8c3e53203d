//! The gate: an endpoint that others can reach is served only if users are checked there, or if it is
//! knowingly open.
//!
//! ```text
//!                    │ loopback, ipc://   │ others can reach it
//! no --users         │ served             │ refused, unless --open
//! --users            │ users are checked  │ users are checked; refused if they could only name themselves unencrypted
//! ```
//! The gate looks at the endpoints as they are given, before any of them is bound.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use super::ServerConfig;
use crate::clock::Clock;
use crate::net::sockets::ListenAddress;
use crate::net::tcp::Certificate;
use crate::net::zeromq::{Admission, is_local};
use crate::security::Users;
use crate::zmtp::{Mechanisms, SecretKey};

/// The settings of users and reachable endpoints.
#[derive(Clone, Debug, Default)]
pub struct SecurityConfig {
    /// The file of users.
    pub users: Option<PathBuf>,
    /// Without users, endpoints serve every peer that can reach them. With users, each is checked all the same.
    pub open: bool,
    /// Passwords are taken also where others can reach the endpoint, and read what is sent.
    pub plain_anywhere: bool,
    /// The server's key of CURVE.
    pub curve_key: Option<SecretKey>,
    /// The files of the certificate and its key, if services over TCP are encrypted.
    pub tls: Option<(PathBuf, PathBuf)>,
}

impl SecurityConfig {
    /// The mechanisms of a service over ZeroMQ. None if no peer could name a user there.
    fn mechanisms(&self, is_local: bool) -> Option<Mechanisms> {
        let plain = is_local || self.plain_anywhere;
        let curve = self.curve_key.clone();
        (plain || curve.is_some()).then_some(Mechanisms::Users { plain, curve })
    }
}

/// The users, and how clients of each service prove that they are one.
pub(super) struct Admissions {
    pub(super) users: Option<Users>,
    pub(super) certificate: Option<Certificate>,
    security: SecurityConfig,
    services: Vec<GatedService>,
}

impl Admissions {
    /// Checks the gate, and reads the files of users and of the certificate.
    pub(super) fn open(config: &ServerConfig) -> Result<Self, super::Error> {
        check(config)?;
        let SecurityConfig { users, tls, .. } = &config.security;
        let users =
            users.as_deref().map(|file| Users::open(file, Clock::start())).transpose().map_err(super::Error::Users)?;
        for GatedService { flag, endpoint, bound, .. } in services(config) {
            if let Some((user, users)) = bound.zip(users.as_ref())
                && !users.has(&user)
            {
                return Err(GateError::UnknownUser { flag, endpoint, user }.into());
            }
        }
        let certificate = tls.as_ref().map(|(chain, key)| Certificate::open(chain, key, users.is_some())).transpose();
        let certificate = certificate.map_err(GateError::Certificate)?;
        Ok(Self { certificate, ..Self::of(config, users) })
    }

    /// Has the files read again.
    pub(super) fn rereader(&self) -> impl Fn() + Send + use<> {
        let (users, certificate) = (self.users.clone(), self.certificate.clone());
        let files =
            [users.as_ref().map(|users| format!("{users:?}")), certificate.as_ref().map(|it| format!("{it:?}"))];
        let files: Vec<String> = files.into_iter().flatten().collect();
        move || {
            if !files.is_empty() {
                tracing::info!("SIGHUP: read again: {}", files.join(" and "));
            }
            users.iter().for_each(Users::reread);
            certificate.iter().for_each(Certificate::reread);
        }
    }

    /// Those of a server with these users.
    fn of(config: &ServerConfig, users: Option<Users>) -> Self {
        Self { users, certificate: None, security: config.security.clone(), services: services(config) }
    }

    /// Those of the service with this flag. None: it serves every peer. A service of several endpoints takes passwords
    /// if each of them is local. Over plain TCP a password is the only proof, and the gate has looked at the endpoint.
    pub(super) fn of_flag(&self, flag: &str) -> Option<Admission> {
        let users = self.users.clone()?;
        let mut endpoints = self.services.iter().filter(|service| service.flag == flag);
        let mechanisms = self.security.mechanisms(endpoints.all(|service| service.is_local || !service.has_curve))?;
        Some(Admission { users, mechanisms: Arc::new(mechanisms) })
    }
}

/// Why an endpoint is not served.
#[derive(Debug, Error)]
pub enum GateError {
    /// Other hosts can reach it, and it checks no users.
    #[error(
        "{flag} {endpoint}: others can reach this endpoint, and without --users everybody may do everything there; give \
         --users FILE (spindle user add makes one), listen on loopback or ipc://, or allow it with --open"
    )]
    Reachable {
        /// The flag of the service.
        flag: &'static str,
        /// Its endpoint, as it was given.
        endpoint: String,
    },
    /// No mechanism is left by which a peer could name a user.
    #[error(
        "{flag} {endpoint}: others can reach this endpoint, so passwords are not taken there unencrypted; give \
         --curve-key FILE (spindle keygen makes one), or take them with --plain-anywhere"
    )]
    NoMechanism {
        /// The flag of the service.
        flag: &'static str,
        /// Its endpoint, as it was given.
        endpoint: String,
    },
    /// A listener has a user, and there are none.
    #[error(
        "{flag} {endpoint},user={user}: without --users there are no users; give --users FILE, or leave the user out"
    )]
    NoUsers {
        /// The flag of the service.
        flag: &'static str,
        /// Its endpoint, as it was given.
        endpoint: String,
        /// The name of the user.
        user: String,
    },
    /// No user of this name is in the file.
    #[error("{flag} {endpoint},user={user}: the file of users has no such user; spindle user add makes one")]
    UnknownUser {
        /// The flag of the service.
        flag: &'static str,
        /// Its endpoint, as it was given.
        endpoint: String,
        /// The name of the user.
        user: String,
    },
    /// Everybody who can reach the endpoint would be that user.
    #[error(
        "{flag} {endpoint},user={user}: others can reach this endpoint, and would all be {user} without a password; \
         listen on loopback, or allow it with --open"
    )]
    Bound {
        /// The flag of the service.
        flag: &'static str,
        /// Its endpoint, as it was given.
        endpoint: String,
        /// The name of the user.
        user: String,
    },
    /// The files of the certificate or its key are wrong.
    #[error("--tls-cert, --tls-key: {0}")]
    Certificate(String),
    /// Passwords would cross a network as they are.
    #[error(
        "{flag} {endpoint}: others can reach this endpoint, so passwords are not taken there unencrypted; give \
         --tls-cert FILE and --tls-key FILE, or take them with --plain-anywhere"
    )]
    Unencrypted {
        /// The flag of the service.
        flag: &'static str,
        /// Its endpoint, as it was given.
        endpoint: String,
    },
}

/// A service that listens.
struct GatedService {
    flag: &'static str,
    endpoint: String,
    is_local: bool,
    /// Whether it has CURVE. Otherwise a password is the only proof.
    has_curve: bool,
    /// The user that every client is.
    bound: Option<String>,
}

/// The flag of each service that listens, and its endpoint as it was given. A flag of several endpoints stands there
/// once for each.
#[must_use]
pub fn listening(config: &ServerConfig) -> Vec<(&'static str, String)> {
    services(config).into_iter().map(|service| (service.flag, service.endpoint)).collect()
}

/// How many services are on whose connections wait in an epoll: those over ZeroMQ, and that of Redis clients.
pub(super) fn epoll_services(config: &ServerConfig) -> u64 {
    let mut flags: Vec<_> =
        services(config).into_iter().filter(|own| own.has_curve || own.flag == "--resp").map(|own| own.flag).collect();
    flags.dedup();
    flags.len() as u64
}

/// Checks all endpoints.
///
/// # Errors
/// [`GateError`] for the first that must not be served.
pub(super) fn check(config: &ServerConfig) -> Result<(), GateError> {
    services(config).into_iter().try_for_each(|service| check_service(&config.security, service))
}

/// `open` is for servers without users. With users it does not let passwords cross a network.
fn check_service(security: &SecurityConfig, service: GatedService) -> Result<(), GateError> {
    let GatedService { flag, endpoint, is_local, has_curve, bound } = service;
    match bound {
        Some(user) if security.users.is_none() => return Err(GateError::NoUsers { flag, endpoint, user }),
        Some(user) if !is_local && !security.open => return Err(GateError::Bound { flag, endpoint, user }),
        _ => {}
    }
    if security.users.is_none() {
        return if is_local || security.open { Ok(()) } else { Err(GateError::Reachable { flag, endpoint }) };
    }
    let is_encrypted = is_local || security.plain_anywhere || security.tls.is_some();
    match has_curve {
        true if security.mechanisms(is_local).is_none() => Err(GateError::NoMechanism { flag, endpoint }),
        false if !is_encrypted => Err(GateError::Unencrypted { flag, endpoint }),
        _ => Ok(()),
    }
}

fn services(config: &ServerConfig) -> Vec<GatedService> {
    let zmq = |flag, endpoint: &str| GatedService {
        flag,
        endpoint: endpoint.to_owned(),
        is_local: is_local(endpoint),
        has_curve: true,
        bound: None,
    };
    let stream = |flag, address: &ListenAddress| GatedService {
        flag,
        endpoint: address.to_string(),
        is_local: address.is_local(),
        has_curve: false,
        bound: None,
    };
    let tasks = config.tasks.as_ref();
    let mut services: Vec<GatedService> = config.kv.iter().map(|endpoint| zmq("--kv", endpoint)).collect();
    let resp = config.workers.resp.endpoints.iter();
    services.extend(resp.map(|endpoint| GatedService { has_curve: false, ..zmq("--resp", endpoint) }));
    services.extend(config.notifications.publish.iter().map(|endpoint| zmq("--publish", endpoint)));
    services.extend(config.feed.iter().map(|feed| zmq("--feed", &feed.endpoint)));
    services.extend(config.lockstep.iter().map(|lockstep| zmq("--lockstep", &lockstep.endpoint)));
    services.extend(config.notifications.lockstep.iter().map(|endpoint| zmq("--lockstep-publish", endpoint)));
    let spiderq = tasks.and_then(|tasks| tasks.spiderq.as_ref());
    services.extend(spiderq.iter().map(|spiderq| zmq("--tasks", &spiderq.endpoint)));
    let jobs = tasks.and_then(|tasks| tasks.jobs.as_ref());
    services.extend(jobs.iter().map(|jobs| stream("--jobs", &jobs.address.into())));
    let beanstalk = tasks.and_then(|tasks| tasks.beanstalk.as_ref());
    let listening = beanstalk.iter().flat_map(|beanstalk| &beanstalk.listening);
    services.extend(
        listening.map(|listening| GatedService {
            bound: listening.user.clone(),
            ..stream("--beanstalk", &listening.address)
        }),
    );
    services.extend(config.events.iter().map(|events| stream("--events", &events.address.into())));
    services.extend(config.operation.admin.iter().map(|admin| stream("--admin", &admin.address.into())));
    let queue = tasks.and_then(|tasks| tasks.events.as_ref());
    services.extend(queue.iter().map(|queue| zmq("--events-queue", &queue.endpoint)));
    services
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Permissions;
    use crate::server::NotificationSettings;
    use crate::server::tests::config as local;
    use crate::server::{FeedSettings, OperationConfig};
    use crate::services::operator::admin::serve::AdminConfig;
    use crate::services::tables::serve::FrontendKind;

    fn with(kv: &str, security: SecurityConfig) -> Result<(), GateError> {
        check(&ServerConfig {
            kv: vec!["tcp://127.0.0.1:1".to_owned(), kv.to_owned()],
            security,
            ..local(FrontendKind::Queue)
        })
    }

    fn with_admin(address: [u8; 4], security: SecurityConfig) -> ServerConfig {
        let local = local(FrontendKind::Native);
        let admin = Some(AdminConfig { address: (address, 1).into(), hosts: Vec::new() });
        ServerConfig { operation: OperationConfig { admin, ..local.operation }, security, ..local }
    }

    #[test]
    fn an_endpoint_that_others_can_reach_is_not_served_to_everybody() {
        for own in [
            "tcp://127.0.0.1:1",
            "tcp://127.9.9.9:*",
            "tcp://[::1]:1",
            "tcp://[::ffff:127.0.0.1]:1",
            "tcp://lo:1",
            "tcp://localhost:1",
            "ipc:///a",
            "ipc://@a",
        ] {
            assert!(with(own, SecurityConfig::default()).is_ok(), "{own}");
        }
        for others in [
            "tcp://*:1",
            "tcp://0.0.0.0:1",
            "tcp://10.0.0.1:1",
            "tcp://[::]:1",
            "tcp://[2001:db8::1]:1",
            "tcp://[::ffff:0.0.0.0]:1",
            "tcp://[::ffff:10.0.0.1]:1",
            "tcp://128.0.0.1:1",
            "tcp://nowhere:1",
        ] {
            let why = with(others, SecurityConfig::default()).map_err(|error| error.to_string());
            assert!(
                why.is_err_and(|why| why.contains("--open") && why.contains(&format!("--kv {others}"))),
                "{others}"
            );
            assert!(with(others, SecurityConfig { open: true, ..SecurityConfig::default() }).is_ok());
        }
    }

    fn notifications(publish: Option<String>, lockstep: Option<String>) -> NotificationSettings {
        NotificationSettings { publish, lockstep, hwm: 1 }
    }

    #[test]
    fn every_service_has_its_gate() {
        let feed = FeedSettings { endpoint: "tcp://*:1".to_owned(), history_bytes: 0 };
        let publish = Some("tcp://*:1".to_owned());
        let rows = [
            ServerConfig { notifications: notifications(publish.clone(), None), ..local(FrontendKind::Native) },
            ServerConfig { notifications: notifications(None, publish), ..local(FrontendKind::Native) },
            ServerConfig { feed: Some(feed), ..local(FrontendKind::Native) },
            with_admin([0, 0, 0, 0], SecurityConfig::default()),
        ];
        for (config, flag) in rows.iter().zip(["--publish", "--lockstep-publish", "--feed", "--admin"]) {
            assert!(matches!(check(config), Err(GateError::Reachable { flag: refused, .. }) if refused == flag));
        }
    }

    /// A reachable endpoint without a key served every peer unchecked.
    #[test]
    fn with_users_an_open_server_checks_them_all_the_same() {
        let open = || SecurityConfig { users: Some("users".into()), open: true, ..SecurityConfig::default() };
        let kv = |frontend| ServerConfig { kv: vec!["tcp://*:1".to_owned()], security: open(), ..local(frontend) };
        for frontend in [FrontendKind::Queue, FrontendKind::Native] {
            assert!(matches!(check(&kv(frontend)), Err(GateError::NoMechanism { flag: "--kv", .. })));
        }
        let publish = notifications(Some("tcp://*:1".to_owned()), None);
        let publish = ServerConfig { notifications: publish, security: open(), ..local(FrontendKind::Queue) };
        assert!(matches!(check(&publish), Err(GateError::NoMechanism { flag: "--publish", .. })));
        let admin = with_admin([0, 0, 0, 0], open());
        assert!(matches!(check(&admin), Err(GateError::Unencrypted { flag: "--admin", .. })));
        for security in [
            SecurityConfig { curve_key: Some(SecretKey::generate()), ..open() },
            SecurityConfig { plain_anywhere: true, ..open() },
        ] {
            for frontend in [FrontendKind::Queue, FrontendKind::Native] {
                assert!(check(&ServerConfig { security: security.clone(), ..kv(frontend) }).is_ok());
            }
        }
    }

    /// Its frontend is one, so the password would cross the network to the second endpoint.
    #[test]
    fn a_frontend_with_a_reachable_endpoint_takes_no_password_on_any() {
        let plain = |kv: [&str; 2]| {
            let security = SecurityConfig { curve_key: Some(SecretKey::generate()), ..SecurityConfig::default() };
            let config = ServerConfig { kv: kv.map(str::to_owned).into(), security, ..local(FrontendKind::Native) };
            let (users, _) = Users::invented(Permissions::default());
            let admission = Admissions::of(&config, Some(users)).of_flag("--kv");
            admission.map(|admission| matches!(*admission.mechanisms, Mechanisms::Users { plain: true, .. }))
        };
        assert_eq!(plain(["tcp://127.0.0.1:1", "ipc://@a"]), Some(true));
        assert_eq!(plain(["tcp://127.0.0.1:1", "tcp://*:2"]), Some(false));
        assert_eq!(plain(["tcp://*:2", "tcp://127.0.0.1:1"]), Some(false));
    }

    #[test]
    fn users_are_read_again_on_demand() {
        let (users, _) = Users::invented(Permissions::default());
        let reread = Admissions::of(&local(FrontendKind::Native), Some(users.clone())).rereader();
        assert!(!users.is_to_be_reread());
        reread();
        assert!(users.is_to_be_reread());
    }

    #[test]
    fn passwords_over_plain_tcp_stay_on_this_host_unless_it_is_allowed() {
        let users = || SecurityConfig { users: Some("users".into()), ..SecurityConfig::default() };
        let at = |address, security| check(&with_admin(address, security));
        assert!(at([127, 0, 0, 1], users()).is_ok());
        let key = Some(SecretKey::generate());
        for security in [users(), SecurityConfig { curve_key: key, ..users() }] {
            assert!(matches!(at([0, 0, 0, 0], security), Err(GateError::Unencrypted { flag: "--admin", .. })));
        }
        assert!(at([0, 0, 0, 0], SecurityConfig { plain_anywhere: true, ..users() }).is_ok());
        let tls = Some(("certificate".into(), "key".into()));
        assert!(at([0, 0, 0, 0], SecurityConfig { tls, ..users() }).is_ok());
    }

    #[test]
    fn passwords_are_taken_unencrypted_on_this_host_alone_unless_it_is_allowed() {
        let users = || SecurityConfig { users: Some("users".into()), ..SecurityConfig::default() };
        let key = Some(SecretKey::generate());
        let at = |kv: &str, security| ServerConfig { kv: vec![kv.to_owned()], security, ..local(FrontendKind::Native) };
        assert!(matches!(check(&at("tcp://*:1", users())), Err(GateError::NoMechanism { flag: "--kv", .. })));
        assert!(check(&at("tcp://*:1", SecurityConfig { plain_anywhere: true, ..users() })).is_ok());
        assert!(check(&at("tcp://*:1", SecurityConfig { curve_key: key.clone(), ..users() })).is_ok());
        let plain = |security: SecurityConfig, is_local| match security.mechanisms(is_local) {
            Some(Mechanisms::Users { plain, .. }) => plain,
            _ => false,
        };
        assert!(plain(users(), true) && !plain(SecurityConfig { curve_key: key, ..users() }, false));
    }
}
