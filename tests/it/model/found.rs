//! Short sequences in which the service and the model once differed, command by command.

use serde_json::{Value, json};

use super::generate::Command;
use super::oracle::calendar::instant;
use super::stage::Stage;
use super::world::World;
use crate::harness::sheets::Sheet;

/// Both sides with the sheet `one` for everybody and `two` beside it.
async fn world(one: Sheet, two: Sheet) -> World {
    let stage = Stage {
        zone: "America/New_York".to_owned(),
        start: instant("2026-03-10T12:00:00Z"),
        sheets: vec![one.json(), two.json()],
        pool: None,
        models: Vec::new(),
        orgs: Vec::new(),
        templates: Vec::new(),
        families: Vec::new(),
    };
    World::set(&stage, false).await
}

async fn run(world: &mut World, commands: Vec<Command>) {
    for command in commands {
        let difference = world.run(&command).await;
        assert_eq!(difference, Ok(()), "{}", world.history.join("\n"));
    }
    world.probe().await.unwrap();
}

fn one(limit: u64) -> Sheet {
    Sheet::named("one").mt(limit)
}

fn put(sheet: Sheet, applies: Option<&str>, to: &str) -> Command {
    let mut body = sheet.json();
    body["to"] = json!(to);
    if let Some(applies) = applies {
        body["applies"] = json!(applies);
    }
    Command::PutPlan(body)
}

fn check(user: &str) -> Command {
    Command::Check { body: json!({"user": user, "input_tokens": 10, "max_output_tokens": 10}), key: None }
}

fn quota(user: &str) -> Command {
    Command::Quota { user: user.to_owned() }
}

fn moved(user: &str, plan: &str, effective: &str) -> Command {
    let body = json!({"plan": plan, "effective": effective, "reason": "moved"});
    Command::Move { user: user.to_owned(), body }
}

fn user(user: &str, body: Value) -> Command {
    Command::PutUser { user: user.to_owned(), body }
}

fn clock(at: &str) -> Command {
    Command::Clock(instant(at))
}

