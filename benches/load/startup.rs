//! How long a start takes with many users on record, what it costs in memory,
//! and how users are met who have not called since.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use apportion::domain::account::Account;
use apportion::domain::charge::{AccountKey, TenantRef};
use apportion::domain::hold::Hold;
use apportion::domain::ids::{HoldId, UserId};
use apportion::domain::plan::{Scope, Sheet};
use apportion::ledger::{Change, Durability, Ledger, SqliteLedger, UsageDelta};

use crate::client::{Way, drive};
use crate::options::Options;
use crate::requests::{Checks, Picks};
use crate::sheet::{self, Random};
use crate::targets;

/// Users written at once.
const BATCH: usize = 10_000;

pub fn run(options: &Options) -> anyhow::Result<()> {
    let data = targets::scratch(options)?;
    let token = targets::create_tenant(options, data.path(), "open", &[])?;
    {
        let server = targets::serve(options, data.path(), "os", &[])?;
        targets::put_sheet(server.address, &token, serde_json::from_str(sheet::SHEET)?)?;
    }
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(fill(data.path(), options.users))?;
    let bytes = std::fs::metadata(database(data.path()))?.len();
    eprintln!(
        "{} users written in {:.1} s, {:.0} MB",
        options.users,
        begun.elapsed().as_secs_f64(),
        bytes as f64 / 1e6
    );

    let begun = Instant::now();
    let server = targets::serve(options, data.path(), "commit", &[])?;
    let ready = begun.elapsed();
    println!(
        "ready {:.0} ms after the start, {:.0} MB resident, {:.0} ms of CPU",
        ready.as_secs_f64() * 1e3,
        server.rss()? as f64 / 1e6,
        server.cpu()?.total() / 1e3
    );

    let way = Way {
        address: server.address,
        connections: options.connections,
        seconds: None,
        rate: options.rate,
        status: 200,
        keeps_holds: false,
    };
    let first = options.users.min(100_000);
    for turn in ["first", "second"] {
        let before = server.cpu()?;
        let picks = Picks::spread(options.users, first);
        let mut tally = drive(way, Checks::some(&token, picks, first))?;
        server.wait_until_idle()?;
        println!(
            "{turn} check of {first} users: {:.0}/s, CPU {:.1} us, p50 {:.0} us, p99 {:.0} us, {} wrong; {:.0} MB resident",
            tally.items as f64 / tally.seconds,
            server.cpu()?.since(before).total() / tally.items.max(1) as f64,
            tally.quantile(0.5),
            tally.quantile(0.99),
            tally.wrong,
            server.rss()? as f64 / 1e6
        );
    }
    Ok(())
}

fn database(data: &Path) -> std::path::PathBuf {
    data.join("apportion.db")
}

/// Puts users on record, each with one settled call.
async fn fill(data: &Path, users: usize) -> anyhow::Result<()> {
    let ledger = SqliteLedger::open(&database(data), Durability::Os).await?;
    let tenants = ledger.tenants().await?;
    let tenant = tenants.iter().find(|row| row.id.as_str() == "open").context("the tenant is there")?.number;
    let pattern = Pattern::new(tenant)?;
    let mut random = Random(1);
    for first in (0..users).step_by(BATCH) {
        let last = users.min(first + BATCH);
        let changes =
            (first..last).map(|user| pattern.change(user, &mut random)).collect::<Result<_, _>>()?;
        ledger.commit(changes).await?;
    }
    ledger.close().await;
    Ok(())
}

/// What every user has on record.
struct Pattern {
    hold: Hold,
    account: Arc<[u8]>,
    usage: UsageDelta,
}

impl Pattern {
    fn new(tenant: TenantRef) -> anyhow::Result<Self> {
        let sheet: Sheet = sheet::sheet(sheet::LIMITS);
        let now = sheet::now();
        let ask = sheet::ask(&sheet, now);
        let mut account = Account::default();
        let mut hold = sheet::draft(&sheet, tenant, UserId::parse("u")?, now);
        sheet::take(&mut account, &ask, &mut hold, now);
        let settlement = sheet::settlement(now);
        let counted = settlement.counted;
        sheet::finish(&mut account, &mut hold, settlement, &ask.charges, now);
        hold.admits_user = true;
        let usage = UsageDelta {
            model: hold.model.clone(),
            requests: 1,
            input_tokens: counted.input_tokens as i64,
            output_tokens: counted.output_tokens as i64,
            total_tokens: counted.total_tokens as i64,
            credits: 0,
        };
        Ok(Self { hold, account: account.pack().into(), usage })
    }

    fn change(&self, user: usize, random: &mut Random) -> anyhow::Result<Change> {
        let user = UserId::parse(&format!("u_{user:08}"))?;
        let noise = u128::from(random.next()) << 64 | u128::from(random.next());
        let hold = Hold {
            id: HoldId::from_parts(self.hold.created_at.0, noise.to_be_bytes()),
            user: user.clone(),
            ..self.hold.clone()
        };
        let key = AccountKey { tenant: hold.tenant, scope: Scope::User, owner: user.shared() };
        let accounts = vec![(key, Arc::clone(&self.account))];
        Ok(Change {
            hold: Some(Arc::new(hold)),
            usage: Some(self.usage.clone()),
            accounts,
            ..Change::default()
        })
    }
}
