//! Users of an HTTP service: `Authorization: Basic` (RFC 7617) for each request, or the certificate of the connection.
//!
//! ```text
//! request ─► does its path need a user? ─► name and password ─► Login ─► may the user do this? ─► routes
//!              no: routes                    none: 401           wrong: 401   no: 403
//!                                                                busy: 503
//! ```
//! A request with a header is its user's. One without is that of the certificate, which is looked up for each request.
//! A password that was right before is known by its digest, so a further request costs a microsecond. A wrong one is
//! slowed down as elsewhere: its request waits.
//!
//! This module does not know the paths: each service says what a request needs.

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::time::timeout;

use super::peer::Peer;
use super::refusal::HttpRefusal;
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::security::limits::{PASSWORD_BYTES_MAX, USER_NAME_BYTES_MAX};
use crate::security::{Access, Denied, Identity, PeerAddress, Resource, Users};

/// What a request needs where users are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Nothing: any client may send it.
    Nothing,
    /// A user, whose permissions its route looks at.
    User,
    /// A user with this access.
    Access(Access, Resource<'static>),
}

/// What a request with this method and path needs.
pub(crate) type NeededAccess = fn(&Method, &str) -> Needed;

/// The users of a service, and what its requests need.
#[derive(Clone)]
pub(crate) struct HttpUsers {
    users: Users,
    needed: NeededAccess,
}

impl HttpUsers {
    pub(crate) fn new(users: Users, needed: NeededAccess) -> Self {
        Self { users, needed }
    }

    /// The user, if the request needs one.
    async fn check(&self, head: &Parts) -> Result<Option<Identity>, HttpRefusal> {
        let needed = (self.needed)(&head.method, head.uri.path());
        if needed == Needed::Nothing {
            return Ok(None);
        }
        let peer = head.extensions.get();
        let address = PeerAddress::of_client(peer.map(|peer: &Peer| peer.address));
        let certificate = peer.and_then(|peer| peer.certificate).filter(|_| !head.headers.contains_key(AUTHORIZATION));
        let user = match certificate {
            Some(own) => self.users.certificate(&own, address).map_err(|_| HttpRefusal::NoUser)?,
            None => self.user(&head.headers, address).await?,
        };
        match needed {
            Needed::Access(access, resource) => permitted(&user, access, resource)?,
            Needed::User | Needed::Nothing => {}
        }
        Ok(Some(user))
    }

    async fn user(&self, headers: &HeaderMap, address: PeerAddress) -> Result<Identity, HttpRefusal> {
        let Some((name, password)) = name_and_password(headers) else {
            self.users.refused(address, Denied::Anonymous, "");
            return Err(HttpRefusal::NoUser);
        };
        match timeout(HANDSHAKE_TIMEOUT, self.users.password(&name, &password, address)).await {
            Ok(Ok(user)) => Ok(user),
            Ok(Err(Denied::Busy)) | Err(_) => Err(HttpRefusal::Busy),
            Ok(Err(_)) => Err(HttpRefusal::NoUser),
        }
    }
}

/// # Errors
/// [`HttpRefusal::Forbidden`] if the user may not use the resource so.
pub(crate) fn permitted(user: &Identity, access: Access, resource: Resource<'_>) -> Result<(), HttpRefusal> {
    if user.may(access, resource) {
        return Ok(());
    }
    user.note_denied();
    Err(HttpRefusal::Forbidden)
}

/// Refuses a request of a client that may not send it. The user goes with the others to the routes: a reply without an
/// end ends with its user.
pub(super) async fn authorize(State(users): State<HttpUsers>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    match users.check(&head).await {
        Ok(user) => {
            user.and_then(|user| head.extensions.insert(user));
            next.run(Request::from_parts(head, body)).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// The value of the header `Authorization` of a client with this user.
pub(crate) fn authorization(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

/// The name and the password of a request, if it has one header with both.
fn name_and_password(headers: &HeaderMap) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(only), None) = (given.next(), given.next()) else { return None };
    let (scheme, encoded) = only.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let said = STANDARD.decode(encoded.trim_start_matches(' ')).ok()?;
    let colon = said.iter().position(|byte| *byte == b':')?;
    let (name, password) = (said.get(..colon)?, said.get(colon + 1..)?);
    let is_short = name.len() <= USER_NAME_BYTES_MAX && password.len() <= PASSWORD_BYTES_MAX;
    is_short.then(|| (name.to_vec(), password.to_vec()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;
    use crate::security::Permissions;

    fn read(values: &[&str]) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        name_and_password(&headers)
    }

    fn basic(said: &[u8]) -> String {
        format!("Basic {}", STANDARD.encode(said))
    }

    #[test]
    fn a_name_and_a_password_are_read_up_to_the_first_colon() {
        let pair = |name: &str, password: &str| Some((name.as_bytes().to_vec(), password.as_bytes().to_vec()));
        assert_eq!(read(&["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="]), pair("Aladdin", "open sesame"), "of RFC 7617");
        assert_eq!(read(&["bAsIc   QWxhZGRpbjpvcGVuIHNlc2FtZQ=="]), pair("Aladdin", "open sesame"));
        assert_eq!(read(&[&basic("ada:a:b".as_bytes())]), pair("ada", "a:b"));
        assert_eq!(read(&[&basic("test:123£".as_bytes())]), pair("test", "123£"));
        assert_eq!(read(&[&basic(b":")]), pair("", ""));
    }

    #[test]
    fn the_longest_name_and_the_longest_password_are_read() {
        let (name, password) = (vec![b'n'; USER_NAME_BYTES_MAX], vec![b'p'; PASSWORD_BYTES_MAX]);
        let said = [&name[..], b":", &password].concat();
        assert_eq!(read(&[&basic(&said)]), Some((name, password)));
        assert_eq!(read(&[&basic(&[b"n", &said[..]].concat())]), None);
        assert_eq!(read(&[&basic(&[&said[..], b"p"].concat())]), None);
    }

    /// A client that is refused for this may try again with the same password.
    #[test]
    fn too_many_passwords_that_wait_are_not_a_wrong_one() {
        let (users, _) = Users::invented(Permissions::default());
        // No password is checked any more.
        users.stop();
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, basic(b"ada:heron").parse().unwrap());
        let service = HttpUsers::new(users, |_, _| Needed::Nothing);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let refused = runtime.block_on(service.user(&headers, PeerAddress::Local));
        assert_eq!(refused.map(|user| user.name().to_owned()), Err(HttpRefusal::Busy));
        let response = HttpRefusal::Busy.into_response();
        assert_eq!(response.status().as_u16(), 503);
        assert_eq!(response.headers()["retry-after"], "8");
    }

    #[test]
    fn anything_else_names_no_user() {
        let twice = basic(b"ada:heron");
        let long = basic(&[b"ada:", &[b'x'; PASSWORD_BYTES_MAX + 1][..]].concat());
        for values in [
            &[][..],
            &[""],
            &["Basic"],
            &["Basic "],
            &["Basic !!!!"],
            &["Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ=="],
            &[&basic(b"no colon")],
            &[&long],
            &[&twice, &twice],
        ] {
            assert_eq!(read(values), None, "{values:?}");
        }
    }
}
