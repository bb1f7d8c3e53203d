//! Commands about transactions: what is watched and queued. EXEC itself is in `exec.rs`.

use crate::services::resp::answer::{Answer, Failure, OK, Reply, refused};
use crate::services::resp::arguments::Arguments;
use crate::services::resp::call::{Call, present};
use crate::services::resp::client::database_of;
use crate::services::resp::transaction::{CommandQueue, WatchedKey, bytes_of};

/// The beginning of each refusal of EXEC.
pub(in super::super) const ABORTED: &str = "EXECABORT Transaction discarded";

/// Whether a command is carried out at once, although others are queued.
pub(in super::super) fn is_immediate(name: &str) -> bool {
    matches!(name, "multi" | "exec" | "discard" | "watch" | "quit" | "reset")
}

/// Refuses what makes a transaction longer than a client may have outstanding.
fn check_room(call: &Call<'_, '_>, bytes: usize) -> Result<(), Failure> {
    if call.client.held_bytes() + bytes > call.context.reply_bytes_max {
        return Err(refused(
            "ERR the transaction has more bytes than a client may have outstanding: raise --client-bytes-max",
        ));
    }
    Ok(())
}

/// Queues a command, whose number is known.
pub(in super::super) fn queue(
    call: &mut Call<'_, '_>,
    number: Option<usize>,
    name: &str,
    arguments: Arguments<'_>,
) -> Result<Reply<'static>, Failure> {
    if let Err(failure) = check_room(call, bytes_of(arguments.0)) {
        call.client.refuse_transaction();
        return Err(failure);
    }
    let selected = match arguments.behind(1) {
        [table]
            if name == "select" && (database_of(table).is_some() || present(call.batch.count(table))?.is_some()) =>
        {
            Some(Box::from(*table))
        }
        _ => None,
    };
    let queue = call.client.collected.transaction.as_mut().and_then(|transaction| transaction.queue.as_mut());
    if let (Some(queue), Some(number)) = (queue, number) {
        if !queue.is_refused {
            queue.commands.push(number, arguments.0);
        }
        queue.table = selected.unwrap_or_else(|| std::mem::take(&mut queue.table));
    }
    Ok(Reply::Simple("QUEUED"))
}

pub(in super::super) fn multi<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    if call.client.is_collecting() {
        return Err(refused("ERR MULTI calls can not be nested"));
    }
    let queue = CommandQueue::new(&call.client.table);
    call.client.collected.transaction.get_or_insert_default().queue = Some(queue);
    Ok(OK)
}

/// EXEC is not handed to a handler: its reply is that of several commands.
pub(in super::super) fn exec<'b>(_: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    Err(refused("ERR EXEC without MULTI"))
}

pub(in super::super) fn discard<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    if !call.client.is_collecting() {
        return Err(refused("ERR DISCARD without MULTI"));
    }
    call.client.collected.transaction = None;
    Ok(OK)
}

pub(in super::super) fn watch<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    if call.client.is_collecting() {
        return Err(refused("ERR WATCH inside MULTI is not allowed"));
    }
    check_room(call, arguments.behind(1).iter().map(|key| bytes_of(&[&call.client.table, key])).sum())?;
    let table = call.client.table.clone();
    let versions: Vec<u64> =
        arguments.behind(1).iter().map(|key| version(call, &table, key)).collect::<Result<_, _>>()?;
    let transaction = call.client.collected.transaction.get_or_insert_default();
    for (key, version) in arguments.behind(1).iter().zip(versions) {
        transaction.watch(WatchedKey { table: table.clone(), key: (*key).into() }, version);
    }
    Ok(OK)
}

/// The version of a key, 0 if it has no element.
pub(in super::super) fn version(call: &mut Call<'_, '_>, table: &[u8], key: &[u8]) -> Result<u64, Failure> {
    Ok(present(call.batch.element(table, key))?.map_or(0, |element| element.version))
}

pub(in super::super) fn unwatch<'b>(call: &'b mut Call<'_, '_>, _: Arguments<'b>) -> Answer<'b> {
    call.client.collected.transaction = None;
    Ok(OK)
}
