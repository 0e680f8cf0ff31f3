//! The report of a replay: figures, and their two forms (text, JSON).
//!
//! Nothing in it depends on when, where or how fast the replay ran, so that
//! the same trace, sheets and seed give the same bytes.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use crate::domain::hold::Amounts;
use crate::domain::time::Millis;

use super::run::Plan;

#[derive(Debug, Serialize)]
pub struct Report {
    pub trace: TraceSummary,
    pub rules: Rules,
    pub total: Tally,
    /// In the order of the mix.
    pub plans: Vec<PlanRow>,
    pub overruns: Overruns,
    /// By total tokens used, descending; ties by user.
    pub top_users: Vec<UserRow>,
    pub pools: Vec<PoolRow>,
    pub ledger: LedgerCheck,
}

#[derive(Debug, Serialize)]
pub struct TraceSummary {
    pub file: String,
    pub calls: u64,
    pub first: Millis,
    pub last: Millis,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl TraceSummary {
    pub fn new(plan: &Plan) -> Self {
        Self {
            file: plan.file.clone(),
            calls: plan.calls.len() as u64,
            first: plan.calls[0].at,
            last: plan.calls[plan.calls.len() - 1].at,
            input_tokens: plan.calls.iter().map(|call| call.input_tokens).sum(),
            output_tokens: plan.calls.iter().map(|call| call.output_tokens).sum(),
        }
    }
}

/// The assumptions under which the figures hold.
#[derive(Debug, Serialize)]
pub struct Rules {
    pub users: u32,
    pub seed: u64,
    pub mix: String,
    pub draw: &'static str,
    pub check: &'static str,
    pub settle: String,
    pub refused: &'static str,
}

/// Sums over some calls; amounts in the meters' units.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Tally {
    pub calls: u64,
    pub admitted: u64,
    pub refused: u64,
    pub refused_by_code: BTreeMap<&'static str, u64>,
    /// What the admitted checks held.
    pub reserved: Amounts,
    /// What their settles counted.
    pub used: Amounts,
}

impl Tally {
    pub fn refuse(&mut self, code: &'static str) {
        self.calls += 1;
        self.refused += 1;
        *self.refused_by_code.entry(code).or_default() += 1;
    }

    pub fn admit(&mut self, reserved: &Amounts) {
        self.calls += 1;
        self.admitted += 1;
        add(&mut self.reserved, reserved);
    }

    pub fn settle(&mut self, used: &Amounts) {
        add(&mut self.used, used);
    }

    /// Adds another tally to this one.
    pub fn include(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.admitted += other.admitted;
        self.refused += other.refused;
        for (code, refused) in &other.refused_by_code {
            *self.refused_by_code.entry(code).or_default() += refused;
        }
        add(&mut self.reserved, &other.reserved);
        add(&mut self.used, &other.used);
    }
}

/// Adds meter by meter.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    sum.requests += more.requests;
    sum.input_tokens += more.input_tokens;
    sum.output_tokens += more.output_tokens;
    sum.total_tokens += more.total_tokens;
    sum.credits += more.credits;
}

#[derive(Debug, Serialize)]
pub struct PlanRow {
    pub plan: String,
    /// Users who have the plan, and those of them who made a call.
    pub users: u64,
    pub active_users: u64,
    #[serde(flatten)]
    pub tally: Tally,
}

/// Calls that generated more than they were granted.
#[derive(Debug, Default, Serialize)]
pub struct Overruns {
    pub calls: u64,
    pub output_tokens: u64,
}

#[derive(Debug, Serialize)]
pub struct UserRow {
    pub rank: u64,
    pub user: String,
    pub plan: String,
    pub calls: u64,
    pub admitted: u64,
    pub refused: u64,
    pub total_tokens: u64,
}

#[derive(Debug, Serialize)]
pub struct PoolRow {
    pub pool: String,
    pub enforced: bool,
    pub limits: Vec<PoolLimitRow>,
}

#[derive(Debug, Serialize)]
pub struct PoolLimitRow {
    pub name: String,
    /// Seconds over which the peak is summed; `None` for slots (calls in
    /// flight) and for windows.
    pub window_seconds: Option<u32>,
    /// What passes in any such window: the vendor's figure less the margin.
    pub allowed: u64,
    pub vendor_limit: Option<u64>,
    pub peak: u64,
    pub peak_at: Option<Millis>,
}

/// The ledger's sums beside the replay's own.
#[derive(Debug, Serialize)]
pub struct LedgerCheck {
    pub agrees: bool,
    pub recorded: Amounts,
    /// Plans whose sums differ (empty when all agree).
    pub differing_plans: Vec<String>,
}

