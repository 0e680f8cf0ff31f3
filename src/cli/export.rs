//! `apportion export --tenant ID --out FILE`: everything that is kept of a
//! tenant, one JSON object a line, also beside a running server. Read in pages,
//! so that memory does not grow with what there is.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use super::{Common, say};
use crate::domain::charge::TenantRef;
use crate::domain::ids::{HoldId, TenantId, UserId};
use crate::domain::time::Millis;
use crate::http::export;
use crate::ledger::{AuditQuery, FeedPage, FeedQuery, Ledger, RecordKind, UserQuery};
use crate::service::Tenant;
use crate::startup;

/// Rows read at once.
const PAGE: u32 = 500;

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Whose data
    #[arg(long, value_name = "ID", value_parser = TenantId::parse)]
    tenant: TenantId,
    /// The file to write; it must not be there yet
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub fn run(common: &Common, args: ExportArgs) -> anyhow::Result<ExitCode> {
    let config = common.load(None)?;
    super::runtime()?.block_on(async {
        let data = startup::open_existing(&config).await?;
        let tenant = data.registry.tenant(&args.tenant).await?;
        let file = OpenOptions::new().write(true).create_new(true).open(&args.out);
        let file = file.with_context(|| format!("cannot write to {}", args.out.display()))?;
        let mut export =
            Export { ledger: Arc::clone(&data.ledger), tenant, out: BufWriter::new(file), lines: 0 };
        let done = export.write().await;
        data.ledger.close().await;
        done.with_context(|| format!("the export in {} is not complete", args.out.display()))?;
        say(format_args!("{} lines", export.lines))?;
        Ok(ExitCode::SUCCESS)
    })
}

struct Export<W> {
    ledger: Arc<dyn Ledger>,
    tenant: Arc<Tenant>,
    out: W,
    lines: u64,
}

impl<W: Write> Export<W> {
    /// The last line says how many there were: without it an export is not whole.
    async fn write(&mut self) -> anyhow::Result<()> {
        let tenant = &self.tenant;
        let first =
            json!({"kind": "tenant", "tenant": tenant.id.as_str(), "test": tenant.test, "at": tenant.now()});
        self.line(first)?;
        self.records().await?;
        self.orgs().await?;
        self.users().await?;
        self.usage().await?;
        self.audit().await?;
        let last = json!({"kind": "end", "lines": self.lines});
        self.line(last)?;
        Ok(self.out.flush()?)
    }

    fn line(&mut self, line: Value) -> anyhow::Result<()> {
        writeln!(self.out, "{line}")?;
        self.lines += 1;
        Ok(())
    }

    fn number(&self) -> TenantRef {
        self.tenant.number
    }

    /// Every version of what is in force, keys excepted.
    async fn records(&mut self) -> anyhow::Result<()> {
        for record in self.ledger.records(Some(self.number())).await? {
            if record.kind == RecordKind::Key {
                continue;
            }
            let versions = self.ledger.versions(Some(self.number()), record.kind, record.id).await?;
            for version in versions.iter().rev() {
                self.line(export::record(version))?;
            }
        }
        Ok(())
    }

    async fn orgs(&mut self) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let orgs = self.ledger.orgs(self.number(), after, PAGE).await?;
            let Some(last) = orgs.last() else { return Ok(()) };
            after = Some(last.id.clone());
            for org in &orgs {
                self.line(export::org(org))?;
            }
        }
    }

    /// Each user with their holds behind them.
    async fn users(&mut self) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let query = UserQuery { after, limit: PAGE, ..UserQuery::default() };
            let users = self.ledger.users(self.number(), query).await?;
            let Some(last) = users.last() else { return Ok(()) };
            after = Some(last.id.as_str().to_owned());
            for user in &users {
                self.line(export::user(user))?;
                self.holds(&user.id).await?;
            }
        }
    }

    async fn holds(&mut self, user: &UserId) -> anyhow::Result<()> {
        let mut after: Option<HoldId> = None;
        loop {
            let (instants, now) = (Millis(0)..Millis::OF_LAST_ID, self.tenant.now());
            let holds = self.ledger.holds_made(self.number(), user.clone(), instants, after, PAGE).await?;
            let Some(last) = holds.last() else { return Ok(()) };
            after = Some(last.id);
            for hold in &holds {
                self.line(export::hold(hold, now))?;
            }
        }
    }

    async fn usage(&mut self) -> anyhow::Result<()> {
        let (mut after, mut seal) = (None, 0);
        loop {
            match self.ledger.feed(self.number(), FeedQuery { after, seal, limit: PAGE }).await? {
                FeedPage::Events { events, last, seal: newest, more } => {
                    for event in &events {
                        self.line(export::usage(event))?;
                    }
                    if !more {
                        return Ok(());
                    }
                    (after, seal) = (Some(last), newest);
                }
                FeedPage::Gone => bail!("events went while they were read: try again"),
            }
        }
    }

    /// Newest first.
    async fn audit(&mut self) -> anyhow::Result<()> {
        let mut before = None;
        loop {
            let query = AuditQuery { before, limit: PAGE, ..AuditQuery::default() };
            let entries = self.ledger.audit(self.number(), query).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            before = Some(last.number);
            for entry in &entries {
                self.line(export::audit(entry))?;
            }
        }
    }
}
