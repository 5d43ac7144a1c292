//! The commit log between processes: this program starts itself again, once for each rank.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use cpkv_core::{CommitLog, Fact, LogError, LogGeometry, OperationId, Patience, Report, Ruling, Verdict};
use rustix::process::{Pid, Signal, kill_process};

const RANKS: u32 = 4;
const NONCE: u64 = 77;
/// For what must not happen to take so long.
const LONG: Duration = Duration::from_secs(20);
/// What a rank that is stepping writes when it has come far enough.
const STEADY: &str = "steady";

const PLACE: &str = "CPKV_TEST_LOG_DIRECTORY";
const RANK: &str = "CPKV_TEST_LOG_RANK";
const SCENARIO: &str = "CPKV_TEST_LOG_SCENARIO";
const DEADLINE: &str = "CPKV_TEST_LOG_DEADLINE_MS";

// --- The side of the ranks ---

/// A small generator, one for each rank.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
#[ignore = "one rank of the other tests, which start it"]
fn rank_process() {
    let Ok(place) = env::var(PLACE).map(PathBuf::from) else { return };
    let number = |name| env::var(name).expect("set by the test").parse::<u64>().expect("a number");
    let rank = u32::try_from(number(RANK)).expect("a rank");
    let geometry = LogGeometry { ranks: RANKS, fingerprint: 5 };
    let mut log = if rank == 0 {
        CommitLog::create(&place, "processes", NONCE, geometry).expect("created")
    } else {
        CommitLog::join(&place, "processes", NONCE, rank, geometry, LONG).expect("joined")
    };
    log.wait_for_all(LONG).expect("all join");
    meet(&place, rank);
    log.remove_name();
    let deadline = Duration::from_millis(number(DEADLINE));
    log.set_patience(Patience { warning: deadline, deadline });
    let result = match env::var(SCENARIO).expect("set by the test").as_str() {
        "exchange" => exchange(&mut log),
        "step" => step_until_error(&mut log),
        other => panic!("no scenario {other}"),
    };
    fs::write(place.join(format!("result.{rank}")), result).expect("written");
}

/// Returns when all ranks have called it.
fn meet(place: &Path, rank: u32) {
    let here = |rank| place.join(format!("here.{rank}"));
    fs::write(here(rank), "").expect("written");
    while !(0..RANKS).all(|rank| here(rank).exists()) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A step of the manager: entries are read a step after they were written.
fn step(log: &mut CommitLog, step: u64, verdicts: &mut Vec<Verdict>) -> Result<(), LogError> {
    if log.rank() == 0 {
        log.write_entry()?;
    }
    if step > 0 {
        log.read_entry(verdicts)?;
    }
    Ok(())
}

const OPERATIONS: u32 = 20_000;
const OPENED_A_STEP: u32 = 40;

/// What `rank` will report of operation `index`, in order.
fn facts(index: u32, rank: u32) -> &'static [Fact] {
    let is_bad = index / 8 % RANKS == rank;
    match (index % 8, is_bad) {
        (0, true) => &[Fact::Failed, Fact::Ended],
        (1, true) => &[Fact::Failed, Fact::Stuck, Fact::Ended],
        (1, false) | (2, true) => &[Fact::Ended],
        // Said twice by one rank: harmless, also when it is late.
        (3, true) => &[Fact::Landed, Fact::Landed],
        _ => &[Fact::Landed],
    }
}

/// Opens the same operations on all ranks and reports them at times of its own; what was decided.
fn exchange(log: &mut CommitLog) -> String {
    let rank = log.rank();
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(rank));
    let mut open: Vec<(OperationId, VecDeque<Fact>)> = Vec::new();
    let (mut verdicts, mut opened, mut steps, mut over) = (Vec::new(), 0, 0, 0);
    while over < OPERATIONS {
        for index in opened..OPERATIONS.min(opened + OPENED_A_STEP) {
            let operation = OperationId { index, generation: index.wrapping_mul(0x9e37_79b9) };
            open.push((operation, facts(index, rank).iter().copied().collect()));
        }
        opened = OPERATIONS.min(opened + OPENED_A_STEP);
        for _ in 0..random.below(100) {
            if open.is_empty() {
                break;
            }
            let index = usize::try_from(random.below(open.len() as u64)).expect("an index");
            let (operation, facts) = &mut open[index];
            if let Some(fact) = facts.pop_front() {
                log.report([Report { operation: *operation, fact }]).expect("reported");
            } else {
                open.swap_remove(index);
            }
        }
        // Ranks are skewed; nothing depends on how.
        match random.below(40) {
            0 => thread::sleep(Duration::from_micros(random.below(1_000))),
            1..10 => thread::yield_now(),
            _ => {}
        }
        let before = verdicts.len();
        step(log, steps, &mut verdicts).expect("all ranks live");
        steps += 1;
        let is_last = |verdict: &&Verdict| matches!(verdict.ruling, Ruling::Landed | Ruling::Drained);
        over += u32::try_from(verdicts[before..].iter().filter(is_last).count()).expect("few");
    }
    let line = |verdict: &Verdict| format!("{} {:?}\n", verdict.operation, verdict.ruling);
    format!("{steps} steps\n{}", verdicts.iter().map(line).collect::<String>())
}

