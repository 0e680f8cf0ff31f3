//! `apportion capacity`: what the plans may draw together, against a pool.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::domain::capacity::{self, MeterReport, Report, parse_active};
use crate::domain::ids::{Name, TenantId};
use crate::domain::plan::{Pool, Sheet, shipped};
use crate::startup;

use super::input::{PlanNumbers, read_plans};
use super::replay::{grouped, percent};
use super::{Common, Usage, say};

#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Users active at the same time: free=60,standard=20,pro=5 [default: the
    /// tenant's measured peak of the last 7 days]
    #[arg(long, value_name = "PLAN=USERS,...", value_parser = parse_active)]
    active: Option<PlanNumbers>,
    /// Folder of plans [default: plans, or the shipped ones where there is no such folder]
    #[arg(long, value_name = "DIR", conflicts_with = "tenant")]
    plans: Option<PathBuf>,
    /// Take the plans and pools of this tenant
    #[arg(long, value_name = "ID", value_parser = TenantId::parse)]
    tenant: Option<TenantId>,
    /// The pool to compare with
    #[arg(long, default_value = "default", value_parser = Name::parse)]
    pool: Name,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Exit code 1 when the sustained demand does not fit, 2 when the question
/// cannot be answered.
pub fn run(common: &Common, args: CapacityArgs) -> anyhow::Result<ExitCode> {
    let report = answer(common, &args).map_err(|error| match error.is::<Usage>() {
        true => error,
        // Code 1 means "does not fit" and nothing else.
        false => Usage(format!("{error:#}")).into(),
    })?;
    if args.json {
        say(serde_json::to_string_pretty(&report)?)?;
    } else {
        say(text(&report).trim_end())?;
    }
    Ok(ExitCode::from(if report.fits { 0 } else { 1 }))
}

fn answer(common: &Common, args: &CapacityArgs) -> anyhow::Result<Report> {
    if args.active.as_ref().is_some_and(Vec::is_empty) {
        return Err(Usage("--active names no plan; expected such as free=60,pro=5".into()).into());
    }
    let (sheets, pools, measured) = match &args.tenant {
        Some(tenant) => of_tenant(common, tenant)?,
        None => of_folder(args.plans.as_deref())?,
    };
    let active = args.active.clone().or(measured).ok_or_else(|| {
        Usage(
            "how many users are active? Give --active free=60,pro=5, or --tenant, whose peak is measured"
                .into(),
        )
    })?;
    let pool = pools
        .iter()
        .find(|pool| pool.id == args.pool)
        .ok_or_else(|| Usage(format!("there is no pool named {}", args.pool)))?;
    let told = |fault: &crate::domain::document::Fault| format!("{}: {}", fault.pointer, fault.message);
    capacity::check(&sheets, pool, &active)
        .map_err(|faults| Usage(faults.iter().map(told).collect::<Vec<_>>().join("; ")).into())
}

/// Plans and pools, and the active users if they were measured.
type Content = (Vec<Sheet>, Vec<Pool>, Option<PlanNumbers>);

fn of_folder(dir: Option<&Path>) -> anyhow::Result<Content> {
    let default = Path::new("plans");
    let content = match dir {
        None if !default.is_dir() => shipped(),
        dir => read_plans(dir.unwrap_or(default))?.content,
    };
    Ok((content.sheets, content.pools, None))
}

fn of_tenant(common: &Common, id: &TenantId) -> anyhow::Result<Content> {
    let config = common.load(None)?;
    super::runtime()?.block_on(async {
        let data = startup::open_existing(&config).await?;
        let tenant = data.registry.tenant(id).await?;
        let (catalog, now) = (tenant.catalog(), tenant.now());
        let sheets = catalog.plans.values().map(|plan| plan.current(now).sheet.clone()).collect();
        let pools = catalog.pools.iter().map(|entry| entry.pool.clone()).collect();
        let peak = data.registry.measured_peak(&tenant).await;
        data.ledger.close().await;
        Ok((sheets, pools, Some(peak?)))
    })
}

fn text(report: &Report) -> String {
    let mut out = format!("Pool {}\n", report.pool);
    for meter in &report.meters {
        out.push('\n');
        write_meter(&mut out, meter);
    }
    let verdict = |fits: bool| if fits { "fits" } else { "DOES NOT FIT" };
    out.push_str(&format!(
        "\nSustained demand: {}. Worst window: {}.\n",
        verdict(report.fits),
        verdict(report.burst_fits)
    ));
    out
}

fn write_meter(out: &mut String, meter: &MeterReport) {
    let per = meter.per.as_ref().map_or(String::new(), |per| format!(" per {per}"));
    out.push_str(&format!(
        "{:<26}{:>9}{:>14}{:>16}{:>18}\n",
        format!("{}{per}", meter.meter),
        "active",
        "each",
        "together",
        "largest that fits"
    ));
    let figure = |figure: Option<u64>| figure.map_or("no bound".to_owned(), grouped);
    for row in &meter.by_plan {
        out.push_str(&format!(
            "  {:<24}{:>9}{:>14}{:>16}{:>18}\n",
            row.plan.as_str(),
            grouped(row.active),
            figure(row.rate),
            figure(row.demand),
            if meter.allowed.is_some() {
                row.largest_rate.map_or("-".to_owned(), grouped)
            } else {
                "-".to_owned()
            }
        ));
    }
    let Some(allowed) = meter.allowed else {
        out.push_str(&format!("  {} together; the pool has no limit here\n", figure(meter.demand)));
        return;
    };
    let share = meter.demand.map_or(String::new(), |demand| format!(" ({})", percent(demand, allowed)));
    let vendor = match (meter.vendor_limit, meter.margin) {
        (Some(vendor), Some(margin)) => format!(", the vendor's {} x {}", grouped(vendor), margin.as_f64()),
        _ => String::new(),
    };
    out.push_str(&format!(
        "  {} of {} allowed{vendor}{share}: {}\n",
        figure(meter.demand),
        grouped(allowed),
        if meter.fits { "fits" } else { "DOES NOT FIT" }
    ));
    if let (Some(burst), Some(allowed)) = (meter.burst, meter.burst_allowed) {
        out.push_str(&format!(
            "  worst window {} of {}: {}\n",
            grouped(burst),
            grouped(allowed),
            if meter.burst_fits { "fits" } else { "does not fit: stored allowances may be spent at once" }
        ));
    }
    if let Some(reason) = &meter.reason {
        out.push_str(&format!("  {reason}\n"));
    }
}
