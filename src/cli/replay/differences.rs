//! Where two limiters decide differently: figures, and their two forms (text,
//! JSON).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use crate::ledger::UsageRow;
use crate::service::THEY_ALLOW;

use super::outcome::Outcome;
use super::report::{LedgerCheck, TraceSummary, grouped, percent};
use super::run::{MS_BEFORE_FIRST_TOKEN, MS_PER_OUTPUT_TOKEN, Plan, user_id};

const TOP_USERS: usize = 10;

/// Nothing in it depends on when, where or how fast the replay ran.
#[derive(Debug, Serialize)]
pub struct Differences {
    pub trace: TraceSummary,
    pub rules: Rules,
    pub total: Agreement,
    /// By calls, descending; ties by the words.
    pub pairs: Vec<Pair>,
    /// In the order of the mix.
    pub plans: Vec<PlanRow>,
    /// By calls decided differently, descending; ties by user.
    pub top_users: Vec<UserRow>,
    pub ledger: LedgerCheck,
}

/// The assumptions under which the figures hold.
#[derive(Debug, Serialize)]
pub struct Rules {
    pub users: u32,
    pub seed: u64,
    pub mix: String,
    pub theirs: String,
    pub ours: String,
    pub made: String,
}

/// How calls were decided by both.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Agreement {
    pub calls: u64,
    pub both_allow: u64,
    pub both_refuse: u64,
    pub only_ours_refuse: u64,
    pub only_theirs_refuse: u64,
}

impl Agreement {
    fn count(&mut self, ours: &str, theirs: &str) {
        self.calls += 1;
        *match (ours == THEY_ALLOW, theirs == THEY_ALLOW) {
            (true, true) => &mut self.both_allow,
            (false, false) => &mut self.both_refuse,
            (false, true) => &mut self.only_ours_refuse,
            (true, false) => &mut self.only_theirs_refuse,
        } += 1;
    }

    fn alike(&self) -> u64 {
        self.both_allow + self.both_refuse
    }

    fn different(&self) -> u64 {
        self.only_ours_refuse + self.only_theirs_refuse
    }
}

/// Calls with these two decisions: `allow` or a refusal's code.
#[derive(Debug, Serialize)]
pub struct Pair {
    pub ours: &'static str,
    pub theirs: &'static str,
    pub calls: u64,
}

#[derive(Debug, Serialize)]
pub struct PlanRow {
    pub plan: String,
    #[serde(flatten)]
    pub agreement: Agreement,
}

#[derive(Debug, Serialize)]
pub struct UserRow {
    pub rank: u64,
    pub user: String,
    pub plan: String,
    #[serde(flatten)]
    pub agreement: Agreement,
}

impl Differences {
    /// Compares call by call. `theirs` has a word for each call of the trace,
    /// `rows` is all that the ledger has recorded of ours.
    pub fn new(
        plan: &Plan,
        against: &str,
        theirs: &[&'static str],
        ours: &Outcome,
        rows: &[UsageRow],
    ) -> anyhow::Result<Self> {
        let mut total = Agreement::default();
        let mut pairs: BTreeMap<(&'static str, &'static str), u64> = BTreeMap::new();
        let mut plans = vec![Agreement::default(); plan.mix.len()];
        let mut users = vec![Agreement::default(); plan.users as usize];
        for (decision, theirs) in ours.decisions.iter().zip(theirs) {
            let (user, ours_of_call) = (decision.user, decision.word);
            *pairs.entry((ours_of_call, *theirs)).or_default() += 1;
            let of_plan = &mut plans[usize::from(ours.plan_of[user])];
            for agreement in [&mut total, of_plan, &mut users[user]] {
                agreement.count(ours_of_call, theirs);
            }
        }
        let mut pairs: Vec<Pair> =
            pairs.into_iter().map(|((ours, theirs), calls)| Pair { ours, theirs, calls }).collect();
        pairs.sort_by_key(|pair| (Reverse(pair.calls), pair.ours, pair.theirs));
        let plans = plan.mix.iter().zip(plans);
        Ok(Self {
            trace: TraceSummary::new(plan),
            rules: Rules {
                users: plan.users,
                seed: plan.seed,
                mix: plan.shares(),
                theirs: format!("{against}, enforced"),
                ours: format!("{}, in shadow", plan.plans),
                made: format!(
                    "what they allow is made and settled with its true tokens, {MS_BEFORE_FIRST_TOKEN} ms + \
                     {MS_PER_OUTPUT_TOKEN} ms an output token later; what they refuse is released at once"
                ),
            },
            total,
            pairs,
            plans: plans
                .map(|((plan, _), agreement)| PlanRow { plan: plan.to_string(), agreement })
                .collect(),
            top_users: top_users(plan, ours, users)?,
            ledger: ours.compare_with_ledger(plan, rows),
        })
    }

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
        let (trace, rules) = (&self.trace, &self.rules);
        writeln!(out, "Replay of {}: {} calls, decided twice", trace.file, grouped(trace.calls))?;
        writeln!(out, "  from {} to {}", trace.first, trace.last)?;
        writeln!(out, "\nRules")?;
        writeln!(out, "  users     {}, Zipf's rule, seed {}", grouped(rules.users.into()), rules.seed)?;
        writeln!(out, "  plans     {}", rules.mix)?;
        writeln!(out, "  theirs    {}", rules.theirs)?;
        writeln!(out, "  ours      {}", rules.ours)?;
        writeln!(out, "  calls     {}", rules.made)?;
        self.write_sides(out)?;
        self.write_pairs(out)?;
        self.write_plans(out)?;
        self.write_users(out)?;
        writeln!(out, "\n{}", self.ledger)
    }

