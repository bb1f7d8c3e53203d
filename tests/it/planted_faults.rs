//! The list of planted faults names code that is there: `perf/faults` replaces it.

use std::fs;

use toml::de::DeTable;

#[test]
fn every_planted_fault_replaces_code_that_its_file_has_once() {
    let list = fs::read_to_string("perf/faults.toml").unwrap();
    let list = DeTable::parse(&list).unwrap().into_inner();
    assert!(list.len() > 50, "{} files", list.len());
    for (file, here) in list {
        let file = file.into_inner();
        let text = fs::read_to_string(&*file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let here = here.into_inner();
        let entries = here.as_table().unwrap().iter().map(|(name, entry)| (name.get_ref(), entry.get_ref()));
        for (name, fault) in entries.filter(|(name, _)| !matches!(&***name, "it" | "constant")) {
            let code = fault.as_array().unwrap()[0].get_ref().as_str().unwrap();
            assert_eq!(text.matches(code).count(), 1, "{file}: {name}: {code}");
        }
    }
}