/// Steps until a rank is gone, and says how that is seen here.
fn step_until_error(log: &mut CommitLog) -> String {
    let mut verdicts = Vec::new();
    for steps in 0.. {
        if steps == 200 {
            writeln!(std::io::stdout(), "{STEADY}").expect("the test listens");
        }
        if let Err(error) = step(log, steps, &mut verdicts) {
            return format!("{error:?}");
        }
    }
    unreachable!("an endless loop")
}

// --- The side of the tests ---

/// A running group; killed at the end of its test.
struct Group {
    place: PathBuf,
    ranks: Vec<Child>,
}

impl Group {
    fn start(scenario: &str, deadline: Duration) -> Self {
        let shared = Path::new(CommitLog::USUAL_DIRECTORY);
        let parent = if shared.is_dir() { shared.to_owned() } else { env::temp_dir() };
        let name = thread::current().name().expect("a test has a name").to_owned();
        let place = parent.join(format!("cpkv-test-{}-{name}", std::process::id()));
        fs::create_dir(&place).expect("a new directory");
        let start = |rank: u32| {
            let mut command = Command::new(env::current_exe().expect("this program"));
            command.args(["rank_process", "--exact", "--ignored", "--nocapture"]);
            command.env(PLACE, &place).env(RANK, rank.to_string()).env(SCENARIO, scenario);
            command.env(DEADLINE, deadline.as_millis().to_string());
            command.stdout(Stdio::piped()).spawn().expect("started")
        };
        // Rank 0 is not the first to be there.
        let mut ranks: Vec<_> = (1..RANKS).map(start).collect();
        ranks.insert(0, start(0));
        Self { place, ranks }
    }

    /// Returns when every rank has come far enough.
    fn wait_until_steady(&mut self) -> Vec<BufReader<ChildStdout>> {
        let wait = |child: &mut Child| {
            let mut output = BufReader::new(child.stdout.take().expect("piped"));
            let mut line = String::new();
            while !line.contains(STEADY) {
                line.clear();
                assert_ne!(output.read_line(&mut line).expect("read"), 0, "the rank has ended");
            }
            output
        };
        // Kept open: a rank writes a last line.
        self.ranks.iter_mut().map(wait).collect()
    }

    fn signal(&self, rank: u32, signal: Signal) {
        let process = i32::try_from(self.ranks[rank as usize].id()).ok().and_then(Pid::from_raw).expect("an id");
        kill_process(process, signal).expect("signalled");
    }

    /// What the ranks except `without` have written, after they have ended.
    fn results(&mut self, without: Option<u32>) -> Vec<String> {
        let mut results = Vec::new();
        for (rank, child) in (0..).zip(&mut self.ranks).filter(|&(rank, _)| Some(rank) != without) {
            assert!(child.wait().expect("ended").success(), "rank {rank}");
            results.push(fs::read_to_string(self.place.join(format!("result.{rank}"))).expect("written"));
        }
        results
    }

    /// Names of log and lock files that are left.
    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(&self.place).expect("a directory");
        let names = files.map(|file| file.expect("listed").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("cpkv-")).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.place);
    }
}

#[test]
fn four_processes_read_the_same_verdicts() {
    let mut group = Group::start("exchange", LONG);
    let results = group.results(None);
    for (rank, result) in results.iter().enumerate() {
        assert!(*result == results[0], "rank {rank} differs from rank 0");
    }
    let count = |ruling: &str| results[0].lines().filter(|line| line.ends_with(ruling)).count();
    let eighth = OPERATIONS as usize / 8;
    // Kinds 0, 1 and 2 drain, 0 and 1 of them after a failure.
    assert_eq!(count(" Landed"), 5 * eighth);
    assert_eq!((count(" Drained"), count(" Failed")), (3 * eighth, 2 * eighth));
    assert!(count(" Quarantined") <= eighth);
    assert!(group.files().is_empty(), "{:?}", group.files());
}

fn a_kill_is_seen_by_all(killed: u32) {
    let mut group = Group::start("step", LONG);
    let _outputs = group.wait_until_steady();
    assert!(group.files().is_empty(), "{:?}", group.files());
    let start = Instant::now();
    group.signal(killed, Signal::KILL);
    let results = group.results(Some(killed));
    // Long before any deadline.
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(results, vec![format!("Dead {{ rank: {killed} }}"); 3]);
}

#[test]
fn the_death_of_a_rank_is_seen_at_once_by_all() {
    a_kill_is_seen_by_all(2);
}

#[test]
fn the_death_of_rank_zero_is_seen_at_once_by_all() {
    a_kill_is_seen_by_all(0);
}

#[test]
fn a_rank_that_stops_is_silent_and_not_dead() {
    let mut group = Group::start("step", Duration::from_millis(500));
    let _outputs = group.wait_until_steady();
    group.signal(1, Signal::STOP);
    let results = group.results(Some(1));
    assert!(results[0].starts_with("Silent { rank: 1"), "{results:?}");
    // The others wait for rank 0, which waits for rank 1 and leaves. They may see that before their patience ends.
    for result in &results[1..] {
        assert!(result.starts_with("Silent { rank: 1") || result == "Left { rank: 0 }", "{results:?}");
    }
    assert!(group.files().is_empty(), "rank 0 removes the files of all");
}
