//! Commands about channels.
//!
//! A command about channels of keys waits twice: until the audiences of their tables have begun, and until its worker has
//! delivered what was changed before. So a client gets each event behind the confirmation, and none of before. In a
//! transaction nothing waits: EXEC has waited for all its commands ([`settle_for_exec`]).

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::services::resp::answer::{Answer, Failure, Reply, refused, refused_with};
use crate::services::resp::arguments::{Arguments, is, shown};
use crate::services::resp::call::Call;
use crate::services::resp::channels::SubscriptionKind;
use crate::services::resp::key_events::RESERVED;
use crate::services::resp::limits::{
    CHANNEL_BYTES_MAX, CHANNEL_PATTERNS_MAX, COUNT_STEPS, NAMES_A_TURN, SHOWN_BYTES, SUBSCRIPTION_BYTES_MAX,
};
use crate::services::resp::pattern::Pattern;
use crate::services::resp::subcommands::{unknown_subcommand, wrong_number};
use crate::services::resp::subscribers::selected_by;
use crate::services::resp::subscriptions::{SubscriptionStage, Subscriptions};
use crate::services::tables::change_mail::{ChangeSelection, SelectedTables};

pub(in super::super) fn subscribe<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    subscribe_to(call, SubscriptionKind::Channel, arguments.behind(1))
}

pub(in super::super) fn psubscribe<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    subscribe_to(call, SubscriptionKind::Pattern, arguments.behind(1))
}

pub(in super::super) fn unsubscribe<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    unsubscribe_from(call, SubscriptionKind::Channel, arguments.behind(1))
}

pub(in super::super) fn punsubscribe<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    unsubscribe_from(call, SubscriptionKind::Pattern, arguments.behind(1))
}

fn subscribe_to<'b>(call: &mut Call<'_, '_>, kind: SubscriptionKind, names: &'b [&'b [u8]]) -> Answer<'b> {
    let done = call.client.progress.done();
    if done == 0 {
        check_names(call, kind, names)?;
    }
    let (names, portion) = portion_of(call, names.get(done..).unwrap_or_default());
    let selected: Vec<_> = names.iter().map(|name| selected_by(kind, name)).collect();
    let mut selections = settle(call, &selected)?.into_iter();
    let Call { client, subscribers, id, .. } = call;
    let subscriptions = client.subscriptions.get_or_insert_default();
    let replies = names.iter().map(|name| {
        if subscriptions.add(kind, name, selections.next().flatten()) {
            subscribers.add(*id, kind, name);
        }
        let word = if kind == SubscriptionKind::Channel { "subscribe" } else { "psubscribe" };
        confirmation(word, Some((*name).into()), subscriptions)
    });
    Ok(Reply::Frames { replies: replies.collect(), portion })
}

/// The names that a turn has time for, and how many they are if others follow. Those of a transaction are not divided.
fn portion_of<'n, N>(call: &mut Call<'_, '_>, names: &'n [N]) -> (&'n [N], Option<usize>) {
    match names.split_at_checked(NAMES_A_TURN) {
        Some((some, rest)) if !rest.is_empty() && !call.client.collected.is_in_exec => {
            if !call.client.progress.has_begun() {
                call.client.progress.begin(0);
            }
            (some, Some(NAMES_A_TURN))
        }
        _ => (names, None),
    }
}

/// Refuses names that are too long, or too many.
fn check_names(call: &Call<'_, '_>, kind: SubscriptionKind, names: &[&[u8]]) -> Result<(), Failure> {
    check_channel(names.iter().map(|name| name.len()).max().unwrap_or(0))?;
    let subscriptions = call.client.subscriptions.as_deref();
    let count = names.len() + subscriptions.map_or(0, |subscriptions| subscriptions.names(kind).len());
    if kind == SubscriptionKind::Pattern && count > CHANNEL_PATTERNS_MAX {
        return Err(refused(format!("ERR a connection has at most {CHANNEL_PATTERNS_MAX} patterns")));
    }
    let bytes = names.iter().map(|name| name.len()).sum::<usize>() + subscriptions.map_or(0, Subscriptions::bytes);
    if bytes > SUBSCRIPTION_BYTES_MAX {
        return Err(refused(format!("ERR the channels of a connection have at most {SUBSCRIPTION_BYTES_MAX} bytes")));
    }
    Ok(())
}

