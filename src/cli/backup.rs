//! `apportion backup --out DIR`: all that a server needs to go on from this
//! moment, in a directory of its own, also from under a running server.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use crate::config::Stores;
use crate::ledger::{Inspection, back_up, inspect};
use crate::startup::DataDir;

use super::{Common, Usage, say};

/// What a backup is called until it is whole.
const UNFINISHED: &str = ".unfinished";

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The directory to write; it must not be there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub fn run(common: &Common, args: BackupArgs) -> anyhow::Result<ExitCode> {
    let config = common.load(None)?;
    if let Stores::Shared { .. } = config.stores {
        let text = "this installation's ledger is in Postgres: back it up with \
                    `pg_dump --format=custom --file=FILE \"$APPORTION_DATABASE_URL\"`, and keep its `server_key`";
        bail!(Usage(text.to_owned()));
    }
    let from = DataDir::at(&config.data);
    if !from.database().is_file() {
        bail!(
            "there is no Apportion data in {}; name the server's directory with --data",
            config.data.display()
        );
    }
    if args.out.exists() {
        bail!(Usage(format!("{} is there already; a backup is a new directory", args.out.display())));
    }
    let unfinished = beside(&args.out);
    if unfinished.exists() {
        let left = fs::remove_dir_all(&unfinished);
        left.with_context(|| format!("cannot remove {}, which a backup left", unfinished.display()))?;
    }
    let to = DataDir::create(&unfinished)?;
    let bytes = super::runtime()?.block_on(copy(&from, &to))?;
    let named = fs::rename(&unfinished, &args.out);
    named.with_context(|| format!("the backup is whole, but stays in {}", unfinished.display()))?;
    let shown = args.out.display();
    say(format_args!(
        "{} kB in {shown}; a server started with `--data` on a copy of it goes on from here",
        bytes.div_ceil(1000)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The order matters: what is booked of an outage, and keys that are made, while
/// this runs are then in one of the copies at least.
async fn copy(from: &DataDir, to: &DataDir) -> anyhow::Result<u64> {
    let mut bytes = copy_files(&from.outage(), &to.outage())?;
    let copied = back_up(&from.database(), &to.database()).await;
    copied.with_context(|| format!("cannot copy {}", from.database().display()))?;
    fs::set_permissions(to.database(), PermissionsExt::from_mode(0o600))?;
    bytes += fs::metadata(to.database())?.len();
    bytes += copy_files(&from.keys(), &to.keys())?;
    sync(to.path())?;
    // Better now than on the day it is needed.
    match inspect(&to.database()).await? {
        Some(Inspection { damage: None, .. }) => Ok(bytes),
        Some(Inspection { damage: Some(damage), .. }) => {
            bail!(
                "the database is damaged ({damage}); run `apportion doctor`, and keep the backups of before"
            )
        }
        None => bail!("{} is not there", to.database().display()),
    }
}

/// Files of a directory that may not be there, for their owner alone.
fn copy_files(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries.with_context(|| format!("cannot read {}", from.display()))?,
    };
    DataDir::create(to)?;
    let mut bytes = 0;
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            let copied = copy_file(&path, &to.join(path.file_name().unwrap_or_default()));
            bytes += copied.with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    sync(to)?;
    Ok(bytes)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<u64> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let bytes = match File::open(from) {
        // A key that was removed, or an outage that was booked, meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return fs::remove_file(to).map(|()| 0),
        opened => io::copy(&mut opened?, &mut file)?,
    };
    file.sync_all()?;
    Ok(bytes)
}

fn sync(dir: &Path) -> anyhow::Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| format!("cannot write {}", dir.display()))
}

/// On the same disk, so that it can be renamed.
fn beside(out: &Path) -> PathBuf {
    // Without a slash at its end.
    let mut name: OsString = out.components().collect::<PathBuf>().into();
    name.push(UNFINISHED);
    name.into()
}
