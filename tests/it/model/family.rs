//! Families of commands, so that a run can be narrowed to some of them.
//!
//! `ORACLE_FAMILIES` names those of a run, separated by commas; without it all take part.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Versions of sheets that wait, or are for new users only.
    Versions,
    /// Moves of users with a time, a sequence, a trial.
    Moves,
    Overrides,
    Grants,
    /// Orgs with sheets of their own, and users who change theirs.
    Orgs,
    OrgRights,
    /// Zones and anchors of users, orgs, limits and the tenant.
    Calendars,
    /// Suspended and unverified users.
    Standing,
    /// The tenant's rule for holds in doubt.
    Rules,
    /// The admin's word on holds in doubt.
    Resolve,
    Shadow,
    Denial,
    /// Documents of users and orgs.
    Documents,
}

const ALL: [(&str, Family); 13] = [
    ("versions", Family::Versions),
    ("moves", Family::Moves),
    ("overrides", Family::Overrides),
    ("grants", Family::Grants),
    ("orgs", Family::Orgs),
    ("orgrights", Family::OrgRights),
    ("calendars", Family::Calendars),
    ("standing", Family::Standing),
    ("rules", Family::Rules),
    ("resolve", Family::Resolve),
    ("shadow", Family::Shadow),
    ("denial", Family::Denial),
    ("documents", Family::Documents),
];

/// The families of this run.
pub fn families() -> Vec<Family> {
    match std::env::var("ORACLE_FAMILIES") {
        Ok(names) => names
            .split(',')
            .filter(|n| !n.is_empty())
            .map(|n| ALL.iter().find(|f| f.0 == n).unwrap_or_else(|| panic!("no family {n}")).1)
            .collect(),
        Err(_) => ALL.iter().map(|f| f.1).collect(),
    }
}
