//! Runs what a page tells people to paste, in one shell, and holds what is printed against the page.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::binary;

/// What stands before an exit code.
const END: &str = "@@ended with ";

/// A command, and what the page says that it prints: nothing where the page does not say.
#[derive(Debug)]
pub struct Pasted {
    command: String,
    prints: String,
}

impl Pasted {
    /// Whether the shell waits for more: a line's end is escaped, or a quotation is open.
    fn goes_on(&self) -> bool {
        self.command.ends_with('\\') || self.command.matches('\'').count() % 2 == 1
    }
}

/// The blocks without a language below a heading, up to the next one of its kind.
pub fn blocks(page: &str, heading: &str) -> Vec<Vec<Pasted>> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let text = format!("\n{text}");
    let level = heading.split(' ').next().unwrap();
    let below =
        text.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("{page}: no {heading}"));
    let (mut blocks, mut block, mut is_ours) = (Vec::new(), None, false);
    for line in below.lines() {
        match (&mut block, line) {
            (None, line) if line.starts_with(&format!("{level} ")) => break,
            (None, line) if line.starts_with("```") => {
                is_ours = line == "```";
                block = Some(Vec::new());
            }
            (Some(_), "```") => blocks.extend(block.take().filter(|_| is_ours).map(|lines| session(&lines))),
            (Some(lines), line) => lines.push(line),
            (None, _) => {}
        }
    }
    blocks
}

/// Lines that begin with `$ ` are commands, the others what they print. Where no line does, all are.
fn session(lines: &[&str]) -> Vec<Pasted> {
    let is_shown = lines.iter().any(|line| line.starts_with("$ "));
    let mut session: Vec<Pasted> = Vec::new();
    for line in lines {
        let is_continued = session.last().is_some_and(|last| last.prints.is_empty() && last.goes_on());
        let command = line.strip_prefix("$ ").or((!is_shown).then_some(*line));
        match (session.last_mut(), command) {
            (Some(last), _) if is_continued => last.command.extend(["\n", *line]),
            (_, Some(command)) => session.push(Pasted { command: command.to_owned(), prints: String::new() }),
            (Some(last), None) => last.prints.extend([*line, "\n"]),
            (None, None) => panic!("{line} is printed by nobody"),
        }
    }
    session
}

/// A shell in a folder of its own, in which `apportion` is the program.
pub struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What stands on the page, and what stands for it here.
    here: HashMap<String, String>,
}

impl Shell {
    pub fn start(folder: &Path, environment: &[(&str, &str)], here: &[(&str, &str)]) -> Self {
        let programs = folder.join("bin");
        std::fs::create_dir(&programs).unwrap();
        std::os::unix::fs::symlink(binary(), programs.join("apportion")).unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(folder)
            .env("PATH", path)
            .env("no_proxy", "*")
            .env("APPORTION_LOG", "warn")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash runs");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let here = here.iter().map(|(page, here)| ((*page).to_owned(), (*here).to_owned())).collect();
        let mut shell = Self { child, input, output, here };
        shell.say("shopt -s expand_aliases; exec 2>&1");
        shell
    }

    /// What stands so on the page is this here.
    pub fn read_as(&mut self, page: &str, here: &str) {
        self.here.insert(page.to_owned(), here.to_owned());
    }

    /// Runs a block; each command must do what the page says.
    pub fn run(&mut self, block: &[Pasted]) {
        assert!(!block.is_empty());
        for Pasted { command, prints } in block {
            let mut command = command.clone();
            self.here.iter().for_each(|(page, here)| command = command.replace(page, here));
            let told = self.say(&command);
            assert!(!told.contains("/problems/") || prints.contains("/problems/"), "{command}\n{told}");
            assert!(
                prints.is_empty() || fits(&told, prints),
                "{command}\nprinted\n{told}\nand not\n{prints}"
            );
            self.here.extend(holds(prints).into_iter().zip(holds(&told)));
        }
    }

    /// What a command prints; it must succeed.
    pub fn say(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}\nprintf '\\n{END}%s\\n' $?").expect("the shell runs");
        let mut told = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).expect("text") > 0,
                "the shell ended: {command}\n{told}"
            );
            match line.strip_prefix(END) {
                // `diff` says in this way that it found something.
                Some("1\n") if command.starts_with("diff ") => return told,
                Some(code) => {
                    assert_eq!(code.trim(), "0", "{command}\n{told}");
                    return told;
                }
                None => told.push_str(&line),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // With what runs in its background.
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).status();
        let _ = self.child.wait();
    }
}

/// Whether an output is the page's: but for figures, ids, white space, and what `...` stands for.
fn fits(told: &str, page: &str) -> bool {
    let (told, page) = (shape(told), shape(page));
    let Some((page, last)) = page.rsplit_once("...") else { return told == page };
    let mut pieces = page.split("...");
    let Some(mut rest) = told.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

fn shape(text: &str) -> String {
    let mut text = text.to_owned();
    holds(&text).iter().for_each(|hold| text = text.replace(hold, "hold_"));
    let mut shape = String::new();
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        match c {
            '0'..='9' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            c => shape.push(c),
        }
    }
    shape
}

/// Ids of holds, in their order.
fn holds(text: &str) -> Vec<String> {
    let rest = text.split("hold_").skip(1);
    let ids =
        rest.map(|rest| rest.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '-').collect::<String>());
    ids.filter(|id| id.len() == 36).map(|id| format!("hold_{id}")).collect()
}

#[test]
fn a_page_differs_in_figures_only() {
    let page = "{\"id\":\"hold_01a22961-0a1a-7ddf-8b94-58b6c7e12542\", ...\n  \"left\":12.5, ... }";
    assert!(fits(
        "{\"id\":\"hold_01a22961-ffff-7ddf-8b94-58b6c7e12542\",\"x\":1,\"left\":7.25,\"y\":2}",
        page
    ));
    assert!(!fits(
        "{\"id\":\"hold_01a22961-ffff-7ddf-8b94-58b6c7e12542\",\"x\":1,\"gone\":7.25,\"y\":2}",
        page
    ));
    assert!(fits("OK\n", "OK") && !fits("OK no", "OK") && fits("1: no", "2: ..."));
}
