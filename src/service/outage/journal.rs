//! The file in which a node notes what it admits while the store is away.
//!
//! Records stand one after the other, each with its length and a digest. What
//! was answered is on the disk; a last record that is torn was never answered.
//! Those who come at the same time share one sync of the disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::domain::charge::TenantRef;
use crate::domain::hold::{Hold, ReleaseReason, Reported};
use crate::domain::ids::{HoldId, Label};

const FILE: &str = "journal";
/// A journal does not grow beyond this.
const BYTES_MAX: u64 = 64 << 20;
/// Before each record: its length, and the first bytes of its digest.
const LENGTH: usize = 4;
const DIGEST: usize = 8;
/// The first byte of a record: how the rest is written.
const FORMAT: u8 = 1;

/// What is noted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Entry {
    Admitted(Arc<Hold>),
    Ended { tenant: TenantRef, hold: HoldId, ending: Told },
}

/// How a caller ended a hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Told {
    Usage { reported: Reported, amounts: Vec<(Label, u64)> },
    Release(ReleaseReason),
    Unknown,
}

/// What a journal had when it was opened.
#[derive(Default)]
pub(super) struct Found {
    pub entries: Vec<Entry>,
    /// Bytes behind them that are no whole record.
    pub torn: u64,
}

/// Called with whether the record is on the disk, before its writer is told:
/// also when the writer has gone away.
type Noted = Box<dyn FnOnce(bool) + Send>;

struct Waiting {
    record: Vec<u8>,
    noted: Noted,
    done: oneshot::Sender<bool>,
}

pub(super) struct Journal {
    dir: PathBuf,
    waiting: Mutex<Vec<Waiting>>,
    file: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    file: Option<File>,
    /// Whole records end here.
    length: u64,
}

impl Journal {
    /// Reads what is there; nothing is made before the first record.
    pub fn open(dir: &Path) -> io::Result<(Arc<Self>, Found)> {
        let bytes = match std::fs::read(dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let (entries, length) = read_all(&bytes);
        let found = Found { entries, torn: bytes.len() as u64 - length };
        let file = Mutex::new(Open { file: None, length });
        Ok((Arc::new(Self { dir: dir.to_owned(), waiting: Mutex::default(), file }), found))
    }

    /// Puts a record on the disk; `false`: it could not be, and is not there.
    pub async fn append(self: &Arc<Self>, entry: &Entry, noted: impl FnOnce(bool) + Send + 'static) -> bool {
        let Some(record) = record(entry) else {
            noted(false);
            return false;
        };
        let (done, told) = oneshot::channel();
        self.waiting.lock().push(Waiting { record, noted: Box::new(noted), done });
        let journal = Arc::clone(self);
        // To its end, whatever becomes of the caller.
        tokio::task::spawn_blocking(move || journal.flush());
        told.await.unwrap_or(false)
    }

    /// Writes all that waits.
    fn flush(&self) {
        let mut open = self.file.lock();
        let waiting = std::mem::take(&mut *self.waiting.lock());
        if waiting.is_empty() {
            return;
        }
        let bytes: Vec<u8> = waiting.iter().flat_map(|waiting| &waiting.record).copied().collect();
        let written = open.append(&self.dir, &bytes);
        if let Err(error) = &written {
            tracing::error!(
                error = error as &dyn std::error::Error,
                path = %self.dir.display(),
                "the journal of outages cannot be written: nothing is admitted from it"
            );
        }
        for Waiting { noted, done, .. } in waiting {
            noted(written.is_ok());
            // Whoever waited may have gone.
            let _ = done.send(written.is_ok());
        }
    }

    /// Removes the file, if nobody needs it (any more).
    pub fn remove_if(&self, is_done: impl FnOnce() -> bool) -> io::Result<()> {
        let mut open = self.file.lock();
        if !self.waiting.lock().is_empty() || !is_done() {
            return Ok(());
        }
        *open = Open::default();
        match std::fs::remove_file(self.dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| sync_dir(&self.dir)),
        }
    }
}

