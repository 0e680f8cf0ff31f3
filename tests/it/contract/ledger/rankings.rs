//! Who used most.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use apportion::domain::hold::Hold;
use apportion::domain::ids::Label;
use apportion::domain::quantity::MAX_AMOUNT;
use apportion::ledger::{
    Change, Duplicate, DuplicatesQuery, Erasure, Figure, Group, KeptPart, Ranked, Ranking, RankingQuery,
    RefusalCount, RefusedUser, Signal, Signals, Sums, Tally, UsageDelta, User,
};

use super::Room;
use super::samples::*;

fn used(hold: &Hold, delta: UsageDelta) -> Change {
    Change { usage: Some(delta), ..change(hold) }
}

fn asked(group: Group, by: Figure) -> RankingQuery {
    RankingQuery { days: i32::MIN..i32::MAX, group, by }
}

fn names(ranking: &Ranking) -> Vec<Option<&str>> {
    ranking.rows.iter().map(|row| row.name.as_deref()).collect()
}

pub async fn the_largest_come_first_and_equal_ones_by_name(room: impl Room) {
    let ledger = room.open().await;
    let of = |id: &str, tokens: i64| used(&Hold { user: user(id), ..hold(id, 1) }, delta(1, tokens));
    ledger.commit(vec![of("b", 10), of("a", 10), of("c", 30), of("B", 10), of("d", 5)]).await.unwrap();
    let query = asked(Group::User, Figure::TotalTokens);
    let ranking = ledger.ranking(TENANT, query.clone(), i32::MAX, 4).await.unwrap();
    assert_eq!(names(&ranking), [Some("c"), Some("B"), Some("a"), Some("b")]);
    assert_eq!((ranking.count, ranking.total.total_tokens, ranking.total.requests), (5, 3 * 65, 5));
    assert_eq!(ranking.rows[0].sums.input_tokens, 30);
    // Nobody else's, and nothing of other days.
    let day = hold("a", 1).day;
    let none = RankingQuery { days: day + 1..day + 9, ..query.clone() };
    assert_eq!(ledger.ranking(TENANT, none, i32::MAX, 4).await.unwrap(), Ranking::default());
    assert_eq!(ledger.ranking(OTHER, query, i32::MAX, 4).await.unwrap(), Ranking::default());
}

/// Calls of sixty days, from the middle of a September to that of a November, and
/// corrections of days long past.
fn calls_of_sixty_days() -> Vec<(Hold, UsageDelta)> {
    let mut seed = 7_u32;
    let mut random = |n: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % n
    };
    let label = |text: &str| (!text.is_empty()).then(|| Label::parse(text).unwrap());
    let named = |text: &str| (!text.is_empty()).then(|| name(text));
    let mut recorded: Vec<(Hold, UsageDelta)> = Vec::new();
    for number in 0..300 {
        let base = hold(&format!("u_{}", random(9)), number);
        let one = Hold {
            day: 20_712 + random(60) as i32,
            org: named(["", "acme", "zeta"][random(3) as usize]),
            plan: name(["free", "pro"][random(2) as usize]),
            feature: label(["", "chat", "search"][random(3) as usize]),
            ..base
        };
        let usage = UsageDelta {
            model: named(["", "opus", "haiku"][random(3) as usize]),
            requests: 1,
            input_tokens: random(50).into(),
            output_tokens: random(50_000).into(),
            total_tokens: random(100).into(),
            credits: random(1000).into(),
        };
        recorded.push((one, usage));
    }
    for number in 0..40 {
        let (hold, usage) = recorded[7 * number].clone();
        let (output_tokens, credits) = (-usage.output_tokens / 2, -usage.credits);
        let less =
            UsageDelta { requests: 0, input_tokens: 3, total_tokens: 0, output_tokens, credits, ..usage };
        recorded.push((hold, less));
    }
    recorded
}

/// The sums of what was recorded, made here.
fn sums_of(
    recorded: &[(Hold, UsageDelta)],
    days: &Range<i32>,
    group: Group,
) -> BTreeMap<Option<String>, Sums> {
    let mut sums: BTreeMap<Option<String>, Sums> = BTreeMap::new();
    for (hold, usage) in recorded.iter().filter(|(hold, _)| days.contains(&hold.day)) {
        let name = match group {
            Group::User => Some(hold.user.to_string()),
            Group::Org => hold.org.as_ref().map(ToString::to_string),
            Group::Model => usage.model.as_ref().map(ToString::to_string),
            Group::Plan => Some(hold.plan.to_string()),
            Group::Feature => hold.feature.as_ref().map(ToString::to_string),
        };
        let sum = sums.entry(name).or_default();
        let add = |to: &mut u64, more: i64| *to = to.checked_add_signed(more).unwrap();
        add(&mut sum.requests, usage.requests);
        add(&mut sum.input_tokens, usage.input_tokens);
        add(&mut sum.output_tokens, usage.output_tokens);
        add(&mut sum.total_tokens, usage.total_tokens);
        add(&mut sum.credits, usage.credits);
    }
    sums
}

