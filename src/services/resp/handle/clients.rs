//! CLIENT LIST, INFO and KILL: the connections of all workers.
//!
//! Where users are named, a client that sees or ends the connections of others needs `admin` of the server.

use std::sync::Arc;

use crate::resp3::integer;
use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, refused, refused_with};
use crate::services::resp::arguments::{is, shown};
use crate::services::resp::call::Call;
use crate::services::resp::registry::ClientCard;

/// The types of connections. No connection here is that of a server.
const TYPES: [(&str, Option<ClientType>); 5] = [
    ("normal", Some(ClientType::Normal)),
    ("pubsub", Some(ClientType::Subscribed)),
    ("master", None),
    ("replica", None),
    ("slave", None),
];

/// The type of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientType {
    Normal,
    /// It has subscribed to something.
    Subscribed,
}

impl ClientType {
    fn of(card: &ClientCard) -> Self {
        if card.counts().is_subscribed() { Self::Subscribed } else { Self::Normal }
    }
}

/// The connections that a page of CLIENT LIST looks at: a millisecond's work.
const PAGE: usize = 256;

/// The connections that a client selects.
#[derive(Default)]
struct Selection<'b> {
    id: Option<u64>,
    address: Option<&'b [u8]>,
    own_address: Option<&'b [u8]>,
    user: Option<&'b [u8]>,
    /// `Some(None)`: no connection has the type.
    of_type: Option<Option<ClientType>>,
    /// The number of a connection that is not selected.
    without: Option<u64>,
}

impl Selection<'_> {
    fn selects(&self, card: &ClientCard) -> bool {
        let addresses = &card.addresses;
        self.id.is_none_or(|id| id == card.id)
            && self.address.is_none_or(|address| address == addresses.peer.as_bytes())
            && self.own_address.is_none_or(|address| address == addresses.own.as_bytes())
            && self.user.is_none_or(|user| user == card.user().as_bytes())
            && self.of_type.is_none_or(|of_type| of_type == Some(ClientType::of(card)))
            && self.without != Some(card.id)
    }
}

pub(super) fn info<'b>(call: &'b mut Call<'_, '_>) -> Answer<'b> {
    Ok(Reply::Text(call.client.place.card.line(call.context.commands, (call.now)())))
}

pub(super) fn list<'b>(call: &'b mut Call<'_, '_>, filter: &[&[u8]]) -> Answer<'b> {
    call.check_admin("client|list")?;
    let registry = &call.context.clients;
    let cards: Vec<Arc<ClientCard>> = match filter {
        [] => return list_of_type(call, None),
        [by, kind] if is(by, "type") => return list_of_type(call, Some(type_named(kind)?)),
        [by, ids @ ..] if is(by, "id") && !ids.is_empty() => {
            let ids = ids.iter().map(|id| integer(id).ok_or_else(|| refused("ERR Invalid client ID")));
            let ids = ids.collect::<Result<Vec<i64>, Failure>>()?;
            ids.into_iter().filter_map(|id| registry.get(u64::try_from(id).ok()?)).collect()
        }
        _ => return Err(SYNTAX),
    };
    let now = (call.now)();
    let mut text = String::new();
    for card in cards {
        text += &card.line(call.context.commands, now);
        check_list(call, text.len())?;
    }
    Ok(Reply::Text(text))
}

/// The lines of all connections, or of those of a type. They are collected in pages between the turns of others.
fn list_of_type<'b>(call: &mut Call<'_, '_>, of_type: Option<Option<ClientType>>) -> Answer<'b> {
    let now = (call.now)();
    let selection = Selection { of_type, ..Selection::default() };
    let mut walk = call.client.collected.walk.take().unwrap_or_default();
    let page = call.context.clients.page(walk.cursor, PAGE);
    walk.cursor = page.last().map_or(walk.cursor, |card| card.id);
    for card in page.iter().filter(|card| selection.selects(card)) {
        let line = card.line(call.context.commands, now).into_bytes().into_boxed_slice();
        walk.bytes += line.len() + size_of::<Box<[u8]>>();
        walk.keys.push(line);
    }
    check_list(call, walk.bytes)?;
    if page.len() == PAGE {
        call.client.collected.walk = Some(walk);
        return Err(Failure::Unfinished);
    }
    Ok(Reply::Text(String::from_utf8_lossy(&walk.keys.concat()).into_owned()))
}

fn check_list(call: &Call<'_, '_>, bytes: usize) -> Result<(), Failure> {
    let most = call.context.reply_bytes_max;
    if bytes > most {
        return Err(refused(format!("ERR the list has more than {most} bytes: name some by CLIENT LIST ID")));
    }
    Ok(())
}

pub(super) fn kill<'b>(call: &'b mut Call<'_, '_>, arguments: &[&[u8]]) -> Answer<'b> {
    call.check_admin("client|kill")?;
    let own = call.client.place.card.id;
    let selection = match arguments {
        [] => return Err(refused("ERR wrong number of arguments for 'client|kill' command")),
        [address] => Selection { address: Some(address), ..Selection::default() },
        options => selection(call, options, own)?,
    };
    let registry = &call.context.clients;
    let mut killed = 0;
    for card in registry.all().iter().filter(|card| selection.selects(card)) {
        // The client gets the reply before its own connection ends.
        call.client.ends |= card.id == own;
        killed += usize::from(card.id == own || registry.kill(card));
    }
    match arguments {
        [_] if killed == 0 => Err(refused("ERR No such client")),
        [_] => Ok(OK),
        _ => Ok(Reply::count(killed)),
    }
}

fn selection<'b>(call: &Call<'_, '_>, options: &[&'b [u8]], own: u64) -> Result<Selection<'b>, Failure> {
    let mut selection = Selection { without: Some(own), ..Selection::default() };
    for option in options.chunks(2) {
        let [option, value] = option else { return Err(SYNTAX) };
        if is(option, "id") {
            let id = integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
            selection.id = Some(id.ok_or_else(|| refused("ERR client-id should be greater than 0"))?);
        } else if is(option, "type") {
            selection.of_type = Some(type_named(value)?);
        } else if is(option, "addr") {
            selection.address = Some(value);
        } else if is(option, "laddr") {
            selection.own_address = Some(value);
        } else if is(option, "user") {
            check_user(call, value)?;
            selection.user = Some(value);
        } else if is(option, "skipme") && (is(value, "yes") || is(value, "no")) {
            selection.without = is(value, "yes").then_some(own);
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(selection)
}

/// The type of this name. `None`: no connection has it.
fn type_named(kind: &[u8]) -> Result<Option<ClientType>, Failure> {
    match TYPES.iter().find(|(name, _)| is(kind, name)) {
        Some((_, of_type)) => Ok(*of_type),
        None => Err(refused_with("ERR Unknown client type '", shown(kind, usize::MAX), "'")),
    }
}

fn check_user(call: &Call<'_, '_>, name: &[u8]) -> Result<(), Failure> {
    let is_known = match call.context.report.users() {
        Some(users) => std::str::from_utf8(name).is_ok_and(|name| users.has(name)),
        None => name == b"default",
    };
    if is_known { Ok(()) } else { Err(refused_with("ERR No such user '", shown(name, usize::MAX), "'")) }
}
