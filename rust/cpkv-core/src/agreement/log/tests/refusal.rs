//! What is refused: files that are not the wanted log, and words that nobody has written.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use super::*;
use crate::agreement::Verdict;
use crate::agreement::protocol;
use crate::agreement::protocol::Product;

/// What rank 1 is told after the file was changed.
fn refusal(change: impl FnOnce(&Path)) -> LogError {
    let place = Place::new();
    let _zero = place.create(TINY).expect("created");
    change(&place.log());
    place.join(1, TINY).expect_err("refused")
}

/// The field that differs, the value seen and the value wanted.
fn mismatch(error: &LogError) -> (&'static str, u64, u64) {
    let LogError::Mismatch { field, seen, wanted, .. } = *error else { panic!("{error}") };
    (field, seen, wanted)
}

/// What rank 1 is told after a word of the header was changed to 99.
fn header_refusal(word: u64) -> (&'static str, u64) {
    let error = refusal(|path| {
        let file = fs::OpenOptions::new().write(true).open(path).expect("opened");
        file.write_all_at(&99_u64.to_ne_bytes(), word * 8).expect("written");
    });
    let (field, seen, _) = mismatch(&error);
    (field, seen)
}

macro_rules! header_words {
    ($($test:ident: $word:expr, $field:expr;)*) => {$(
        #[test]
        fn $test() {
            assert_eq!(header_refusal($word), ($field, 99));
        }
    )*};
}

header_words! {
    a_wrong_magic_is_refused: 0, "magic";
    a_wrong_version_is_refused: 1, "version";
    a_wrong_byte_order_is_refused: 2, "byte order";
    a_wrong_number_of_ranks_is_refused: 3, "ranks";
    a_wrong_fingerprint_is_refused: 4, "fingerprint";
    a_wrong_nonce_is_refused: 5, "nonce";
    a_wrong_ring_of_reports_is_refused: 6, "reports of a ring";
    a_wrong_ring_of_entries_is_refused: 7, "entries";
    a_wrong_entry_is_refused: 8, "verdicts of an entry";
    a_wrong_number_of_words_is_refused: 9, "words";
}

#[test]
fn ranks_of_different_geometry_do_not_meet() {
    let place = Place::new();
    let _zero = place.create(TINY).expect("created");
    let join = |geometry| CommitLog::join_sized(&place.0, NAME, NONCE, 1, geometry, Duration::ZERO, TINY);
    let error = join(LogGeometry { fingerprint: 1, ..GEOMETRY }).expect_err("refused");
    assert_eq!(mismatch(&error), ("fingerprint", 0xabcd, 1));
    assert!(error.to_string().ends_with("fingerprint is 0xabcd, want 0x1"), "{error}");
    let error = join(LogGeometry { ranks: 4, ..GEOMETRY }).expect_err("refused");
    assert_eq!(mismatch(&error), ("ranks", 3, 4));
    join(GEOMETRY).expect("the right one");
}

#[test]
fn a_file_of_the_wrong_size_is_refused() {
    let resize = |bytes| {
        let error = refusal(|path| {
            let file = fs::OpenOptions::new().write(true).open(path).expect("opened");
            file.set_len(bytes).expect("resized");
        });
        mismatch(&error)
    };
    let bytes = Layout::new(0, GEOMETRY, TINY).expect("legal").bytes();
    assert_eq!(resize(bytes + 4096), ("size in bytes", bytes + 4096, bytes));
    assert_eq!(resize(512), ("size in bytes", 512, bytes));
    assert_eq!(resize(8), ("size in bytes", 8, bytes));
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let error = refusal(|path| fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("changed"));
    assert_eq!(mismatch(&error), ("mode", 0o666, 0o600));
}

#[test]
fn a_file_of_another_user_is_refused() {
    let place = Place::new();
    let _zero = place.create(TINY).expect("created");
    let files = Files::new(&place.0, NAME, NONCE).expect("legal");
    let user = rustix::process::geteuid().as_raw();
    files.open_as(&files.log(), user).expect("this user's").expect("there");
    let error = files.open_as(&files.log(), user + 1).expect_err("refused");
    assert_eq!(mismatch(&error), ("owner", user.into(), u64::from(user) + 1));
}