pub async fn every_group_figure_and_span_is_the_sum_of_what_was_recorded(room: impl Room) {
    let ledger = room.open().await;
    let recorded = calls_of_sixty_days();
    ledger.commit(recorded.iter().map(|(hold, usage)| used(hold, usage.clone())).collect()).await.unwrap();
    let figures =
        [Figure::Requests, Figure::InputTokens, Figure::OutputTokens, Figure::TotalTokens, Figure::Credits];
    for days in [
        i32::MIN..i32::MAX,
        20_712..20_713,
        20_720..20_730,
        20_712..20_727,
        // October, and parts of it and of its neighbours.
        20_727..20_758,
        20_727..20_770,
        20_715..20_758,
        20_719..20_765,
        20_729..20_756,
        20_730..20_730,
    ] {
        for group in [Group::User, Group::Org, Group::Feature, Group::Model, Group::Plan] {
            let sums = sums_of(&recorded, &days, group);
            for by in figures {
                let mut expected: Vec<_> = sums.clone().into_iter().collect();
                expected.sort_by(|(a, one), (b, other)| other.of(by).cmp(&one.of(by)).then(a.cmp(b)));
                let query = RankingQuery { days: days.clone(), group, by };
                for (today, limit) in [(20_771, 100), (i32::MAX, 100), (20_771, 3)] {
                    let ranking = ledger.ranking(TENANT, query.clone(), today, limit).await.unwrap();
                    assert_eq!(ranking.count as usize, expected.len(), "{query:?}");
                    let all: u64 = expected.iter().map(|(_, sums)| sums.of(by)).sum();
                    assert_eq!(ranking.total.of(by), all, "{query:?}");
                    let found: Vec<_> = ranking.rows.into_iter().map(|row| (row.name, row.sums)).collect();
                    let first = expected.len().min(limit as usize);
                    assert_eq!(found, expected[..first], "{query:?} {today} {limit}");
                }
            }
        }
    }
}

pub async fn refusals_count_for_users_and_the_present_plan_is_told(room: impl Room) {
    let ledger = room.open().await;
    ledger.put_user(TENANT, person("u_1"), written()).await.unwrap();
    ledger.commit(vec![used(&hold("u_1", 1), delta(1, 10))]).await.unwrap();
    let day = hold("u_1", 1).day;
    let refused = |who: Option<&str>, count: u64| RefusedUser {
        tenant: TENANT,
        user: who.map(user),
        counts: ["request_rate_exceeded", "daily_quota_exhausted"]
            .map(|code| RefusalCount { day, code: code.into(), count })
            .into(),
        recent: Vec::new(),
    };
    let tally = Tally {
        refused: vec![refused(Some("u_1"), 2), refused(Some("u_2"), 7), refused(None, 1)],
        ..Tally::default()
    };
    ledger.add_tally(Arc::new(tally)).await.unwrap();
    let ranking = ledger.ranking(TENANT, asked(Group::User, Figure::Refusals), i32::MAX, 10).await.unwrap();
    assert_eq!(names(&ranking), [Some("u_2"), Some("u_1"), None]);
    let told: Vec<_> =
        ranking.rows.iter().map(|row| (row.sums.refusals, row.sums.requests, row.plan.as_deref())).collect();
    assert_eq!(told, [(14, 0, None), (4, 1, Some("free")), (2, 0, None)]);
    assert_eq!(ranking.total.refusals, 20);
    let plans = ledger.ranking(TENANT, asked(Group::Plan, Figure::Requests), i32::MAX, 10).await.unwrap();
    assert_eq!((plans.rows.len(), plans.total.refusals), (1, 0));
}

pub async fn sums_end_where_whole_numbers_of_json_do(room: impl Room) {
    let ledger = room.open().await;
    let most = UsageDelta { credits: i64::MAX, ..delta(1, 10) };
    // More than 64 bits hold.
    let changes = (0..1100).map(|n| used(&hold(&format!("u_{n}"), n), most.clone())).collect();
    ledger.commit(changes).await.unwrap();
    let ranking = ledger.ranking(TENANT, asked(Group::Plan, Figure::Credits), i32::MAX, 10).await.unwrap();
    assert_eq!((ranking.rows[0].sums.credits, ranking.total.credits), (MAX_AMOUNT, MAX_AMOUNT));
    assert_eq!(ranking.rows[0].sums.requests, 1100);
}

