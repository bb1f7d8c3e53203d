//! Commands for many keys. Each key by itself is atomic. Long ones go in portions, so that others have their turns.

use crate::services::resp::answer::{Answer, Failure, OK, Reply, refused};
use crate::services::resp::arguments::Arguments;
use crate::services::resp::call::{Call, check_length, present};
use crate::tables::{Deadline, PORTION_BYTES};

pub(in super::super) fn mget<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let keys = arguments.behind(1);
    let Call { batch, client, .. } = call;
    let (done, mut values) = (client.progress.done(), Vec::new());
    let found = batch.get_many(&client.table, keys.iter().copied(), &client.progress, &mut values);
    let line = present(found)?.unwrap_or_else(|| {
        values.clear();
        0
    });
    if values.is_empty() {
        // There is no table, or it has gone.
        values.resize(keys.len() - done, None);
    }
    let mut bytes = 0;
    let portion = values.iter().take_while(|value| {
        bytes += value.map_or(0, <[u8]>::len);
        bytes <= PORTION_BYTES
    });
    let portion = portion.count().max(1);
    if !client.progress.has_begun() && portion < values.len() {
        client.progress.begin(line);
        values.truncate(portion);
    }
    let is_last = done + values.len() == keys.len();
    Ok(Reply::Values { total: (done == 0).then_some(keys.len()), values, is_last })
}

pub(in super::super) fn mset<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let (pairs, []) = arguments.behind(1).as_chunks::<2>() else {
        return Err(refused("ERR wrong number of arguments for 'mset' command"));
    };
    for [_, value] in pairs {
        check_length(value.len(), call.value_max())?;
    }
    let Call { batch, client, .. } = call;
    let pairs = pairs.iter().map(|[key, value]| (*key, *value));
    batch.update_many(&client.table, Deadline::NONE, pairs, &mut client.progress)?;
    Ok(OK)
}

pub(in super::super) fn del<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let Call { batch, client, .. } = call;
    let keys = arguments.behind(1).iter().copied();
    let deleted = present(batch.delete_many(&client.table, keys, &mut client.progress))?;
    Ok(Reply::count(deleted.unwrap_or_default().into_iter().filter(|is_deleted| *is_deleted).count()))
}

/// EXISTS and TOUCH: how many of the keys have elements. A key that is named twice counts twice.
pub(in super::super) fn exists<'b>(call: &'b mut Call<'_, '_>, arguments: Arguments<'b>) -> Answer<'b> {
    let found = arguments.behind(1).iter().map(|key| Ok(usize::from(call.get(key)?.is_some())));
    Ok(Reply::count(found.sum::<Result<usize, Failure>>()?))
}