impl Open {
    fn append(&mut self, dir: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.length + bytes.len() as u64 > BYTES_MAX {
            return Err(io::Error::other(format!("it has {BYTES_MAX} bytes, which is the most it may have")));
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open_file(dir, self.length)?),
        };
        match file.write_all(bytes).and_then(|()| file.sync_data()) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            // Opened anew next time, cut to what is whole.
            Err(error) => {
                let _ = file.set_len(self.length);
                self.file = None;
                Err(error)
            }
        }
    }
}

/// Only its owner may read it.
fn open_file(dir: &Path, length: u64) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(dir.join(FILE))?;
    file.set_len(length)?;
    sync_dir(dir)?;
    if let Some(parent) = dir.parent() {
        sync_dir(parent)?;
    }
    Ok(file)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn record(entry: &Entry) -> Option<Vec<u8>> {
    let body = postcard::to_extend(entry, vec![FORMAT]).ok()?;
    let mut record = Vec::with_capacity(LENGTH + DIGEST + body.len());
    record.extend_from_slice(&u32::try_from(body.len()).ok()?.to_le_bytes());
    record.extend_from_slice(&digest(&body));
    record.extend_from_slice(&body);
    Some(record)
}

fn digest(body: &[u8]) -> [u8; DIGEST] {
    let hash = blake3::hash(body);
    std::array::from_fn(|index| hash.as_bytes()[index])
}

/// The whole records, and where they end.
fn read_all(bytes: &[u8]) -> (Vec<Entry>, u64) {
    let (mut entries, mut rest) = (Vec::new(), bytes);
    while let Some((entry, after)) = read_one(rest) {
        entries.push(entry);
        rest = after;
    }
    (entries, (bytes.len() - rest.len()) as u64)
}

fn read_one(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    let (expected, rest) = rest.split_first_chunk::<DIGEST>()?;
    let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let entry = match body.split_first() {
        Some((&FORMAT, entry)) if digest(body) == *expected => postcard::from_bytes(entry).ok()?,
        _ => return None,
    };
    Some((entry, rest))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn ended(id: u128) -> Entry {
        Entry::Ended { tenant: TenantRef(1), hold: HoldId(id), ending: Told::Unknown }
    }

    #[tokio::test]
    async fn what_was_noted_is_found_and_a_torn_record_is_cut_off() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("outage");
        let (journal, _) = Journal::open(&dir).unwrap();
        assert!(!dir.exists(), "nothing is made before it is needed");
        for id in 0..3 {
            assert!(journal.append(&ended(id), |noted| assert!(noted)).await);
        }
        let path = dir.join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() / 3 {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let (journal, found) = Journal::open(&dir).unwrap();
            assert_eq!(found.entries, [ended(0), ended(1)], "{cut} bytes are missing");
            assert_eq!(found.torn as usize, whole.len() / 3 - cut);
            if cut == 1 {
                assert!(journal.append(&ended(7), |_| {}).await);
                assert_eq!(Journal::open(&dir).unwrap().1.entries, [ended(0), ended(1), ended(7)]);
            }
        }
        let mut bent = whole.clone();
        *bent.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &bent).unwrap();
        assert_eq!(Journal::open(&dir).unwrap().1.entries.len(), 2);
        journal.remove_if(|| true).unwrap();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn where_nothing_can_be_written_nothing_is_noted() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("outage");
        std::fs::write(&dir, "in the way").unwrap();
        assert!(Journal::open(&dir).is_err(), "a file is no directory");
        std::fs::remove_file(&dir).unwrap();
        let (journal, _) = Journal::open(&dir).unwrap();
        std::fs::write(&dir, "in the way").unwrap();
        assert!(!journal.append(&ended(1), |noted| assert!(!noted)).await);
        std::fs::remove_file(&dir).unwrap();
        assert!(journal.append(&ended(2), |noted| assert!(noted)).await, "it is tried anew each time");
    }
}