fn part(made_at: i64, number: u64) -> KeptPart {
    let row = Ranked {
        name: Some(format!("u_{number}")),
        plan: None,
        sums: Sums { requests: number, ..Sums::default() },
    };
    let ranking = Ranking { rows: vec![row], total: Sums::default(), count: 2 };
    KeptPart { made_at: at(made_at), query: asked(Group::Org, Figure::Credits), ranking }
}

pub async fn a_ranking_is_kept_in_parts_until_it_is_old_or_there_are_many(room: impl Room) {
    let ledger = room.open().await;
    let keep = async |id: u128, made_at: i64, since: i64| {
        let parts: Arc<[KeptPart]> = [part(made_at, 1), part(made_at, 2)].into();
        ledger.keep_ranking(TENANT, id, parts, at(since)).await.unwrap();
    };
    keep(1, 1000, 0).await;
    assert_eq!(ledger.ranking_part(TENANT, 1, 1).await.unwrap(), Some(part(1000, 2)));
    assert_eq!(ledger.ranking_part(TENANT, 1, 2).await.unwrap(), None);
    assert_eq!(ledger.ranking_part(OTHER, 1, 0).await.unwrap(), None, "another tenant's");
    keep(2, 2000, 1001).await;
    assert_eq!(ledger.ranking_part(TENANT, 1, 0).await.unwrap(), None, "older than asked for");
    for id in 3..=20 {
        keep(id, 2000 + id as i64, 0).await;
    }
    assert_eq!(ledger.ranking_part(TENANT, 2, 0).await.unwrap(), None, "one of the oldest");
    assert_eq!(ledger.ranking_part(TENANT, 4, 1).await.unwrap(), None);
    assert_eq!(ledger.ranking_part(TENANT, 5, 1).await.unwrap(), Some(part(2005, 2)));
}

fn shared(value: &str, users: &[&str], count: u64, total_tokens: u64) -> Duplicate {
    let users = users.iter().map(|user| (*user).to_owned()).collect();
    Duplicate { value: value.to_owned(), users, count, total_tokens }
}

pub async fn users_who_share_a_device_or_an_address_are_found_with_their_use(room: impl Room) {
    let ledger = room.open().await;
    let signals =
        [("a", "d2", "home"), ("b", "d1", "home"), ("c", "d1", "work"), ("d", "d2", "x"), ("e", "d2", "y")];
    for (id, device, address) in signals {
        let signals = Signals { device: Some(device.into()), address: Some(address.into()) };
        ledger.put_user(TENANT, User { signals: Some(signals), ..person(id) }, written()).await.unwrap();
    }
    ledger.put_user(TENANT, person("f"), written()).await.unwrap();
    let only_device = Signals { device: Some("d1".into()), address: None };
    ledger.put_user(OTHER, User { signals: Some(only_device), ..person("b") }, written()).await.unwrap();
    let of = |id: &str, day: i32, tokens: i64| {
        used(&Hold { user: user(id), day, ..hold(id, 1) }, delta(1, tokens))
    };
    ledger
        .commit(vec![of("b", 10, 1), of("b", 11, 2), of("c", 11, 10), of("d", 10, 5), of("e", 12, 50)])
        .await
        .unwrap();
    let asked = |signal, after: Option<&str>, limit, users| DuplicatesQuery {
        signal,
        after: after.map(str::to_owned),
        limit,
        users,
        days: 10..12,
    };
    let devices = ledger.duplicates(TENANT, asked(Signal::Device, None, 10, 10)).await.unwrap();
    assert_eq!(devices, [shared("d1", &["c", "b"], 2, 39), shared("d2", &["d", "a", "e"], 3, 15)]);
    let addresses = ledger.duplicates(TENANT, asked(Signal::Address, None, 10, 10)).await.unwrap();
    assert_eq!(addresses, [shared("home", &["b", "a"], 2, 9)]);
    // Pages, and few names of many.
    let first = ledger.duplicates(TENANT, asked(Signal::Device, None, 1, 1)).await.unwrap();
    assert_eq!(first, [shared("d1", &["c"], 2, 39)]);
    let second = ledger.duplicates(TENANT, asked(Signal::Device, Some("d1"), 1, 2)).await.unwrap();
    assert_eq!(second, [shared("d2", &["d", "a"], 3, 15)]);
    assert_eq!(ledger.duplicates(TENANT, asked(Signal::Device, Some("d2"), 1, 1)).await.unwrap(), []);
    assert_eq!(ledger.duplicates(OTHER, asked(Signal::Device, None, 10, 10)).await.unwrap(), []);
    // Who is erased has no signals any more.
    let erasure = Erasure { user: user("c"), pseudonym: user("p") };
    ledger.erase_user(TENANT, erasure, Some(1), written()).await.unwrap();
    let devices = ledger.duplicates(TENANT, asked(Signal::Device, None, 1, 1)).await.unwrap();
    assert_eq!(devices[0].value, "d2");
}