#[test]
fn links_directories_and_pipes_are_refused() {
    let replace = |make: &dyn Fn(&Path, &Path)| {
        let error = refusal(|path| {
            let moved = path.with_extension("moved");
            fs::rename(path, &moved).expect("moved");
            make(&moved, path);
        });
        assert!(matches!(error, LogError::NotRegular { .. }), "{error}");
    };
    replace(&|moved, path| symlink(moved, path).expect("linked"));
    replace(&|_, path| fs::create_dir(path).expect("made"));
    replace(&|_, path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    });
}

#[test]
fn a_log_is_never_made_through_a_link() {
    let place = Place::new();
    let target = place.0.join("target");
    symlink(&target, place.log()).expect("linked");
    assert!(matches!(place.create(TINY), Err(LogError::Exists { .. })));
    assert!(!target.exists());
    // Neither is the lock of a refused log left behind, nor is what was there removed.
    assert_eq!(place.files(), ["cpkv-test-000000000000feed.log"]);
}

#[test]
fn the_same_name_and_nonce_are_refused() {
    let place = Place::new();
    let zero = place.create(TINY).expect("created");
    assert!(matches!(place.create(TINY), Err(LogError::Exists { .. })));
    let _one = place.join(1, TINY).expect("joined");
    let twice = place.join(1, TINY).expect_err("refused");
    assert!(matches!(&twice, LogError::Exists { path } if path.ends_with("cpkv-test-000000000000feed.1.lock")));
    assert!(matches!(place.join(0, TINY), Err(LogError::Ranks { rank: 0, .. })));
    drop(zero);
    assert!(place.files().is_empty());
}

#[test]
fn servers_of_one_name_and_different_nonces_do_not_meet() {
    let place = Place::new();
    let geometry = LogGeometry { ranks: 2, fingerprint: 0 };
    let mut servers = [1, 2].map(|nonce| {
        let mut zero = CommitLog::create(&place.0, NAME, nonce, geometry).expect("created");
        let one = CommitLog::join(&place.0, NAME, nonce, 1, geometry, Duration::ZERO).expect("joined");
        zero.wait_for_all(Duration::ZERO).expect("all are here");
        (zero, one)
    });
    for (index, (zero, one)) in (0..).zip(&mut servers) {
        one.report([report(index, Fact::Failed)]).expect("reported");
        zero.write_entry().expect("written");
    }
    for (index, (_, one)) in (0..).zip(&mut servers) {
        let mut verdicts: Vec<Verdict> = Vec::new();
        one.read_entry(&mut verdicts).expect("read");
        assert!(verdicts.into_iter().map(|verdict| verdict.operation).eq([operation(index)]));
    }
}

#[test]
fn what_a_dead_server_left_behind_is_not_met() {
    let place = Place::new();
    let dead = place.0.join("dead");
    {
        let _zero = place.create(TINY).expect("created");
        fs::copy(place.log(), &dead).expect("copied");
    }
    // With another nonce it is not even looked at.
    fs::rename(&dead, place.log()).expect("moved");
    let lock = Files::new(&place.0, NAME, NONCE).expect("legal").lock(0);
    fs::write(place.0.join(&lock), "").expect("written");
    fs::set_permissions(place.0.join(&lock), fs::Permissions::from_mode(0o600)).expect("changed");
    let other = CommitLog::create(&place.0, NAME, NONCE + 1, GEOMETRY).expect("created");
    drop(other);
    assert_eq!(place.files().len(), 2);
    // With the same one it is known to be dead, and in the way of a new one.
    assert!(matches!(place.join(1, TINY), Err(LogError::Dead { rank: 0 })));
    assert!(matches!(place.create(TINY), Err(LogError::Exists { .. })));
}

#[test]
fn a_log_that_is_not_finished_is_waited_for() {
    let place = Place::new();
    assert!(matches!(place.join(1, TINY), Err(LogError::NotReady { .. })));
    let file =
        Files::new(&place.0, NAME, NONCE).expect("legal").create("cpkv-test-000000000000feed.log").expect("made");
    assert!(matches!(place.join(1, TINY), Err(LogError::NotReady { .. })));
    rustix::fs::ftruncate(&file, Layout::new(0, GEOMETRY, TINY).expect("legal").bytes()).expect("resized");
    assert!(matches!(place.join(1, TINY), Err(LogError::NotReady { .. })));
}

