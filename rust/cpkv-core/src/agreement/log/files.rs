//! The files of a log: their names, how they are made, and what is refused to be opened.
//!
//! A file is made exclusively, with mode 0600, and never reached through a link. Names contain the
//! nonce, so what a dead server left behind is never met.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::LogError;
use super::mapping::Mapping;

const MODE: u32 = 0o600;
const LONGEST_NAME: usize = 100;

/// The directory of a log, and what its files are called.
#[derive(Debug)]
pub(super) struct Files {
    directory: OwnedFd,
    path: PathBuf,
    stem: String,
}

impl Files {
    /// The files of the log `name` with `nonce` in `directory`, which has to exist.
    pub(super) fn new(directory: &Path, name: &str, nonce: u64) -> Result<Self, LogError> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_legal) {
            return Err(LogError::Name { name: name.to_owned() });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = fs::open(directory, flags, Mode::empty());
        let open = open.map_err(|error| system("open directory", directory, error))?;
        Ok(Self { directory: open, path: directory.to_owned(), stem: format!("cpkv-{name}-{nonce:016x}") })
    }

    pub(super) fn log(&self) -> String {
        format!("{}.log", self.stem)
    }

    pub(super) fn lock(&self, rank: u32) -> String {
        format!("{}.{rank}.lock", self.stem)
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    /// A new file, which must not exist.
    pub(super) fn create(&self, file: &str) -> Result<OwnedFd, LogError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match fs::openat(&self.directory, file, flags, Mode::from_raw_mode(MODE)) {
            Err(Errno::EXIST) => Err(LogError::Exists { path: self.path(file) }),
            open => open.map_err(|error| self.system("create", file, error)),
        }
    }

    /// Gives a new file its size, with all its room: a full file system is an error here, and not
    /// a signal at the first access.
    pub(super) fn reserve(&self, file: &str, open: &OwnedFd, bytes: u64) -> Result<(), LogError> {
        // This also sets the size, and does so last: who sees the size may touch all of it.
        let reserved = rustix::io::retry_on_intr(|| fs::fallocate(open, FallocateFlags::empty(), 0, bytes));
        match reserved {
            Ok(()) => Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Err(LogError::NoRoom { path: self.path(file), bytes }),
            Err(error) => Err(self.system("reserve", file, error)),
        }
    }

    /// Opens a file that another process of this user has made, if it is there.
    pub(super) fn open(&self, file: &str) -> Result<Option<Opened>, LogError> {
        self.open_as(file, rustix::process::geteuid().as_raw())
    }

    pub(super) fn open_as(&self, file: &str, user: u32) -> Result<Option<Opened>, LogError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = match fs::openat(&self.directory, file, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                return Err(LogError::NotRegular { path: self.path(file) });
            }
            open => open.map_err(|error| self.system("open", file, error))?,
        };
        let stat = fs::fstat(&open).map_err(|error| self.system("stat", file, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(LogError::NotRegular { path: self.path(file) });
        }
        self.matches(file, "owner", stat.st_uid.into(), user.into())?;
        self.matches(file, "mode", (stat.st_mode & 0o7777).into(), MODE.into())?;
        Ok(Some(Opened { open, bytes: u64::try_from(stat.st_size).unwrap_or(0) }))
    }

    /// Maps the first `bytes` of a log, which has as many.
    pub(super) fn map(&self, file: &str, open: &OwnedFd, bytes: u64) -> Result<Mapping, LogError> {
        let error = |source| LogError::System { call: "map", path: self.path(file), source };
        Mapping::new(open, bytes).map_err(error)
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, file: &str) {
        // Whether it can be removed changes nothing: the nonce is not used again.
        let _ = fs::unlinkat(&self.directory, file, AtFlags::empty());
    }

    pub(super) fn matches(&self, file: &str, field: &'static str, seen: u64, wanted: u64) -> Result<(), LogError> {
        if seen == wanted {
            return Ok(());
        }
        Err(LogError::Mismatch { path: self.path(file), field, seen, wanted })
    }

    pub(super) fn system(&self, call: &'static str, file: &str, error: Errno) -> LogError {
        system(call, &self.path(file), error)
    }
}

/// A file of another process.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) open: OwnedFd,
    pub(super) bytes: u64,
}

fn system(call: &'static str, path: &Path, error: Errno) -> LogError {
    LogError::System { call, path: path.to_owned(), source: io::Error::from(error) }
}
