//! The table in `docs/memory-ordering.md` names every model, and every model is in it; and no atomic of the product
//! is where that does not say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

/// The sources of the product, without their tests.
fn sources() -> Vec<PathBuf> {
    let rust = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of the workspace");
    let mut folders: Vec<PathBuf> = ["cpkv-core/src", "cpkv-py/src"].iter().map(|folder| rust.join(folder)).collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder of sources") {
            let path = entry.expect("a file or folder").path();
            let is_test = ["tests", "tests.rs", "model"].iter().any(|name| path.ends_with(name));
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                sources.push(path.strip_prefix(rust).expect("it is below").to_owned());
            }
        }
    }
    assert!(sources.len() > 60, "{sources:?}");
    sources
}

fn read(source: &Path) -> String {
    let rust = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of the workspace");
    std::fs::read_to_string(rust.join(source)).expect("a source")
}

/// The names of the fields and statics of a source that are atomics, or have some.
fn fields(source: &str) -> BTreeSet<String> {
    let field = |line: &str| {
        let (name, of) = line.trim().split_once(": ")?;
        let name = name.rsplit(' ').next()?;
        let is_name = !name.is_empty() && name.chars().all(|it| it.is_alphanumeric() || it == '_');
        // Not one that is only referred to, nor the parameter of a function or the line of a list.
        let is_own = of.contains("Atomic") && !of.contains(['&', '(']) && (of.ends_with(',') || of.contains('='));
        (is_name && is_own).then(|| name.to_owned())
    };
    source.lines().filter_map(field).collect()
}

#[test]
fn every_atomic_of_the_core_is_where_the_table_says() {
    let core = sources().into_iter().filter(|source| source.starts_with("cpkv-core"));
    let lock_free = Path::new("cpkv-core/src/agreement");
    for path in core {
        let source = read(&path);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let is_protocol = path.starts_with(lock_free.join("protocol"));
        if source.contains("sync::atomic") {
            assert!(path == lock_free.join("sync.rs"), "{}: atomics come from agreement/sync.rs", path.display());
        }
        let is_accessed = source.lines().any(|line| line.contains("Ordering::Re") || line.contains("Ordering::Acq"));
        assert!(!is_accessed || is_protocol, "{}: accesses are in agreement/protocol", path.display());
        if source.contains("Atomic") && !is_protocol && name != "sync.rs" {
            assert!(path.starts_with(lock_free), "{}: it is not lock-free", path.display());
            assert!(TABLE.contains(&format!("`{name}`")), "{} is not in docs/memory-ordering.md", path.display());
        }
    }
}

#[test]
fn the_atomics_of_the_binding_are_those_that_are_listed() {
    let binding = sources().into_iter().filter(|source| source.starts_with("cpkv-py"));
    let mut found = BTreeSet::new();
    for path in binding {
        let (source, name) = (read(&path), path.file_name().and_then(|name| name.to_str()).expect("a name"));
        let own = fields(&source);
        assert!(source.contains("Atomic") != own.is_empty(), "{}: an atomic that is no field", path.display());
        found.extend(own.into_iter().map(|field| (name.to_owned(), field)));
    }
    // The rows of the section on the binding, if there is one.
    let section = TABLE.split("\n## ").find(|section| section.starts_with("In the binding"));
    let rows =
        section.into_iter().flat_map(str::lines).filter_map(|line| line.strip_prefix("| `")?.split_once("` | `"));
    let listed = rows.map(|(field, rest)| (rest.split('`').next().expect("a file").to_owned(), field.to_owned()));
    assert_eq!(listed.collect::<BTreeSet<_>>(), found, "listed in docs/memory-ordering.md, and found");
}
