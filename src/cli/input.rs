//! What several subcommands read: plan folders, figures by plan, durations.

use std::path::{Path, PathBuf};

use crate::domain::document::{Fault, Node};
use crate::domain::ids::Name;
use crate::domain::plan::{LintWarning, Models, Pool, Sheet, Shipped};

use super::Usage;

/// `free=60,standard=20`, as `domain::capacity::parse_active` reads it.
pub type PlanNumbers = Vec<(Name, u64)>;

/// A folder of plans, read whole.
pub struct PlanFolder {
    pub content: Shipped,
    /// `file: field: reason`, one for each thing that can never bite.
    pub warnings: Vec<String>,
}

/// Every fault of a folder, as `file: field: reason`.
#[derive(Debug, thiserror::Error)]
#[error("the plans cannot be used:\n  {}", .0.join("\n  "))]
pub struct PlanFaults(pub Vec<String>);

/// Reads `DIR/*.toml` (one sheet a file), `DIR/pools/*.toml` (one pool a file)
/// and `DIR/models.toml`, which may be missing.
///
/// Fails with [`Usage`] when there is no such folder, and with [`PlanFaults`],
/// which lists the faults of all files at once.
pub fn read_plans(dir: &Path) -> anyhow::Result<PlanFolder> {
    if !dir.is_dir() {
        return Err(Usage(format!("{} is no folder", dir.display())).into());
    }
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    let mut models = Models::default();
    let mut sheets: Vec<(PathBuf, Sheet)> = Vec::new();
    let mut pools: Vec<(PathBuf, Pool)> = Vec::new();
    for path in toml_files(dir)? {
        let is_models = path.file_name().is_some_and(|name| name == "models.toml");
        if is_models {
            models = read_file(&path, &mut faults, Models::read)?.unwrap_or_default();
        } else if let Some((sheet, found)) = read_file(&path, &mut faults, Sheet::read)? {
            warnings.extend(found.iter().map(|warning| line(&path, warning)));
            sheets.push((path, sheet));
        }
    }
    for path in toml_files(&dir.join("pools"))? {
        pools.extend(read_file(&path, &mut faults, Pool::read)?.map(|pool| (path, pool)));
    }
    for (path, sheet) in &sheets {
        warnings.extend(sheet.lint(&models).iter().map(|warning| line(path, warning)));
    }
    repeated(sheets.iter().map(|(path, sheet)| (path, &sheet.id)), &mut faults);
    repeated(pools.iter().map(|(path, pool)| (path, &pool.id)), &mut faults);
    if sheets.is_empty() && faults.is_empty() {
        faults.push(format!("{}: there is no plan sheet (*.toml) in this folder", dir.display()));
    }
    if !faults.is_empty() {
        return Err(PlanFaults(faults).into());
    }
    let sheets = sheets.into_iter().map(|(_, sheet)| sheet).collect();
    let pools = pools.into_iter().map(|(_, pool)| pool).collect();
    Ok(PlanFolder { content: Shipped { sheets, pools, models }, warnings })
}

/// Two files must not define the same id.
fn repeated<'a>(ids: impl Iterator<Item = (&'a PathBuf, &'a Name)>, faults: &mut Vec<String>) {
    let mut seen: Vec<(&PathBuf, &Name)> = Vec::new();
    for (path, id) in ids {
        match seen.iter().find(|(_, known)| *known == id) {
            Some((first, _)) => {
                faults.push(format!("{}: /id: {id} is also the id in {}", path.display(), first.display()))
            }
            None => seen.push((path, id)),
        }
    }
}

fn line(path: &Path, warning: &LintWarning) -> String {
    format!("{}: {}: {}", path.display(), warning.pointer, warning.message)
}

/// Reads one file through `read`; its faults are added to `faults`.
fn read_file<T>(
    path: &Path,
    faults: &mut Vec<String>,
    read: impl FnOnce(&Node<'_>) -> Result<T, Vec<Fault>>,
) -> anyhow::Result<Option<T>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            faults.push(format!("{}: cannot be read: {error}", path.display()));
            return Ok(None);
        }
    };
    match Node::from_toml(&text).map_err(|fault| vec![fault]).and_then(|node| read(&node)) {
        Ok(value) => Ok(Some(value)),
        Err(found) => {
            faults.extend(found.iter().map(|fault| match fault.pointer.as_str() {
                "" => format!("{}: {}", path.display(), fault.message),
                pointer => format!("{}: {pointer}: {}", path.display(), fault.message),
            }));
            Ok(None)
        }
    }
}

/// The folder's `*.toml` in the order of their names; none when it is missing.
fn toml_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// `90s`, `30m`, `1h`, `7d`: seconds, at least 1 and at most ten years.
pub fn parse_seconds(text: &str) -> Result<u64, String> {
    let fault = || format!("{text:?} is no duration; expected such as 90s, 30m, 1h or 7d");
    let unit = text.chars().next_back().ok_or_else(fault)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(fault()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| fault())?;
    match number.checked_mul(seconds) {
        Some(total @ 1..=315_360_000) => Ok(total),
        _ => Err(format!("{text:?} must be at least one second and at most 3650d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_a_bound() {
        assert_eq!(parse_seconds("90s"), Ok(90));
        assert_eq!(parse_seconds("1h"), Ok(3_600));
        assert_eq!(parse_seconds("7d"), Ok(604_800));
        for bad in ["", "h", "1", "1w", "-1s", "0s", "1.5h", "99999999999999999999d", "3651d", "1é"] {
            assert!(parse_seconds(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_fault_of_every_file_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.toml"), "id = \"a\"\nname = \"A\"\ncolour = 1\n").unwrap();
        std::fs::write(dir.path().join("b.toml"), "id = ").unwrap();
        let error = read_plans(dir.path()).err().unwrap().to_string();
        assert!(error.contains("a.toml: /colour") && error.contains("b.toml"), "{error}");
        assert!(read_plans(&dir.path().join("none")).err().unwrap().is::<Usage>());
    }

    #[test]
    fn the_shipped_folder_reads_without_a_fault() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
        let folder = read_plans(&dir).unwrap();
        assert_eq!(folder.content.sheets.len(), 3);
        assert_eq!(folder.content.pools.len(), 1);
    }
}
