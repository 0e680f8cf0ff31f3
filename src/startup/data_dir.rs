//! The data directory: what is in it, who may read it, and whose it is now.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("cannot create the data directory {}", path.display())]
    Create { path: PathBuf, source: std::io::Error },
    #[error("{} is no directory; the setting `data` must name one", path.display())]
    NoDirectory { path: PathBuf },
    #[error("cannot write into the data directory {}", path.display())]
    ReadOnly { path: PathBuf, source: std::io::Error },
    /// `holder` is what the other server wrote about itself.
    #[error("another server is running on the data in {} ({holder}); stop it, or give this one its own --data", path.display())]
    InUse { path: PathBuf, holder: String },
}

/// Where things are in a data directory.
#[derive(Debug, Clone)]
pub struct DataDir {
    path: PathBuf,
}

impl DataDir {
    /// Names a directory without touching it.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Creates the directory where it is missing; only its owner may enter.
    pub fn create(path: &Path) -> Result<Self, DataDirError> {
        let dir = Self::at(path);
        if path.exists() && !path.is_dir() {
            return Err(DataDirError::NoDirectory { path: dir.path });
        }
        match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            Ok(()) => Ok(dir),
            Err(source) => Err(DataDirError::Create { path: dir.path, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The SQLite file of the ledger.
    pub fn database(&self) -> PathBuf {
        self.path.join("apportion.db")
    }

    /// The directory of private keys.
    pub fn keys(&self) -> PathBuf {
        self.path.join("keys")
    }

    /// Where a node notes what it admits while its store is away.
    pub fn outage(&self) -> PathBuf {
        self.path.join("outage")
    }

    /// The file on which a running server holds a lock.
    pub fn lock_file(&self) -> PathBuf {
        self.path.join("server.lock")
    }

    /// Takes the directory for this process until the lock is dropped (or the
    /// process ends, however it ends). `holder` is what a second server is
    /// told about this one.
    pub fn lock(&self, holder: &str) -> Result<DataLock, DataDirError> {
        let read_only = |source| DataDirError::ReadOnly { path: self.path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.lock_file())
            .map_err(read_only)?;
        match try_lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataDirError::InUse { path: self.path.clone(), holder: read_holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(read_only(source)),
        }
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(holder.as_bytes()));
        written.map_err(read_only)?;
        Ok(DataLock { _file: file })
    }

    /// What the server that runs on this data wrote about itself; `None` when
    /// none runs.
    pub fn holder(&self) -> Option<String> {
        let mut file = File::open(self.lock_file()).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Some(read_holder(&mut file)),
            _ => None,
        }
    }
}

/// Held by the one server that runs on a data directory.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

/// Tries for a tenth of a second: whoever only looks (`holder`) has the file
/// for a moment too, and must not keep a server from starting.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..5 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            answer => return answer,
        }
    }
    file.try_lock()
}

fn read_holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(200).read_to_string(&mut text) {
        Ok(length) if length > 0 => text,
        _ => "it did not say which".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_server_is_told_about_the_first() {
        let parent = tempfile::tempdir().unwrap();
        let dir = DataDir::create(&parent.path().join("a/b")).unwrap();
        assert_eq!(std::fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(dir.holder(), None);
        let lock = dir.lock("process 7").unwrap();
        let error = dir.lock("process 8").unwrap_err().to_string();
        assert!(error.contains("process 7") && error.contains("another server"), "{error}");
        assert_eq!(dir.holder().as_deref(), Some("process 7"));
        drop(lock);
        assert_eq!(dir.holder(), None, "the lock ends with its holder, the file stays");
        dir.lock("process 9").unwrap();
    }

    #[test]
    fn a_file_is_no_data_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(DataDir::create(file.path()), Err(DataDirError::NoDirectory { .. })));
    }
}
