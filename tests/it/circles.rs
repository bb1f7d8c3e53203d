//! Modules of one folder import each other in no circle: each can be read after those that it names.
//!
//! An import of a module counts for all folders around it: `tables::slot::entry` that names `tables::change` makes
//! `tables::slot` import `tables::change`. Modules that are only built for tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::paths;

/// A module, by its segments from the crate's root.
type Module = Vec<String>;
/// Imports among the children of one module.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The circles among siblings, each as the chain of its modules. `sources` are the modules with their code, without
/// comments, literals and tests.
pub(crate) fn circles(sources: &[(Module, String)]) -> Vec<String> {
    let modules: BTreeSet<&[String]> = sources.iter().map(|(module, _)| &**module).collect();
    let mut siblings: BTreeMap<Module, Imports> = BTreeMap::new();
    for (module, code) in sources {
        for named in paths(code) {
            let Some(target) = target(module, &named.segments, &modules) else { continue };
            let common = module.iter().zip(&target).take_while(|(own, other)| own == other).count();
            let (Some(own), Some(other)) = (module.get(common), target.get(common)) else { continue };
            let imports = siblings.entry(module[..common].to_vec()).or_default();
            imports.entry(own.clone()).or_default().insert(other.clone());
        }
    }
    let circle = |(parent, imports): (&Module, &Imports)| {
        let chain = imports.keys().find_map(|module| way_back(module, imports))?;
        Some([parent.join("::"), chain.join(" -> ")].join(": "))
    };
    siblings.iter().filter_map(circle).collect()
}

/// The module that a path inside `module` names.
fn target(module: &[String], segments: &[String], modules: &BTreeSet<&[String]>) -> Option<Module> {
    let ups = segments.iter().take_while(|segment| *segment == "super").count();
    let mut target = match segments.first()?.as_str() {
        "crate" => segments[1..].to_vec(),
        "super" if ups <= module.len() => [&module[..module.len() - ups], &segments[ups..]].concat(),
        _ => return None,
    };
    while !target.is_empty() && !modules.contains(&*target) {
        target.pop();
    }
    Some(target)
}

/// A shortest chain of imports from a module back to itself.
fn way_back(module: &str, imports: &Imports) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut chains = vec![vec![module.to_owned()]];
    while !chains.is_empty() {
        let mut longer = Vec::new();
        for chain in chains {
            for next in chain.last().and_then(|last| imports.get(last)).into_iter().flatten() {
                let chain = [&chain[..], std::slice::from_ref(next)].concat();
                if next == module {
                    return Some(chain);
                }
                if seen.insert(next.clone()) {
                    longer.push(chain);
                }
            }
        }
        chains = longer;
    }
    None
}

#[test]
fn a_circle_is_found_however_its_imports_are_written() {
    let found = |sources: &[(&str, &str)]| {
        let module = |path: &str| path.split("::").map(str::to_owned).collect();
        let sources = sources.iter().map(|(path, code)| (module(path), (*code).to_owned()));
        circles(&sources.collect::<Vec<_>>())
    };
    let [a, c] = [("t::a", "use super::b::B;"), ("t::c", "fn f() { crate::t::a::f(); }")];
    assert_eq!(found(&[a, ("t::b", "use super::{c, d::D};"), c]), ["t: a -> b -> c -> a"]);
    assert_eq!(found(&[a, ("t::b", "use super::B; use crate::t::b::inner::X;"), c]), [""; 0]);
    assert_eq!(found(&[a, ("t::b", ""), ("t::b::inner", "use super::super::a::A;")]), ["t: a -> b -> a"]);
    assert_eq!(found(&[a, ("t", "use crate::t::a::A;"), ("u", "use crate::t::a::A;")]), [""; 0]);
}