#[tokio::test]
async fn somebody_unknown_has_the_sheet_that_waits_for_the_others_in_the_very_millisecond() {
    let mut world = world(one(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        check("ann"),
        put(one(800), Some("now"), "new_users"),
        quota("ann"),
        check("bob"),
        put(one(700), None, "everyone"),
        quota("bob"),
        quota("cleo"),
        check("cleo"),
        clock("2026-03-10T12:00:05Z"),
        quota("cleo"),
        check("dan"),
        clock("2026-04-01T03:59:59.999Z"),
        quota("ann"),
        clock("2026-04-01T04:00:00Z"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_pending_move_names_the_version_that_will_hold() {
    let mut world = world(one(500), Sheet::named("two").mt(900)).await;
    let commands = vec![
        check("ann"),
        put(Sheet::named("two").mt(1000), Some("now"), "new_users"),
        moved("ann", "two", "2026-03-10T13:00:00.000Z"),
        quota("ann"),
        clock("2026-03-10T13:00:00Z"),
        quota("ann"),
        put(Sheet::named("two").mt(1100), Some("2026-03-11T00:00:00.000Z"), "everyone"),
        moved("ann", "one", "now"),
        moved("ann", "two", "2026-03-12T00:00:00.000Z"),
        clock("2026-03-12T00:00:00Z"),
        quota("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_sheet_waits_for_the_month_that_runs_although_the_anchor_and_the_zone_have_changed() {
    let month = |limit: u64| one(limit).but("anchor", json!("user"));
    let mut world = world(month(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        check("ann"),
        put(month(600), None, "everyone"),
        user("ann", json!({"anchor_day": 15})),
        quota("ann"),
        user("ann", json!({"zone": "Asia/Tokyo"})),
        clock("2026-03-14T15:00:00Z"),
        quota("ann"),
        clock("2026-04-01T03:59:59.999Z"),
        check("ann"),
        clock("2026-04-01T04:00:00Z"),
        check("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_version_that_never_came_because_a_newer_one_was_put_never_comes() {
    let mut world = world(one(500), Sheet::named("two").mt(900)).await;
    let commands = vec![
        check("ann"),
        put(Sheet::named("two").mt(1000), Some("2026-03-11T00:00:00.000Z"), "everyone"),
        clock("2026-03-10T20:00:00Z"),
        put(Sheet::named("two").mt(1100), Some("2026-03-20T00:00:00.000Z"), "everyone"),
        clock("2026-03-12T00:00:00Z"),
        moved("ann", "two", "now"),
        check("bob"),
        clock("2026-03-20T00:00:00Z"),
        quota("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_day_that_has_ended_is_paid_by_the_number_it_had_whatever_is_put_later() {
    let mut world = world(Sheet::named("one").dr(3), Sheet::named("two").dr(9)).await;
    let grant = json!({"limit": "requests_per_day", "amount": 6, "expires_at": null, "reason": "a gift"});
    let mut commands = vec![check("ann"), Command::Grant { user: "ann".to_owned(), body: grant }];
    commands.extend([check("ann"), check("ann"), check("ann")]);
    commands.extend([
        clock("2026-03-11T12:00:00Z"),
        put(Sheet::named("one").dr(1), Some("now"), "everyone"),
        quota("ann"),
    ]);
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_sheet_waits_for_the_month_that_runs_by_the_zone_of_the_first_take() {
    let mut world = world(one(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        Command::Settings(json!({"zone": "Asia/Tokyo"})),
        check("ann"),
        put(one(600), None, "everyone"),
        quota("ann"),
        clock("2026-03-31T14:59:59.999Z"),
        quota("ann"),
        clock("2026-03-31T15:00:00Z"),
        quota("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_sheet_waits_for_the_month_that_runs_although_the_limit_has_got_a_zone_of_its_own() {
    let of_tokyo = |limit: u64| one(limit).but("zone", json!("Asia/Tokyo"));
    let mut world = world(one(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        check("ann"),
        user("bob", json!({"verified": true})),
        put(of_tokyo(950), Some("now"), "everyone"),
        put(of_tokyo(600), None, "everyone"),
        quota("ann"),
        quota("bob"),
        check("bob"),
        clock("2026-03-31T15:00:00Z"),
        quota("ann"),
        quota("bob"),
        clock("2026-04-01T04:00:00Z"),
        check("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_sheet_waits_no_longer_for_those_who_never_took_when_the_zone_makes_their_month_end_earlier() {
    let mut world = world(one(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        user("ann", json!({"verified": true})),
        put(one(600), None, "everyone"),
        Command::Settings(json!({"zone": "Asia/Tokyo"})),
        quota("ann"),
        clock("2026-03-31T15:00:00Z"),
        quota("ann"),
        Command::Settings(json!({"zone": "America/New_York"})),
        quota("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn an_empty_take_that_is_settled_with_more_begins_the_window_of_its_admission() {
    let week = |limit: u64| Sheet::named("one").per("tokens_per_week", json!("week"), limit);
    let mut world = world(week(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        Command::Check { body: json!({"user": "ann", "lease_seconds": 60}), key: None },
        put(week(800).but("zone", json!("Asia/Tokyo")), Some("now"), "everyone"),
        quota("ann"),
        Command::Settle { no: 0, body: json!({"input_tokens": 0, "output_tokens": 14}) },
        clock("2026-03-15T15:00:00Z"),
        check("ann"),
        clock("2026-03-16T04:00:00Z"),
        check("ann"),
        clock("2026-03-22T15:00:00Z"),
        quota("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_sheet_waits_by_the_one_in_force_and_not_by_one_that_waited_and_never_comes() {
    let mut world = world(one(900), Sheet::named("two").mt(500)).await;
    let commands = vec![
        user("ann", json!({"zone": "Asia/Tokyo"})),
        check("ann"),
        user("ann", json!({"zone": "Europe/Berlin"})),
        put(Sheet::named("one").dr(30), Some("next_window"), "everyone"),
        put(Sheet::named("one").dr(20), Some("next_window"), "everyone"),
        quota("ann"),
        clock("2026-03-31T15:00:00Z"),
        quota("ann"),
    ];
    run(&mut world, commands).await;
}

#[tokio::test]
async fn a_grant_that_ends_with_a_window_pays_for_it() {
    let mut world = world(Sheet::named("one").dr(1), Sheet::named("two").dr(9)).await;
    let grant = |expires: Value| {
        let body =
            json!({"limit": "requests_per_day", "amount": 2, "expires_at": expires, "reason": "a gift"});
        Command::Grant { user: "ann".to_owned(), body }
    };
    let mut commands = vec![check("ann"), grant(json!("2026-03-11T04:00:00.000Z")), grant(Value::Null)];
    commands.extend([check("ann"), check("ann"), check("ann")]);
    commands.extend([clock("2026-03-11T04:00:00Z"), quota("ann")]);
    run(&mut world, commands).await;
}