impl Report {
    /// One JSON object.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// The report for people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        let trace = &self.trace;
        writeln!(out, "Replay of {}: {} calls", trace.file, grouped(trace.calls))?;
        writeln!(out, "  from {} to {}", trace.first, trace.last)?;
        let rules = &self.rules;
        writeln!(out, "\nRules")?;
        writeln!(out, "  users     {}, {}, seed {}", grouped(rules.users.into()), rules.draw, rules.seed)?;
        writeln!(out, "  plans     {}", rules.mix)?;
        writeln!(out, "  check     {}", rules.check)?;
        writeln!(out, "  settle    {}", rules.settle)?;
        writeln!(out, "  refused   {}", rules.refused)?;
        self.write_decisions(out)?;
        self.write_refusals(out)?;
        self.write_tokens(out)?;
        self.write_users(out)?;
        self.write_pools(out)?;
        writeln!(out, "\n{}", self.ledger)
    }

    fn write_decisions(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\n{:<18}{:>9}{:>9}{:>11}{:>11}{:>11}{:>10}",
            "Decisions", "users", "active", "calls", "admitted", "refused", "share"
        )?;
        let mut line = |name: &str, users: u64, active: u64, tally: &Tally| {
            writeln!(
                out,
                "  {:<16}{:>9}{:>9}{:>11}{:>11}{:>11}{:>10}",
                name,
                grouped(users),
                grouped(active),
                grouped(tally.calls),
                grouped(tally.admitted),
                grouped(tally.refused),
                percent(tally.admitted, tally.calls)
            )
        };
        for row in &self.plans {
            line(&row.plan, row.users, row.active_users, &row.tally)?;
        }
        let users = |pick: fn(&PlanRow) -> u64| self.plans.iter().map(pick).sum();
        line("all", users(|row| row.users), users(|row| row.active_users), &self.total)
    }

    fn write_refusals(&self, out: &mut String) -> fmt::Result {
        if self.total.refused == 0 {
            return writeln!(out, "\nNo call was refused");
        }
        write!(out, "\n{:<30}", "Refused by code")?;
        for row in &self.plans {
            write!(out, "{:>12}", row.plan)?;
        }
        writeln!(out, "{:>12}", "all")?;
        for (code, all) in &self.total.refused_by_code {
            write!(out, "  {code:<28}")?;
            for row in &self.plans {
                let refused = row.tally.refused_by_code.get(code).copied().unwrap_or_default();
                write!(out, "{:>12}", grouped(refused))?;
            }
            writeln!(out, "{:>12}", grouped(*all))?;
        }
        Ok(())
    }

    fn write_tokens(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\n{:<24}{:>15}{:>15}{:>10}", "Tokens (admitted calls)", "reserved", "used", "share")?;
        let mut line = |name: &str, reserved: u64, used: u64| {
            let share = percent(used, reserved);
            writeln!(out, "  {name:<22}{:>15}{:>15}{share:>10}", grouped(reserved), grouped(used))
        };
        for row in &self.plans {
            let (reserved, used) = (&row.tally.reserved, &row.tally.used);
            line(&format!("{} output", row.plan), reserved.output_tokens, used.output_tokens)?;
        }
        let (reserved, used) = (&self.total.reserved, &self.total.used);
        line("all output", reserved.output_tokens, used.output_tokens)?;
        line("all input", reserved.input_tokens, used.input_tokens)?;
        line("all total", reserved.total_tokens, used.total_tokens)?;
        if reserved.credits > 0 || used.credits > 0 {
            line("all micro-credits", reserved.credits, used.credits)?;
        }
        writeln!(
            out,
            "  {} calls generated more than they were granted, {} tokens in all",
            grouped(self.overruns.calls),
            grouped(self.overruns.output_tokens)
        )
    }

    fn write_users(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\n{:<6}{:<20}{:<14}{:>9}{:>10}{:>9}{:>14}{:>8}",
            "Top", "user", "plan", "calls", "admitted", "refused", "tokens used", "share"
        )?;
        for row in &self.top_users {
            writeln!(
                out,
                "  {:<4}{:<20}{:<14}{:>9}{:>10}{:>9}{:>14}{:>8}",
                row.rank,
                row.user,
                row.plan,
                grouped(row.calls),
                grouped(row.admitted),
                grouped(row.refused),
                grouped(row.total_tokens),
                percent(row.total_tokens, self.total.used.total_tokens)
            )?;
        }
        Ok(())
    }

    fn write_pools(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\nPools (fullest window: what calls held, or had used by then)")?;
        for row in &self.pools {
            let enforced = if row.enforced { "enforced" } else { "not enforced: for planning only" };
            writeln!(out, "  {} ({enforced})", row.pool)?;
            for limit in &row.limits {
                let over = limit.window_seconds.map_or(String::new(), |seconds| format!(" in {seconds} s"));
                let at = limit.peak_at.map_or(String::new(), |at| format!(", at {at}"));
                let vendor = limit
                    .vendor_limit
                    .map_or(String::new(), |vendor| format!("; the vendor allows {}", grouped(vendor)));
                writeln!(
                    out,
                    "    {}: {} of {}{over} ({}{at}{vendor})",
                    limit.name,
                    grouped(limit.peak),
                    grouped(limit.allowed),
                    percent(limit.peak, limit.allowed),
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for LedgerCheck {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = &self.recorded;
        let verdict = match self.agrees {
            true => "the same, plan by plan".to_owned(),
            false => format!("DIFFERENT for {}", self.differing_plans.join(", ")),
        };
        write!(
            out,
            "Ledger: {} requests, {} input + {} output = {} total tokens: {verdict}",
            grouped(sums.requests),
            grouped(sums.input_tokens),
            grouped(sums.output_tokens),
            grouped(sums.total_tokens)
        )
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `part` of `whole` in percent with one decimal, half up; `-` of nothing.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let whole = u128::from(whole);
    let tenths = (u128::from(part) * 2_000 + whole) / (2 * whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_easily() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1_000, 1_234_567].map(grouped).each_ref().map(String::as_str)
        );
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(2, 3), "66.7 %");
        assert_eq!(percent(5, 5), "100.0 %");
        assert_eq!(percent(0, 0), "-");
    }
}
