//! Tests of the log with all ranks in one process. `tests/commit_log.rs` has them in several.

mod exchange;
mod refusal;
mod waits;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::layout::{Layout, Sizes};
use super::*;
use crate::agreement::{Fact, OperationId, Report};

/// Rings that are full at once.
const TINY: Sizes = Sizes { reports: 2, entries: 2, verdicts: 1 };
const NAME: &str = "test";
const NONCE: u64 = 0xfeed;
/// For what must not happen to take so long.
const LONG: Duration = Duration::from_secs(20);
const GEOMETRY: LogGeometry = LogGeometry { ranks: 3, fingerprint: 0xabcd };

/// An empty directory, gone at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shared = Path::new(CommitLog::USUAL_DIRECTORY);
        let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("cpkv-test-{}-{count}", std::process::id()));
        fs::create_dir(&path).expect("a new directory");
        Self(path)
    }

    fn create(&self, sizes: Sizes) -> Result<CommitLog, LogError> {
        CommitLog::create_sized(&self.0, NAME, NONCE, GEOMETRY, sizes)
    }

    fn join(&self, rank: u32, sizes: Sizes) -> Result<CommitLog, LogError> {
        CommitLog::join_sized(&self.0, NAME, NONCE, rank, GEOMETRY, Duration::ZERO, sizes)
    }

    /// All ranks of a log.
    fn ranks(&self, sizes: Sizes) -> [CommitLog; 3] {
        let mut zero = self.create(sizes).expect("created");
        let [one, two] = [1, 2].map(|rank| self.join(rank, sizes).expect("joined"));
        zero.wait_for_all(Duration::ZERO).expect("all are here");
        let mut ranks = [zero, one, two];
        for log in &mut ranks {
            log.set_patience(Patience { warning: LONG, deadline: LONG });
        }
        ranks
    }

    fn log(&self) -> PathBuf {
        self.0.join(format!("cpkv-{NAME}-{NONCE:016x}.log"))
    }

    fn files(&self) -> Vec<String> {
        let name =
            |entry: std::io::Result<fs::DirEntry>| entry.expect("listed").file_name().into_string().expect("text");
        let mut files: Vec<_> = fs::read_dir(&self.0).expect("a directory").map(name).collect();
        files.sort_unstable();
        files
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn operation(index: u32) -> OperationId {
    OperationId { index, generation: index ^ 0xffff_ffff }
}

fn report(index: u32, fact: Fact) -> Report {
    Report { operation: operation(index), fact }
}
