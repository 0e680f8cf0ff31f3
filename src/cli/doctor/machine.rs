//! What a server needs of its machine: a disk that keeps what it is given, and
//! enough open files.

use std::path::Path;

use rustix::fs::{statfs, statvfs};
use rustix::process::{Resource, getrlimit};

use super::Finding;

const MB: u64 = 1 << 20;
/// With less free a server will soon be unable to record anything.
const FREE_MIN: u64 = 64 * MB;
/// Some days of a small product.
const FREE_ENOUGH: u64 = 1024 * MB;

/// Files that are open besides connections: the database, Redis, Postgres, logs.
const OTHER_FILES: u64 = 256;
/// Every connection costs a second one, by which a hang-up is noticed.
const FILES_A_CONNECTION: u64 = 2;

/// The disk of a directory, or of the nearest one above it that is there.
pub fn disk<'a>(dir: &'a Path, is_ledger: bool) -> Vec<Finding> {
    // A relative name has an empty one above it.
    let or_here = |place: &'a Path| if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let Some(place) = dir.ancestors().map(or_here).find(|place| place.exists()) else { return Vec::new() };
    let mut findings = Vec::new();
    if let Ok(found) = statvfs(place) {
        findings.push(room(place, found.f_bavail.saturating_mul(found.f_frsize)));
    }
    if is_ledger && let Ok(found) = statfs(place) {
        findings.extend(file_system(place, found.f_type as u64 & 0xffff_ffff));
    }
    findings
}

fn room(place: &Path, free: u64) -> Finding {
    const SUBJECT: &str = "disk";
    let shown = place.display();
    let text = format!("{} MB are free for {shown}", free / MB);
    match free {
        0..FREE_MIN => Finding::bad(SUBJECT, format!("{text}; make room, or nothing can be recorded")),
        FREE_MIN..FREE_ENOUGH => Finding::odd(SUBJECT, format!("{text}; give it more")),
        _ => Finding::good(SUBJECT, text),
    }
}

/// By the number that Linux has for a kind of file system.
fn file_system(place: &Path, kind: u64) -> Option<Finding> {
    const SUBJECT: &str = "disk";
    const ACROSS_A_NETWORK: [(u64, &str); 6] = [
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB"),
        (0x00c3_6400, "Ceph"),
        (0x0102_1997, "9p"),
        (0x5346_414f, "AFS"),
    ];
    let shown = place.display();
    if let Some((_, name)) = ACROSS_A_NETWORK.iter().find(|(number, _)| *number == kind) {
        let text = format!(
            "{shown} is on {name}, across a network: locks and the write-ahead log are not safe there; \
             use a disk of this machine"
        );
        return Some(Finding::bad(SUBJECT, text));
    }
    let goes = match kind {
        0x0102_1994 | 0x8584_58f6 => "in memory (tmpfs): what is recorded is gone with the next boot",
        0x794c_7630 => "a layer of a container (overlay): what is recorded goes with the container",
        _ => return None,
    };
    Some(Finding::odd(SUBJECT, format!("{shown} is {goes}; mount a disk that stays")))
}

/// Whether as many connections may be open as the settings say.
pub fn open_files(max_connections: usize, server: Option<u32>) -> Option<Finding> {
    const SUBJECT: &str = "files";
    // What the server has counts, not what this shell has.
    let (limit, whose) = match server.and_then(limit_of) {
        Some(limit) => (limit, "the server"),
        None => (getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), "a server started from here"),
    };
    let wanted = max_connections as u64 * FILES_A_CONNECTION + OTHER_FILES;
    if limit >= wanted {
        return Some(Finding::good(SUBJECT, format!("{whose} may have {wanted} files open, as it needs")));
    }
    let enough_for = limit.saturating_sub(OTHER_FILES) / FILES_A_CONNECTION;
    let text = format!(
        "{whose} may have {limit} files open: enough for {enough_for} connections, but `max_connections` is \
         {max_connections}; raise the limit to {wanted} (LimitNOFILE, ulimit -n), or lower the setting"
    );
    Some(Finding::odd(SUBJECT, text))
}

/// How many files a process may have open.
fn limit_of(pid: u32) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_disk_that_is_nearly_full_is_told_before_it_is() {
        let level = |free| room(Path::new("/data"), free).level;
        assert_eq!([level(MB), level(FREE_MIN), level(FREE_ENOUGH)], [Level::Bad, Level::Odd, Level::Good]);
    }

    #[test]
    fn a_ledger_across_a_network_or_in_memory_is_told() {
        let told = |kind| file_system(Path::new("/data"), kind).map(|finding| (finding.level, finding.text));
        assert!(matches!(told(0x6969), Some((Level::Bad, text)) if text.contains("NFS")));
        assert!(matches!(told(0x0102_1994), Some((Level::Odd, text)) if text.contains("tmpfs")));
        assert!(matches!(told(0x794c_7630), Some((Level::Odd, text)) if text.contains("container")));
        assert_eq!(told(0xef53), None, "ext4");
    }

    #[test]
    fn a_directory_yet_to_be_made_is_on_the_disk_of_the_one_above_it() {
        let parent = tempfile::tempdir().unwrap();
        assert!(disk(&parent.path().join("a/b"), true)[0].text.contains(parent.path().to_str().unwrap()));
        assert!(!disk(Path::new("not-there"), true).is_empty());
    }

    #[test]
    fn more_connections_than_open_files_are_told_with_the_figures() {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let told = open_files(1, Some(std::process::id())).unwrap();
        assert_eq!((told.level, told.text.contains("the server")), (Level::Good, true));
        if let Ok(most) = usize::try_from(most)
            && most < 1 << 30
        {
            let told = open_files(most, None).unwrap();
            assert!(told.level == Level::Odd && told.text.contains("max_connections"), "{}", told.text);
        }
    }
}