#[test]
fn a_file_system_without_room_is_an_error() {
    let place = Place::new();
    let geometry = LogGeometry { ranks: 64, fingerprint: 0 };
    let sizes = Sizes { reports: u32::MAX, ..TINY };
    let error = CommitLog::create_sized(&place.0, NAME, NONCE, geometry, sizes).expect_err("2 TiB");
    assert!(matches!(error, LogError::NoRoom { .. }), "{error}");
    assert!(place.files().is_empty());
}

#[test]
fn names_that_are_no_file_names_are_refused() {
    let place = Place::new();
    for name in ["", "a/b", "..\0", "ä", &"x".repeat(101)] {
        let log = CommitLog::create(&place.0, name, NONCE, GEOMETRY);
        assert!(matches!(log, Err(LogError::Name { .. })), "{name:?}");
    }
}

#[test]
fn a_log_loses_its_name_when_all_have_joined_and_leaves_nothing() {
    let place = Place::new();
    let mut ranks = place.ranks(TINY);
    assert_eq!(place.files(), [0, 1, 2].map(|rank| format!("cpkv-test-000000000000feed.{rank}.lock")));
    for log in &mut ranks {
        log.wait_for_all(Duration::ZERO).expect("all are here");
    }
    ranks.iter().for_each(CommitLog::remove_name);
    assert!(place.files().is_empty());
    drop(ranks);
    assert!(place.files().is_empty());
}

// --- Words that nobody has written ---

/// The word that a call names as corrupt.
fn corrupt(result: Result<(), LogError>) -> &'static str {
    match result.expect_err("corrupt") {
        LogError::Corrupt { word, .. } => word,
        other => panic!("{other}"),
    }
}

#[test]
fn a_corrupt_report_ring_is_found() {
    let place = Place::new();
    let [mut zero, mut one, _two] = place.ranks(TINY);
    for head in [3, u64::MAX] {
        one.memory.reports(1).head.store(head, Ordering::Relaxed);
        assert_eq!(corrupt(one.report([report(1, Fact::Landed)])), "head of a report ring");
    }
    for tail in [3, u64::MAX] {
        one.memory.reports(1).tail.store(tail, Ordering::Relaxed);
        assert_eq!(corrupt(zero.write_entry()), "tail of a report ring");
    }
    one.memory.reports(1).tail.store(1, Ordering::Relaxed);
    one.memory.reports(1).bodies[0].store(u64::MAX, Ordering::Relaxed);
    assert_eq!(corrupt(zero.write_entry()), "kind of a report");
}

#[test]
fn a_corrupt_entry_is_found() {
    let place = Place::new();
    let [mut zero, mut one, _two] = place.ranks(TINY);
    zero.report([report(1, Fact::Failed)]).expect("reported");
    zero.write_entry().expect("written");
    let mut verdicts = Vec::new();
    let number = |log: &CommitLog, number| log.memory.entry(0).number.store(number, Ordering::Relaxed);
    for later in [2, u64::MAX] {
        number(&one, later);
        assert_eq!(corrupt(one.read_entry(&mut verdicts)), "number of an entry");
    }
    number(&one, 1);
    for count in [0, 3, u64::MAX] {
        one.memory.entry(0).bodies[0].store(count, Ordering::Relaxed);
        assert_eq!(corrupt(one.read_entry(&mut verdicts)), "count of an entry");
    }
    one.memory.entry(0).bodies[0].store(2, Ordering::Relaxed);
    one.memory.entry(0).bodies[2].store(7, Ordering::Relaxed);
    assert_eq!(corrupt(one.read_entry(&mut verdicts)), "kind of a verdict");
    assert!(verdicts.is_empty());
}

#[test]
fn a_corrupt_rank_is_found() {
    let place = Place::new();
    let [mut zero, one, _two] = place.ranks(TINY);
    for _ in 0..2 {
        zero.write_entry().expect("written");
        zero.read_entry(&mut Vec::new()).expect("read");
    }
    protocol::applied::<Product>(one.memory.applied(1), 3);
    assert_eq!(corrupt(zero.write_entry()), "applied count of a rank");
}

#[test]
fn a_state_that_cannot_be_is_found() {
    let place = Place::new();
    let [mut zero, mut one, _two] = place.ranks(TINY);
    one.memory.state(2).store(4, Ordering::Relaxed);
    assert_eq!(corrupt(one.read_entry(&mut Vec::new())), "state of a rank");
    assert_eq!(corrupt(zero.wait_for_all(LONG)), "state of a rank");
}
