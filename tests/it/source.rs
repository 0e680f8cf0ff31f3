//! The sources themselves: floors, sizes, and what must not stand in them.

use std::fs;
use std::path::{Path, PathBuf};

/// A file names only lower floors.
const FLOORS: [(&str, u8); 11] = [
    ("domain", 0),
    ("engine", 1),
    ("ledger", 1),
    ("outbound", 1),
    ("traces", 1),
    ("service", 2),
    ("http", 3),
    ("cli", 4),
    ("config", 4),
    ("startup", 4),
    ("telemetry", 4),
];
/// Back ends by name: only their own module and floor 4 know them.
const BACK_ENDS: [(&str, &str); 3] =
    [("MemoryEngine", "engine"), ("SqliteLedger", "ledger"), ("PostgresLedger", "ledger")];
const LINES_MAX: usize = 500;

/// One file under `src` or `tests`.
struct Source {
    path: PathBuf,
    text: String,
    /// Whether it is compiled for tests only.
    test: bool,
}

impl Source {
    fn name(&self) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        self.path.strip_prefix(root).expect("below the root").display().to_string()
    }

    /// The top module that a file below `src` belongs to.
    fn module(&self) -> String {
        let name = self.name();
        let below = name.strip_prefix("src/").unwrap_or("");
        below.split('/').next().unwrap_or("").trim_end_matches(".rs").to_owned()
    }

    /// The code without comments, up to the tests that stand in the same file.
    fn code(&self) -> Vec<(usize, &str)> {
        if self.test {
            return Vec::new();
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let end = lines
            .windows(2)
            .position(|pair| {
                pair[0].trim() == "#[cfg(test)]"
                    && pair[1].trim().starts_with("mod ")
                    && pair[1].ends_with('{')
            })
            .unwrap_or(lines.len());
        lines
            .into_iter()
            .enumerate()
            .take(end)
            .map(|(n, line)| (n + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .collect()
    }

    /// The top modules that the code names, with the line.
    fn names(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (n, line) in self.code() {
            for rest in line.split("crate::").skip(1) {
                match rest.strip_prefix('{') {
                    None => found.push((n, word(rest))),
                    Some(group) => found.extend(group.split(',').map(|part| (n, word(part.trim_start())))),
                }
            }
        }
        found
    }
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn floor(module: &str) -> Option<u8> {
    FLOORS.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor)
}

fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                found.push(Source { path, text, test: false });
            }
        }
    }
    let tests: Vec<PathBuf> = found.iter().flat_map(test_modules).collect();
    for source in &mut found {
        source.test = tests
            .iter()
            .any(|module| source.path.starts_with(module) || source.path == module.with_extension("rs"));
    }
    assert!(!found.is_empty(), "{folder} has sources");
    found
}

/// Modules that a file declares for tests only, as the folders they would have.
fn test_modules(source: &Source) -> Vec<PathBuf> {
    let folder = source.path.parent().expect("a file is in a folder");
    let stem = source.path.file_stem().expect("a file has a name");
    let home = if ["mod", "lib", "main"].iter().any(|own| stem == *own) {
        folder.to_owned()
    } else {
        folder.join(stem)
    };
    let lines: Vec<&str> = source.text.lines().collect();
    let declared = lines.iter().enumerate().filter(|(_, line)| line.trim() == "#[cfg(test)]");
    declared
        .filter_map(|(n, _)| match lines.get(n + 1)?.strip_prefix("#[path = \"") {
            Some(rest) => Some(folder.join(rest.split('"').next()?).with_extension("")),
            None => Some(home.join(lines[n + 1].strip_suffix(';')?.split("mod ").nth(1)?)),
        })
        .collect()
}

fn assert_none(wrong: Vec<String>, rule: &str) {
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}

#[test]
fn a_file_names_only_lower_floors() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let module = source.module();
        let Some(own) = floor(&module) else {
            let is_root = ["lib", "main"].contains(&module.as_str());
            assert!(is_root || source.test, "{module} is on no floor");
            continue;
        };
        for (line, named) in source.names() {
            let Some(other) = floor(&named) else { continue };
            let neighbours = own == 4 && other == 4;
            if named != module && other >= own && !neighbours {
                wrong.push(format!("{}:{line} (floor {own}) names {named} (floor {other})", source.name()));
            }
        }
    }
    assert_none(wrong, "a file names only lower floors");
}

#[test]
fn only_the_top_floor_knows_back_ends_by_name() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let module = source.module();
        for (name, home) in BACK_ENDS {
            if module == home || floor(&module) == Some(4) {
                continue;
            }
            for (line, text) in source.code() {
                if text.contains(name) {
                    wrong.push(format!("{}:{line} names {name}", source.name()));
                }
            }
        }
    }
    assert_none(wrong, "only floor 4 names concrete back ends");
}

#[test]
fn the_rules_know_no_time_no_tasks_and_no_outside() {
    let mut wrong = Vec::new();
    // Zone rules may be read from a directory, once, at the start.
    let pure = |s: &Source| s.module() == "domain" && !s.name().starts_with("src/domain/time/");
    for source in sources("src").iter().filter(|s| pure(s)) {
        for (line, text) in source.code() {
            for word in [
                "tokio",
                "async ",
                ".await",
                "SystemTime",
                "Instant::now",
                "Timestamp::now",
                "std::fs",
                "std::net",
                "tracing",
            ] {
                if text.contains(word) {
                    wrong.push(format!("{}:{line} has {word}", source.name()));
                }
            }
        }
    }
    assert_none(wrong, "the domain is pure");
}

#[test]
fn no_file_is_longer_than_a_sitting() {
    let mut wrong = Vec::new();
    for source in sources("src").iter().chain(&sources("tests")) {
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{} has {lines} lines", source.name()));
        }
    }
    assert_none(wrong, "files stay under 500 lines");
}

#[test]
fn nothing_unwraps_outside_tests() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        for (line, text) in source.code() {
            if text.contains(".unwrap()") {
                wrong.push(format!("{}:{line}", source.name()));
            }
        }
    }
    assert_none(wrong, "no unwrap outside tests");
}
