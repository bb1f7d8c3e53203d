//! Which requests the server takes up: requests that name the server, and that no page of another site has sent.
//!
//! ```text
//! HTTP/1.1 ─► one Host? ─► a name of this server? ─► POST from a browser: of this origin? ─► the request is taken up
//!               no: 400        no: 403                    no: 403
//! ```
//! A browser sends a POST to any server that a page names, this one included. It says so in `Origin` and
//! `Sec-Fetch-Site`. With DNS rebinding, a page has its own name point to this server, so `Origin` and `Host` agree.
//! Then only the name gives it away. A loopback server goes by addresses, by names without a dot, which nobody can
//! register, and by the configured names.
//!
//! This module reads heads alone. It sends no reply.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Version};
use rustix::system::uname;

use super::refusal::HttpRefusal;

/// The header by which a browser says where a request comes from (Fetch Metadata Request Headers, W3C).
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The names that requests may use for the server.
pub(crate) struct HostRule {
    /// In lower case.
    names: Vec<String>,
    /// Whether requests may use other names too.
    takes_any: bool,
    /// Whether a browser changes something by these names alone.
    is_strict: bool,
    /// The flag that gives the server a name.
    flag: &'static str,
}

impl HostRule {
    /// The rule of a server that listens on the loopback interface alone, or not, and has these names by `flag`.
    pub(crate) fn new(is_loopback: bool, named: Vec<String>, flag: &'static str) -> Self {
        let takes_any = !is_loopback && named.is_empty();
        let node = uname().nodename().to_string_lossy().to_ascii_lowercase();
        let named = named.into_iter().map(|name| name.to_ascii_lowercase());
        Self { names: named.chain([format!("{node}.local"), node]).collect(), takes_any, is_strict: false, flag }
    }

    /// The same, but a browser changes something only by an address, by a name without a dot, or by a name from the flag.
    /// Any other name may be a foreign page's own, which points here.
    pub(crate) fn strict(self) -> Self {
        Self { is_strict: true, ..self }
    }

    /// # Errors
    /// The reply to a request that is not taken up.
    pub(super) fn check(&self, head: &Parts) -> Result<(), HttpRefusal> {
        let own = host_of(head)?;
        let is_change = !is_safe(&head.method);
        let is_checked = !self.takes_any || self.is_strict && is_change && is_of_browser(&head.headers);
        if let Some(own) = &own
            && is_checked
            && !self.is_own(own.host())
        {
            return Err(HttpRefusal::ForeignHost { host: own.host().to_owned(), flag: self.flag });
        }
        if !is_change || is_of_this_site(&head.headers, own.as_ref()) {
            return Ok(());
        }
        Err(HttpRefusal::CrossSite)
    }

    fn is_own(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        address.parse::<IpAddr>().is_ok()
            || !host.contains('.')
            || host.ends_with(".localhost")
            || self.names.contains(&host)
    }
}

/// The name by which a request calls the server. Only a request of HTTP/1.0 may have none (RFC 9112, section 3.2).
fn host_of(head: &Parts) -> Result<Option<Authority>, HttpRefusal> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) if head.version < Version::HTTP_11 => None,
        (Some(host), None) => Some(Authority::try_from(host.as_bytes()).map_err(|_| HttpRefusal::NoHost)?),
        _ => return Err(HttpRefusal::NoHost),
    };
    let named = head.uri.authority().cloned().or(host);
    if named.as_ref().is_some_and(|named| named.as_str().contains('@') || named.host().is_empty()) {
        return Err(HttpRefusal::NoHost);
    }
    Ok(named)
}

/// Whether the method changes nothing.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether a browser has sent a request that changes something.
fn is_of_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

/// Whether a request comes from a program, or from a page of this server. `own` is the name that the request uses.
fn is_of_this_site(headers: &HeaderMap, own: Option<&Authority>) -> bool {
    let same_site = |site: &[u8]| matches!(site, b"same-origin" | b"none");
    headers.get_all(SEC_FETCH_SITE).iter().all(|site| same_site(site.as_bytes()))
        && headers.get_all(ORIGIN).iter().all(|origin| {
            let origin = origin.to_str().unwrap_or_default();
            own.is_some_and(|own| is_origin_of(origin, own))
        })
}

