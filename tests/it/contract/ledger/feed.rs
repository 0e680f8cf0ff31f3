//! The feed: what finished, in the order in which it came on record.

use std::collections::HashSet;
use std::sync::Arc;

use apportion::domain::charge::TenantRef;
use apportion::domain::hold::{Hold, Settlement, Stage};
use apportion::domain::ids::{HoldId, Label, TenantId};
use apportion::domain::plan::Scope;
use apportion::ledger::{Change, FeedEvent, FeedMark, FeedPage, FeedQuery, Ledger, Pruned, Pruning};
use futures_util::future::join_all;

use super::Room;
use super::samples::*;

const DAY: i64 = 86_400_000;

/// The end of a hold, or what corrects it.
fn event(hold: &Hold, part: u8, tokens: i64) -> Change {
    let event = Some(FeedMark { part, amounts: Vec::new() });
    Change { usage: Some(delta(1, tokens)), event, ..change(hold) }
}

fn ended(user_id: &str, number: i64) -> Hold {
    finished(&hold(user_id, number), number + 1)
}

async fn page(ledger: &dyn Ledger, tenant: TenantRef, after: Option<u64>, limit: u32) -> FeedPage {
    ledger.feed(tenant, FeedQuery { after, seal: 0, limit }).await.unwrap()
}

/// Everything after an event, in pages of `limit`, and the last number.
async fn read(
    ledger: &dyn Ledger,
    tenant: TenantRef,
    after: Option<u64>,
    limit: u32,
) -> (Vec<FeedEvent>, u64) {
    let (mut all, mut place) = (Vec::new(), after);
    loop {
        let FeedPage::Events { events, last, more, .. } = page(ledger, tenant, place, limit).await else {
            panic!("nothing is kept after {place:?}")
        };
        assert!(events.len() <= limit as usize && (!more || !events.is_empty()));
        let numbers = events.iter().map(|event| event.number);
        assert!(numbers.eq(last + 1 - events.len() as u64..=last), "numbers have no gaps");
        all.extend(events);
        place = Some(last);
        if !more {
            return (all, last);
        }
    }
}

fn ids(events: &[FeedEvent]) -> Vec<(HoldId, u8)> {
    events.iter().map(|event| (event.hold.id, event.part)).collect()
}

pub async fn events_come_in_the_order_of_commits_whatever_the_pages(room: impl Room) {
    let ledger = room.open().await;
    assert_eq!(read(&*ledger, TENANT, None, 5).await, (Vec::new(), 0));
    let mut expected = Vec::new();
    // Of many commits the small and the large ones; later holds first, and others' between.
    for (round, size) in [1, 60, 2, 1, 25].into_iter().enumerate() {
        let holds: Vec<Hold> =
            (0..size).rev().map(|number| ended("u_1", round as i64 * 100 + number)).collect();
        expected.extend(holds.iter().map(|hold| (hold.id, 1)));
        let mut changes: Vec<Change> = holds.iter().map(|hold| event(hold, 1, 10)).collect();
        let foreign = Hold { tenant: OTHER, ..ended("u_1", 10_000 + round as i64) };
        changes.insert(0, event(&foreign, 1, 10));
        changes.push(change(&hold("u_2", 20_000 + round as i64)));
        ledger.commit(changes).await.unwrap();
    }
    for limit in [1, 2, 7, 24, 25, 500] {
        let (events, last) = read(&*ledger, TENANT, None, limit).await;
        assert_eq!(ids(&events), expected);
        assert_eq!(last, 89);
    }
    for after in [0, 1, 23, 24, 60, 88, 89] {
        let (events, last) = read(&*ledger, TENANT, Some(after), 10).await;
        assert_eq!((ids(&events), last), (expected[after as usize..].to_vec(), 89));
    }
    assert_eq!(read(&*ledger, OTHER, None, 2).await.0.len(), 5);
    // A number that was never given: of before a backup was restored, say.
    assert_eq!(page(&*ledger, TENANT, Some(90), 5).await, FeedPage::Gone);
    assert_eq!(page(&*ledger, TENANT, Some(u64::MAX), 5).await, FeedPage::Gone);
    // What was opened anew tells the same, and goes on.
    drop(ledger);
    let ledger = room.open().await;
    assert_eq!(ids(&read(&*ledger, TENANT, None, 50).await.0), expected);
    ledger.commit(vec![event(&ended("u_1", 900), 1, 10)]).await.unwrap();
    let (events, last) = read(&*ledger, TENANT, Some(89), 50).await;
    assert_eq!((ids(&events), last), (vec![(ended("u_1", 900).id, 1)], 90));
}

