//! The list of planted faults names code that is there: `perf/faults` replaces it.

use std::collections::HashSet;
use std::fs;

use toml::de::DeTable;

#[test]
fn every_planted_fault_replaces_code_that_its_file_has_once() {
    let list = fs::read_to_string("perf/faults.toml").unwrap();
    let list = DeTable::parse(&list).unwrap().into_inner();
    assert!(list.len() > 50, "{} files", list.len());
    let mut switched = HashSet::new();
    for (file, here) in list {
        let file = file.into_inner();
        let text = fs::read_to_string(&*file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let here = here.into_inner();
        assert!(here.as_table().unwrap().contains_key("it"), "{file}: which integration tests notice its faults?");
        let entries = here.as_table().unwrap().iter().map(|(name, entry)| (name.get_ref(), entry.get_ref()));
        let mut places: Vec<(usize, usize, usize)> = Vec::new();
        for (name, fault) in entries.filter(|(name, _)| !matches!(&***name, "it" | "constant")) {
            let [code, new] = [0, 1].map(|part| &fault.as_array().unwrap()[part]);
            let (code, entry) = (code.get_ref().as_str().unwrap(), code.span().start);
            assert_eq!(text.matches(code).count(), 1, "{file}: {name}: {code}");
            let start = text.find(code).unwrap();
            places.push((start, entry, start + code.len()));
            let mut words = new.get_ref().as_str().unwrap().split(|c: char| !c.is_alphanumeric() && c != '_');
            switched.extend(words.any(|word| word == "ON").then_some(entry));
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            let [(start, _, end), (next, entry, next_end)] = pair else { unreachable!() };
            let is_same = (start, end) == (next, next_end);
            assert!(is_same || end <= next, "{file}: faults at {start} and {next} overlap");
            // `perf/faults` puts the others of a place around the first one.
            assert!(
                !is_same || !switched.contains(entry),
                "{file}: of faults at one place, ON is for the first: {next}"
            );
        }
    }
}
