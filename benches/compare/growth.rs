//! Growth: the native frontend with ever more keys, and with ever more connections.
//!
//! The processor time of the server for a request says more than the rate on a machine that server and load share: it
//! does not depend on the process that gets the cores.

use crate::report::Report;
use crate::shape::{alternate, middle};
use crate::side::{Round, Side};
use crate::{CONNECTIONS, DEPTHS, Plan};

const KEYS: [u32; 3] = [10_000, 1_000_000, 20_000_000];
/// Connections, and the keys that they use.
const MANY: [usize; 2] = [200, 2_000];
const KEYS_OF_MANY: u32 = 1_000_000;
/// Requests outstanding on all connections together, at most: the load holds that many.
const OUTSTANDING_MAX: usize = 32_000;
const VALUE_BYTES: usize = 64;

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    report.write(
        "## Growth\n\n`--frontend native --publish off`, all else by default. Keys of 16 bytes, values of 64, uniform. Thousands of requests a second, and in \
         brackets nanoseconds of the server's processor time for each.",
    );
    let heads = DEPTHS.iter().flat_map(|depth| ["GET", "SET"].map(|verb| format!("{verb}, depth {depth}")));
    let mut rows = vec![std::iter::once(String::new()).chain(heads).collect::<Vec<_>>()];
    for keys in KEYS {
        let side = [Side::spindle(&["--publish", "off", "--frontend", "native"])];
        side[0].fill(keys, VALUE_BYTES);
        rows.push(row(plan, report, &side, (keys, CONNECTIONS)));
        if keys == KEYS_OF_MANY {
            rows.extend(MANY.map(|connections| row(plan, report, &side, (keys, connections))));
        }
    }
    report.table(&rows);
}

fn row(plan: &Plan, report: &mut Report, side: &[Side; 1], (keys, connections): (u32, usize)) -> Vec<String> {
    let name = format!("{keys} keys, {connections} connections");
    let mut row = vec![name.clone()];
    for depth in DEPTHS {
        for verb in ["get", "set"] {
            if depth * connections > OUTSTANDING_MAX {
                row.push("–".to_owned());
                continue;
            }
            let flags = format!(
                "--mix {verb}=1 --depth {depth} --connections {connections} --keys {keys} --value-size {VALUE_BYTES} --warm-up 0 --seconds {}",
                plan.seconds
            );
            let rounds = alternate(plan, side, &format!("{name}, {verb}, depth {depth}"), &flags, report);
            let rate = middle(&rounds[0], |round: &Round| round.rate) / 1e3;
            let nanos = middle(&rounds[0], |round: &Round| round.cost() - round.load_cost());
            row.push(format!("{rate:.0} ({nanos:.0})"));
        }
    }
    row
}