/// Whether an origin, such as `http://localhost:8081`, is the server that the request has named.
fn is_origin_of(origin: &str, own: &Authority) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    let Ok(other) = Authority::try_from(rest) else { return false };
    let standard = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    other.host().eq_ignore_ascii_case(own.host())
        && other.port_u16().unwrap_or(standard) == own.port_u16().unwrap_or(standard)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use axum::http::Request;

    use super::*;

    fn judged(rule: &HostRule, method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri("/events");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        rule.check(&head).map_or_else(|refusal| refusal.status(), |()| 200)
    }

    fn local() -> HostRule {
        HostRule::new(true, vec!["Events.Example".to_owned()], "--events-host")
    }

    #[test]
    fn a_request_names_one_host() {
        assert_eq!(judged(&local(), "GET", &[]), 400);
        assert_eq!(judged(&local(), "GET", &[("host", "")]), 400);
        assert_eq!(judged(&local(), "GET", &[("host", "a"), ("host", "a")]), 400);
        for wrong in ["a b", "u@a", "a/b", "[::1", ":8081"] {
            assert_eq!(judged(&local(), "GET", &[("host", wrong)]), 400, "{wrong}");
        }
        let (mut head, ()) = Request::builder().uri("/events").body(()).unwrap().into_parts();
        head.version = Version::HTTP_10;
        assert_eq!(local().check(&head), Ok(()));
    }

    #[test]
    fn a_loopback_server_goes_by_addresses_by_names_without_a_dot_and_by_the_names_it_was_given() {
        let node = uname().nodename().to_str().unwrap().to_owned();
        for own in ["127.0.0.1:8081", "[::1]:8081", "10.0.0.7", "localhost:8081", "LOCALHOST.", "a.localhost", "h"] {
            assert_eq!(judged(&local(), "GET", &[("host", own)]), 200, "{own}");
        }
        for own in [&*node, "events.example:80", "EVENTS.example."] {
            assert_eq!(judged(&local(), "GET", &[("host", own)]), 200, "{own}");
        }
        for foreign in ["evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example", "x.events.example"] {
            assert_eq!(judged(&local(), "GET", &[("host", foreign)]), 403, "{foreign}");
            let anywhere = HostRule::new(false, Vec::new(), "--events-host");
            assert_eq!(judged(&anywhere, "GET", &[("host", foreign)]), 200, "others may call it as they like");
            let named = HostRule::new(false, vec!["events.example".to_owned()], "--events-host");
            assert_eq!(judged(&named, "GET", &[("host", foreign)]), 403, "unless it was given its names");
        }
    }

    /// By DNS rebinding a page has its own name point to this server: then its origin is the name of the request.
    #[test]
    fn where_a_browser_may_change_something_the_name_is_known() {
        let foreign = [("host", "evil.example:8082"), ("origin", "http://evil.example:8082")];
        let (open, strict) =
            (HostRule::new(false, Vec::new(), "--f"), HostRule::new(false, Vec::new(), "--f").strict());
        assert_eq!((judged(&open, "POST", &foreign), judged(&strict, "POST", &foreign)), (200, 403));
        assert_eq!(judged(&strict, "POST", &[("host", "evil.example"), ("sec-fetch-site", "same-origin")]), 403);
        assert_eq!(judged(&strict, "GET", &foreign), 200, "it changes nothing");
        assert_eq!(judged(&strict, "POST", &[("host", "server.example")]), 200, "a program");
        for own in ["10.0.0.7:8082", "[::1]:8082", "server:8082"] {
            let origin = format!("http://{own}");
            assert_eq!(judged(&strict, "POST", &[("host", own), ("origin", &origin)]), 200, "{own}");
        }
        let named = HostRule::new(false, vec!["server.example".to_owned()], "--f").strict();
        let own = [("host", "server.example:1"), ("origin", "http://server.example:1")];
        assert_eq!(judged(&named, "POST", &own), 200);
    }

    #[test]
    fn a_page_of_another_site_posts_nothing() {
        let own = ("host", "localhost:8081");
        let post = |headers: &[(&str, &str)]| judged(&local(), "POST", &[&[own], headers].concat());
        for allowed in [
            &[][..],
            &[("origin", "http://localhost:8081")],
            &[("origin", "http://LOCALHOST:8081"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert_eq!(post(allowed), 200, "{allowed:?}");
        }
        for foreign in [
            &[("origin", "http://evil.example")][..],
            &[("origin", "http://localhost")],
            &[("origin", "http://localhost:9")],
            &[("origin", "http://localhost:8081.evil.example")],
            &[("origin", "null")],
            &[("origin", "")],
            &[("origin", "file://")],
            &[("origin", "http://localhost:8081"), ("origin", "http://evil.example")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("origin", "http://localhost:8081"), ("sec-fetch-site", "cross-site")],
        ] {
            assert_eq!(post(foreign), 403, "{foreign:?}");
        }
        for method in ["DELETE", "PUT", "PATCH", "CONNECT", "TRACE"] {
            assert_eq!(judged(&local(), method, &[own, ("origin", "http://evil.example")]), 403, "{method}");
        }
        let get = judged(&local(), "GET", &[own, ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")]);
        assert_eq!(get, 200, "the browser does not let the page read it");
        assert_eq!(judged(&local(), "POST", &[("host", "a"), ("origin", "https://a:443")]), 200);
    }
}