/// After a backup was restored, or in a tenant who was made anew, numbers are given again.
pub async fn a_number_that_was_given_to_another_event_is_none(room: impl Room) {
    let ledger = room.open().await;
    let commit = async |tenant, from: i64| {
        for number in from..from + 30 {
            let hold = Hold { tenant, ..ended("u_1", number) };
            ledger.commit(vec![event(&hold, 1, 10)]).await.unwrap();
        }
    };
    commit(TENANT, 0).await;
    commit(OTHER, 1_000).await;
    let ask = async |tenant, after: Option<u64>, seal, limit| {
        ledger.feed(tenant, FeedQuery { after, seal, limit }).await.unwrap()
    };
    let (mut place, mut mark, mut seen) = (None, 0, Vec::new());
    loop {
        let FeedPage::Events { events, last, seal, more } = ask(TENANT, place, mark, 7).await else {
            panic!("{place:?} is there")
        };
        assert_eq!(ask(OTHER, Some(last), seal, 7).await, FeedPage::Gone, "of another feed, {last}");
        assert_eq!(ask(TENANT, Some(last), seal ^ 8, 7).await, FeedPage::Gone);
        assert_eq!(ask(TENANT, Some(last + 1), seal, 7).await, FeedPage::Gone);
        seen.extend(events.iter().map(|event| event.number));
        (place, mark) = (Some(last), seal);
        if !more {
            break;
        }
    }
    assert!(seen.into_iter().eq(1..=30));
    // Asked again it is the same place, now and when more has come.
    let none = FeedPage::Events { events: Vec::new(), last: 30, seal: mark, more: false };
    assert_eq!(ask(TENANT, place, mark, 7).await, none);
    commit(TENANT, 500).await;
    let FeedPage::Events { events, .. } = ask(TENANT, place, mark, 7).await else { panic!("it is there") };
    assert!(events.iter().map(|event| event.number).eq(31..=37));
}

pub async fn an_event_keeps_its_figures_when_its_hold_is_corrected(room: impl Room) {
    let ledger = room.open().await;
    let settled = |at_ms: i64, model: &str| {
        let [.., Stage::Settled(end), _] = stages() else { panic!("no settled stage") };
        let mut end = Settlement { at: at(at_ms), ..*end };
        end.reported.model = Some(name(model));
        Hold { stage: Stage::Settled(Box::new(end)), ..hold("u_1", 1) }
    };
    let meter = |amount| vec![(Label::parse("images").unwrap(), amount)];
    let first = FeedMark { part: 1, amounts: meter(3) };
    ledger
        .commit(vec![Change { event: Some(first), ..event(&settled(5, "claude-opus-5"), 1, 100) }])
        .await
        .unwrap();
    // Another model served it: two differences.
    let back = Change {
        usage: Some(delta(-1, -100)),
        event: Some(FeedMark { part: 2, amounts: meter(-3) }),
        ..change(&settled(9, "haiku"))
    };
    let mut again = event(&settled(9, "haiku"), 3, 7);
    again.usage.as_mut().unwrap().model = Some(name("haiku"));
    ledger.commit(vec![back, again]).await.unwrap();
    // What counts nothing has an event as well.
    let released = Hold { model: None, ..ended("u_2", 2) };
    let nothing = Some(FeedMark { part: 1, amounts: Vec::new() });
    ledger.commit(vec![Change { event: nothing, ..change(&released) }]).await.unwrap();

    let (events, _) = read(&*ledger, TENANT, None, 10).await;
    let short = |event: &FeedEvent| {
        (
            event.part,
            event.model.as_ref().map(ToString::to_string),
            event.requests,
            event.total_tokens,
            event.credits,
        )
    };
    let opus = Some("claude-opus-5".to_owned());
    assert_eq!(
        events.iter().map(short).collect::<Vec<_>>(),
        [
            (1, opus.clone(), 1, 300, 400),
            (2, opus, -1, -300, -400),
            (3, Some("haiku".to_owned()), 1, 21, 28),
            (1, None, 0, 0, 0)
        ]
    );
    assert_eq!(events[0].amounts, meter(3));
    assert_eq!(events[1].amounts, meter(-3));
    assert_eq!((events[1].input_tokens, events[1].output_tokens), (-100, -200));
    assert!(events[..3].iter().all(|event| event.hold == settled(9, "haiku")), "holds are as they are now");
    assert_eq!(events[3].hold, released);
}

pub async fn events_belong_to_whoever_their_holds_belong_to(room: impl Room) {
    let ledger = room.open().await;
    ledger.commit(vec![event(&ended("u_1", 1), 1, 10), event(&ended("u_2", 2), 1, 10)]).await.unwrap();
    let renamed = Hold { user: user("erased_1"), ..ended("u_1", 1) };
    let accounts = vec![(key(Scope::User, "u_1"), [].as_slice().into())];
    // With the move, something of somebody else ends.
    let moving = Change { accounts, moved: vec![Arc::new(renamed)], ..Change::default() };
    ledger.commit(vec![moving, event(&ended("u_3", 3), 1, 10)]).await.unwrap();
    let (events, last) = read(&*ledger, TENANT, None, 2).await;
    let users: Vec<&str> = events.iter().map(|event| event.hold.user.as_str()).collect();
    assert_eq!((users, last), (vec!["erased_1", "u_2", "u_3"], 3));
}

