//! The cores that workers are pinned to, as typed.

use crate::server::Pin;

/// Bound of the numbers of cores: more than the largest host has.
const CORES_MAX: usize = 1 << 16;

/// Parses `auto`, `off`, or numbers and ranges of cores.
pub(crate) fn pin(typed: &str) -> Result<Pin, String> {
    match typed {
        "auto" => Ok(Pin::Auto),
        "off" => Ok(Pin::Off),
        list => {
            let cores: Option<Vec<Vec<usize>>> = list.split(',').map(cores).collect();
            cores.map(|cores| Pin::Cores(cores.concat())).ok_or("cores are auto, off, or a list as 0,2,4-7".to_owned())
        }
    }
}

/// One core, or a range of them, both ends included.
fn cores(typed: &str) -> Option<Vec<usize>> {
    let (first, last) = typed.split_once('-').unwrap_or((typed, typed));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < CORES_MAX).then(|| (first..=last).collect())
}