    fn write_sides(&self, out: &mut String) -> fmt::Result {
        let total = &self.total;
        writeln!(out, "\n{:<18}{:>15}{:>15}", "Decisions", "theirs allow", "theirs refuse")?;
        for (name, allow, refuse) in [
            ("ours allow", total.both_allow, total.only_theirs_refuse),
            ("ours refuse", total.only_ours_refuse, total.both_refuse),
        ] {
            writeln!(out, "  {name:<16}{:>15}{:>15}", grouped(allow), grouped(refuse))?;
        }
        let alike = percent(total.alike(), total.calls);
        writeln!(out, "  alike: {} of {} calls ({alike})", grouped(total.alike()), grouped(total.calls))
    }

    fn write_pairs(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\n{:<28}{:<26}{:>11}{:>10}", "By cause: ours", "theirs", "calls", "share")?;
        for pair in &self.pairs {
            let share = percent(pair.calls, self.total.calls);
            writeln!(out, "  {:<26}{:<26}{:>11}{share:>10}", pair.ours, pair.theirs, grouped(pair.calls))?;
        }
        Ok(())
    }

    fn write_plans(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\n{:<16}{:>10}{:>12}{:>13}{:>12}{:>13}{:>10}",
            "Plans", "calls", "both allow", "both refuse", "only ours", "only theirs", "alike"
        )?;
        for row in &self.plans {
            write_agreement(out, &format!("  {:<14}", row.plan), &row.agreement)?;
        }
        write_agreement(out, &format!("  {:<14}", "all"), &self.total)
    }

    fn write_users(&self, out: &mut String) -> fmt::Result {
        if self.top_users.is_empty() {
            return writeln!(out, "\nNo user is decided differently");
        }
        writeln!(
            out,
            "\n{:<6}{:<14}{:<12}{:>8}{:>12}{:>13}{:>12}{:>13}{:>10}",
            "Most", "user", "plan", "calls", "both allow", "both refuse", "only ours", "only theirs", "alike"
        )?;
        for row in &self.top_users {
            let head = format!("  {:<4}{:<14}{:<10}", row.rank, row.user, row.plan);
            write_agreement(out, &head, &row.agreement)?;
        }
        Ok(())
    }
}

fn write_agreement(out: &mut String, head: &str, agreement: &Agreement) -> fmt::Result {
    writeln!(
        out,
        "{head}{:>10}{:>12}{:>13}{:>12}{:>13}{:>10}",
        grouped(agreement.calls),
        grouped(agreement.both_allow),
        grouped(agreement.both_refuse),
        grouped(agreement.only_ours_refuse),
        grouped(agreement.only_theirs_refuse),
        percent(agreement.alike(), agreement.calls)
    )
}

fn top_users(plan: &Plan, ours: &Outcome, users: Vec<Agreement>) -> anyhow::Result<Vec<UserRow>> {
    let mut order: Vec<(usize, Agreement)> =
        users.into_iter().enumerate().filter(|(_, agreement)| agreement.different() > 0).collect();
    order.sort_by_key(|(user, agreement)| (Reverse(agreement.different()), *user));
    let rows = order.into_iter().take(TOP_USERS).zip(1..).map(|((index, agreement), rank)| {
        let plan = plan.mix[usize::from(ours.plan_of[index])].0.to_string();
        Ok(UserRow { rank, user: user_id(index)?.to_string(), plan, agreement })
    });
    rows.collect()
}