pub async fn a_reader_misses_nothing_while_many_commit(room: impl Room) {
    let ledger = room.open().await;
    ledger.commit(vec![event(&ended("u_0", 0), 1, 1)]).await.unwrap();
    let writers = (1..=4_i64).map(|writer| {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            for round in 0..25 {
                let number = |nth| writer * 10_000 + round * 10 + nth;
                let changes = (0..=round % 3).map(|nth| event(&ended("u_1", number(nth)), 1, 1));
                ledger.commit(changes.collect()).await.unwrap();
            }
        })
    });
    let mut writers: Vec<_> = writers.collect();
    let (mut seen, mut place) = (Vec::new(), None);
    while !writers.is_empty() {
        writers.retain(|writer| !writer.is_finished());
        let (events, last) = read(&*ledger, TENANT, place, 7).await;
        seen.extend(ids(&events));
        place = Some(last);
        tokio::task::yield_now().await;
    }
    seen.extend(ids(&read(&*ledger, TENANT, place, 100).await.0));
    assert_eq!(seen.len(), 1 + 4 * (9 + 16 + 24));
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len(), "and sees nothing twice");
}

pub async fn events_go_before_their_holds_and_numbers_go_on(room: impl Room) {
    let ledger = room.open().await;
    let row = ledger.create_tenant(TenantId::parse("shop").unwrap(), false, Vec::new()).await.unwrap();
    let tenant = row.number;
    let on = |day: i64, nth: i64| Hold { tenant, ..ended("u_1", day * DAY + nth) };
    for day in 0..3 {
        let changes = (0..30).map(|nth| event(&on(day, nth), 1, 10));
        ledger.commit(changes.collect()).await.unwrap();
    }
    let walk = |day: i64, rows| Pruning { now: at(day * DAY), keep_ms: 100 * DAY, rows, every_ms: 1 };
    while let Pruned::Rows(_) = ledger.prune_holds(walk(101, 4)).await.unwrap() {
        // A reader finds all of an event or that it is not kept.
        if let FeedPage::Events { events, last, .. } = page(&*ledger, tenant, None, 90).await {
            assert_eq!((events.len() as u64, last), (last + 1 - events[0].number, 90));
        }
    }
    assert!(ledger.hold(tenant, on(0, 29).id).await.unwrap().is_none());
    assert_eq!(page(&*ledger, tenant, Some(3), 10).await, FeedPage::Gone);
    assert_eq!(page(&*ledger, tenant, Some(0), 10).await, FeedPage::Gone);
    assert_eq!(read(&*ledger, tenant, None, 10).await.0.len(), 60, "from the oldest that is kept");
    assert_eq!(read(&*ledger, tenant, Some(30), 10).await.0.len(), 60);
    let late = walk(200, 100);
    while let Pruned::Rows(_) = ledger.prune_holds(late).await.unwrap() {}
    assert_eq!(read(&*ledger, tenant, None, 10).await, (Vec::new(), 90));
    assert_eq!(page(&*ledger, tenant, Some(89), 10).await, FeedPage::Gone);
    ledger.commit(vec![event(&on(150, 1), 1, 10)]).await.unwrap();
    for after in [None, Some(90)] {
        let (events, last) = read(&*ledger, tenant, after, 10).await;
        assert_eq!((events.len(), last), (1, 91));
    }
    // What was deleted has no feed, whatever still comes.
    ledger.delete_tenant(tenant, written()).await.unwrap();
    ledger.commit(vec![event(&on(150, 2), 1, 10)]).await.unwrap();
    while ledger.purge_tenant(tenant, 10).await.unwrap() {}
    assert_eq!(read(&*ledger, tenant, None, 10).await, (Vec::new(), 0));
}

pub async fn of_processes_that_commit_for_a_tenant_each_has_its_numbers(room: impl Room) {
    let ledgers = [room.open().await, room.open().await];
    let commits = (0..20_i64).map(|nth| {
        let hold = ended("u_1", nth);
        let ledger = &ledgers[nth as usize % 2];
        async move { ledger.commit(vec![event(&hold, 1, 10)]).await.unwrap() }
    });
    join_all(commits).await;
    drop(ledgers);
    let (events, last) = read(&*room.open().await, TENANT, None, 3).await;
    let each: HashSet<_> = ids(&events).into_iter().collect();
    assert_eq!((each.len(), events.len(), last), (20, 20, 20));
}
