//! Commands that are transactions by themselves: an element gets another key, or several keys get their elements together.

use crate::feed::Cause;
use crate::security::{Access, Resource};
use crate::services::resp::answer::{Answer, Failure, OK, Reply, SYNTAX, refused};
use crate::services::resp::arguments::{Arguments, is, number};
use crate::services::resp::call::{Call, check_length, present};
use crate::services::resp::client::database_of;
use crate::services::resp::needs::Needs;
use crate::tables::{Deadline, Edit, ManyProgress, Refusal};

/// Carries `run` out as a transaction in these tables, unless one is being carried out.
pub(super) fn atomically<R>(
    call: &mut Call<'_, '_>,
    arguments: Arguments<'_>,
    tables: &[&[u8]],
    run: impl FnOnce(&mut Call<'_, '_>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    if call.batch.is_in_transaction() {
        return run(call);
    }
    // A command has more arguments than it changes elements.
    call.batch.keep_credits(arguments.0.len())?;
    call.batch.latch(tables)?;
    let mut needs = Needs::default();
    let table = call.client.table.clone();
    needs.add(call, &table, &arguments.name(), arguments)?;
    call.batch.begin_transaction(needs.sum())?;
    let done = run(call);
    call.batch.end_transaction();
    done
}

/// An element that gets another key.
struct Moved {
    value: Vec<u8>,
    deadline: Deadline,
    /// Why it is stored.
    cause: Cause,
}

/// The element of a key.
fn element(call: &mut Call<'_, '_>, key: &[u8], cause: Cause) -> Result<Option<Moved>, Failure> {
    let element = call.element(key)?;
    let deadline = |at: Option<u64>| at.map_or(Deadline::NONE, Deadline::at);
    Ok(element.map(|element| Moved { value: element.value.to_vec(), deadline: deadline(element.deadline), cause }))
}

/// Stores an element under a key. Nobody else changes the table meanwhile.
fn store(call: &mut Call<'_, '_>, table: &[u8], key: &[u8], moved: &Moved) -> Result<(), Failure> {
    let Moved { value, deadline, cause } = moved;
    let stored = call.batch.insist(|batch| {
        let edit = |_| (Edit::Store { value, deadline: *deadline, cause: *cause }, ());
        batch.edit(table, key, edit).map(drop)
    });
    Ok(stored?)
}

pub(in super::super) fn rename<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    move_key(call, arguments, true).map(|_| OK)
}

pub(in super::super) fn renamenx<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    move_key(call, arguments, false).map(Reply::from)
}

/// Moves an element to another key. Returns whether it has moved.
fn move_key(call: &mut Call<'_, '_>, arguments: Arguments<'_>, replaces: bool) -> Result<bool, Failure> {
    let [from, to] = arguments.exactly()?;
    let table = call.client.table.clone();
    atomically(call, arguments, &[&table], |call| {
        let moved = element(call, from, Cause::RenameTo)?.ok_or_else(|| refused("ERR no such key"))?;
        if from == to || !replaces && call.element(to)?.is_some() {
            return Ok(false);
        }
        present(call.batch.insist(|batch| batch.delete_for(&table, from, Cause::RenameFrom)))?;
        store(call, &table, to, &moved)?;
        Ok(true)
    })
}

/// What COPY is asked for.
struct CopyOptions {
    replaces: bool,
    table: Box<[u8]>,
}

impl CopyOptions {
    fn parse(call: &Call<'_, '_>, mut options: &[&[u8]]) -> Result<Self, Failure> {
        let mut parsed = Self { replaces: false, table: call.client.table.clone() };
        while let Some((option, rest)) = options.split_first() {
            options = rest;
            if is(option, "replace") {
                parsed.replaces = true;
                continue;
            }
            let (database, behind) = rest.split_first().filter(|_| is(option, "db")).ok_or(SYNTAX)?;
            let database = number(database)?.to_string();
            if database_of(database.as_bytes()).is_none() {
                return Err(refused("ERR DB index is out of range"));
            }
            (parsed.table, options) = (database.into_bytes().into(), behind);
        }
        Ok(parsed)
    }
}

pub(in super::super) fn copy<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let ([from, to], options) = arguments.split()?;
    let CopyOptions { replaces, table } = CopyOptions::parse(call, options)?;
    let own = call.client.table.clone();
    if from == to && table == own {
        return Err(refused("ERR source and destination objects are the same"));
    }
    if let Some(user) = &call.client.user
        && !user.may(Access::Write, Resource::Table(&table))
    {
        user.note_denied();
        return Err(refused(format!("NOPERM User {} has no permissions to run the 'copy' command", user.name())));
    }
    if !call.batch.is_in_transaction() && call.element(from)?.is_some() {
        call.make_database(&table)?;
    }
    let is_copied = atomically(call, arguments, &[&own, &table], |call| {
        let Some(moved) = element(call, from, Cause::CopyTo)? else { return Ok(false) };
        if !replaces && present(call.batch.element(&table, to))?.is_some() {
            return Ok(false);
        }
        if call.batch.count(&table).is_err() {
            let durability = call.durability();
            match call.batch.insist(|batch| batch.create_table_with(&table, &table, None, Some(durability))) {
                Ok(()) | Err(Refusal::TableExists) => {}
                Err(refusal) => return Err(refusal.into()),
            }
        }
        store(call, &table, to, &moved)?;
        Ok(true)
    })?;
    Ok(Reply::from(is_copied))
}

pub(in super::super) fn msetnx<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let (pairs, []) = arguments.behind(1).as_chunks::<2>() else {
        return Err(refused("ERR wrong number of arguments for 'msetnx' command"));
    };
    for [_, value] in pairs {
        check_length(value.len(), call.value_max())?;
    }
    let table = call.client.table.clone();
    // Before the latch: a table that is missing is made, and the command comes again.
    call.batch.count(&table)?;
    let is_stored = atomically(call, arguments, &[&table], |call| {
        for [key, _] in pairs {
            if call.element(key)?.is_some() {
                return Ok(false);
            }
        }
        let pairs = pairs.iter().map(|[key, value]| (*key, *value));
        let mut progress = ManyProgress::default();
        loop {
            match call.batch.update_many(&table, Deadline::NONE, pairs.clone(), &mut progress) {
                Ok(()) => return Ok(true),
                Err(Refusal::Unfinished) => {}
                Err(Refusal::Busy) => call.batch.wait(),
                Err(refusal) => return Err(refusal.into()),
            }
        }
    })?;
    Ok(Reply::from(is_stored))
}
