//! The table in `docs/memory-ordering.md` names every model, and every model is in it.

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../docs/memory-ordering.md");
const MODELS: [(&str, &str); 4] = [
    ("ack_words", include_str!("ack_words.rs")),
    ("entries", include_str!("entries.rs")),
    ("reports", include_str!("reports.rs")),
    ("states", include_str!("states.rs")),
];
const ORDERINGS: &str = include_str!("../../cpkv-core/src/agreement/protocol/orderings.rs");

/// Names in back quotes that look like `file::test`.
fn named() -> BTreeSet<&'static str> {
    TABLE.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect()
}

fn written() -> BTreeSet<String> {
    let tests = |(file, source): (&'static str, &'static str)| {
        let name = move |test: &str| {
            let name = test.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function").0;
            format!("{file}::{name}")
        };
        source.split("#[test]").skip(1).map(name).collect::<Vec<_>>()
    };
    MODELS.into_iter().flat_map(tests).collect()
}

#[test]
fn every_model_of_the_table_exists() {
    let written = written();
    let missing: Vec<_> = named().into_iter().filter(|&name| !written.contains(name)).collect();
    assert!(missing.is_empty(), "not written: {missing:?}");
}

#[test]
fn every_model_is_in_the_table() {
    let named = named();
    let missing: Vec<_> = written().into_iter().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/memory-ordering.md: {missing:?}");
}

#[test]
fn every_ordering_has_a_control_and_its_rule_in_the_table() {
    let accesses = ORDERINGS.split("const ").skip(1).map(|rest| rest.split_once(':').expect("a type").0);
    let weakened = include_str!("weakened.rs");
    for access in accesses {
        let control = weakened.lines().find_map(|line| line.strip_suffix(&format!(": {access};"))).expect(access);
        let is_used = MODELS.iter().any(|(_, source)| source.contains(&format!("::<{}", control.trim())));
        assert!(is_used, "no negative control weakens {access}");
    }
    for line in ORDERINGS.lines().filter_map(|line| line.trim().strip_prefix("/// ")) {
        if let Some((rule, _)) = line.split_once(": ").filter(|(rule, _)| rule.contains("-before-")) {
            assert!(TABLE.contains(rule), "{rule} is not in docs/memory-ordering.md");
        }
    }
}