fn check_channel(bytes: usize) -> Result<(), Failure> {
    if bytes > CHANNEL_BYTES_MAX {
        return Err(refused(format!("ERR a channel has more than {CHANNEL_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// Waits until the selections of these tables have begun, and all changes of before are delivered. Nothing is selected:
/// it does not wait.
fn settle(
    call: &mut Call<'_, '_>,
    selected: &[Option<SelectedTables>],
) -> Result<Vec<Option<ChangeSelection>>, Failure> {
    if selected.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let subscriptions = call.client.subscriptions.get_or_insert_default();
    match std::mem::take(&mut subscriptions.stage) {
        SubscriptionStage::Begun(selections) => return Ok(selections),
        asked @ SubscriptionStage::Asked(..) => subscriptions.stage = asked,
        SubscriptionStage::None | SubscriptionStage::Withdrawn(_) => {
            subscriptions.stage = call.subscribers.ask(call.id, call.batch, selected);
            if !call.may_wait
                && let SubscriptionStage::Asked(_, selections) = std::mem::take(&mut subscriptions.stage)
            {
                return Ok(selections);
            }
        }
    }
    Err(Failure::Waits)
}

/// Waits, before a transaction, as its commands about these channels would. What is selected stays so until they come.
pub(in super::super) fn settle_for_exec<'q>(
    call: &mut Call<'_, '_>,
    names: impl Iterator<Item = (SubscriptionKind, &'q [u8])>,
) -> Result<Vec<Option<ChangeSelection>>, Failure> {
    let subscribed = call.client.subscriptions.as_ref();
    let own = subscribed.and_then(|own| Some(own.selection(own.all())?.tables().clone()));
    let selected: Vec<_> = names.map(|(kind, name)| selected_by(kind, name)).chain([own]).collect();
    settle(call, &selected)
}

fn unsubscribe_from<'b>(call: &mut Call<'_, '_>, kind: SubscriptionKind, names: &'b [&'b [u8]]) -> Answer<'b> {
    let word = if kind == SubscriptionKind::Channel { "unsubscribe" } else { "punsubscribe" };
    let (mut all, done) = (Vec::new(), call.client.progress.done());
    if let (true, Some(subscriptions)) = (names.is_empty(), &call.client.subscriptions) {
        // One more than a turn has time for, so that it is known whether others follow.
        let most = if call.client.collected.is_in_exec { usize::MAX } else { NAMES_A_TURN + 1 };
        all.extend(subscriptions.names(kind).keys().take(most).cloned());
    }
    let names = all.iter().map(|name| &**name).chain(names.iter().skip(done).copied());
    let named: Vec<_> = names.map(|name| (kind, name.to_vec())).collect();
    let (named, portion) = portion_of(call, &named);
    withdraw(call, named)?;
    let Call { client, subscribers, id, .. } = call;
    let subscriptions = client.subscriptions.get_or_insert_default();
    let mut replies: Vec<_> = named.is_empty().then(|| confirmation(word, None, subscriptions)).into_iter().collect();
    replies.extend(named.iter().map(|(kind, name)| {
        if subscriptions.remove(*kind, name) {
            subscribers.remove(*id, *kind, name);
        }
        confirmation(word, Some(name.clone().into()), subscriptions)
    }));
    if subscriptions.count() == 0 {
        client.subscriptions = None;
    }
    Ok(Reply::Frames { replies, portion })
}

/// Takes all subscriptions away.
pub(super) fn leave(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let Some(subscriptions) = &call.client.subscriptions else { return Ok(()) };
    let all: Vec<_> = subscriptions.all().map(|(kind, name)| (kind, name.to_vec())).collect();
    withdraw(call, &all)?;
    all.iter().for_each(|(kind, name)| call.subscribers.remove(call.id, *kind, name));
    call.client.subscriptions = None;
    Ok(())
}

/// Waits until all is delivered that was changed before, if the client has subscribed to channels of keys.
pub(super) fn catch_up(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let Some(subscriptions) = &call.client.subscriptions else { return Ok(()) };
    let selected = subscriptions.selection(subscriptions.all()).map(|selection| selection.tables().clone());
    settle(call, &[selected]).map(drop)
}

/// Waits until all is delivered to the client that was counted for these subscriptions, or changed before. From then on
/// nothing is counted for them.
fn withdraw(call: &mut Call<'_, '_>, names: &[(SubscriptionKind, Vec<u8>)]) -> Result<(), Failure> {
    let Some(subscriptions) = &mut call.client.subscriptions else { return Ok(()) };
    if matches!(subscriptions.stage, SubscriptionStage::Withdrawn(_)) {
        subscriptions.stage = SubscriptionStage::None;
        return Ok(());
    }
    let named = || names.iter().map(|(kind, name)| (*kind, &**name));
    let selected = subscriptions.selection(named()).map(|selection| selection.tables().clone());
    settle(call, &[selected])?;
    let Some(subscriptions) = &mut call.client.subscriptions else { return Ok(()) };
    let present = named().filter(|(kind, name)| subscriptions.names(*kind).contains_key(*name));
    let present: BTreeSet<_> = present.map(|(kind, name)| (kind, name.into())).collect();
    present.iter().for_each(|(kind, name): &(_, Box<[u8]>)| call.subscribers.withdraw(*kind, name));
    if !call.may_wait || call.subscribers.has_caught_up(subscriptions) {
        return Ok(());
    }
    subscriptions.stage = SubscriptionStage::Withdrawn(present);
    Err(Failure::Unfinished)
}

/// The confirmation that a channel or a pattern is subscribed to, or is no more.
fn confirmation<'b>(word: &'static str, name: Option<Cow<'b, [u8]>>, subscriptions: &Subscriptions) -> Reply<'b> {
    Reply::Push(vec![Reply::string(word), name.map_or(Reply::Null, Reply::Bulk), Reply::count(subscriptions.count())])
}

pub(in super::super) fn publish<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let [channel, payload] = arguments.exactly()?;
    check_channel(channel.len())?;
    if channel.starts_with(RESERVED) {
        return Err(refused("ERR channels whose names begin with __key are those of the events of keys"));
    }
    let channels = call.subscribers.channels();
    let begun = call.client.collected.count.take();
    let mut count = begun.unwrap_or_else(|| Box::new(channels.publish(channel, payload)));
    // To compare a channel with patterns may take long.
    match call.batch.aside(|| count.advance(channel, &mut { COUNT_STEPS })) {
        Some(subscribers) => Ok(Reply::count(subscribers)),
        None => {
            call.client.collected.count = Some(count);
            Err(Failure::Unfinished)
        }
    }
}

/// How Redis begins the refusal of PUBSUB CHANNELS with too many arguments.
const UNKNOWN_OR_WRONG: &str = "ERR unknown subcommand or wrong number of arguments for '";

pub(in super::super) fn pubsub<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([verb], rest) = arguments.split()?;
    let channels = call.subscribers.channels();
    match rest {
        [] if is(verb, "channels") => find_channels(call, None),
        [pattern] if is(verb, "channels") => {
            Pattern::new(pattern)?;
            find_channels(call, Some(pattern))
        }
        _ if is(verb, "numsub") => {
            let counts = rest.iter().flat_map(|name| [Reply::bulk(*name), Reply::count(channels.count(name))]);
            Ok(Reply::Array(counts.collect()))
        }
        [] if is(verb, "numpat") => Ok(Reply::count(channels.patterns())),
        _ if is(verb, "channels") => {
            Err(refused_with(UNKNOWN_OR_WRONG, shown(verb, SHOWN_BYTES), "'. Try PUBSUB HELP."))
        }
        _ if is(verb, "numpat") => Err(wrong_number("pubsub", "numpat")),
        _ => Err(unknown_subcommand(arguments)),
    }
}

/// The channels that match a pattern, or all. The channel without a name matches no pattern, not even `*`.
fn find_channels<'b>(call: &mut Call<'_, '_>, pattern: Option<&[u8]>) -> Answer<'b> {
    let begun = call.client.collected.search.take();
    let mut search = begun.unwrap_or_else(|| Box::new(call.subscribers.channels().search()));
    let found = call.batch.aside(|| search.advance(pattern, &mut { COUNT_STEPS }));
    if search.found_bytes() > call.context.reply_bytes_max {
        return Err(refused("ERR the channels are more than a client may have outstanding: raise --client-bytes-max"));
    }
    match found {
        Some(found) => Ok(Reply::Array(found.into_iter().map(|name| Reply::bulk(name.into_vec())).collect())),
        None => {
            call.client.collected.search = Some(search);
            Err(Failure::Unfinished)
        }
    }
}
