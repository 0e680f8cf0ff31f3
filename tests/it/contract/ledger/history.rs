//! Reading back: what is on record about a user, and the audit.

use apportion::domain::hold::{Hold, Stage};
use apportion::domain::ids::HoldId;
use apportion::domain::plan::Scope;
use apportion::domain::time::Millis;
use apportion::ledger::{AuditQuery, Edge, HistoryQuery, Note, User};

use super::Room;
use super::samples::*;
use super::tallies::history;

fn ids(holds: &[Hold]) -> Vec<HoldId> {
    holds.iter().map(|hold| hold.id).collect()
}

pub async fn a_history_is_exact_for_what_was_just_committed(room: impl Room) {
    let ledger = room.open().await;
    let open = hold("u_1", 1);
    let told = Hold { stage: Stage::InDoubt { since: at(50) }, ..hold("u_1", 2) };
    // Made in one order, ended in the other.
    let late = finished(&hold("u_1", 3), 900);
    let early = finished(&hold("u_1", 4), 500);
    let others = [hold("u_2", 5), Hold { tenant: OTHER, ..hold("u_1", 6) }];
    for hold in [&open, &told, &late, &early].into_iter().chain(&others) {
        ledger.commit(vec![change(hold)]).await.unwrap();
        // Whether it was written out by then or not.
        history(&*ledger, TENANT, "u_2", 10).await;
    }
    ledger.put_user(TENANT, person("u_1"), written()).await.unwrap();
    ledger.put_user(TENANT, User { version: 2, suspended: true, ..person("u_1") }, written()).await.unwrap();
    ledger
        .put_record(Some(TENANT), record(apportion::ledger::RecordKind::Plan, "u_1", 1, Some("{}")))
        .await
        .unwrap();

    let all = history(&*ledger, TENANT, "u_1", 10).await;
    assert_eq!(ids(&all.made), ids(&[early.clone(), late.clone(), told.clone(), open.clone()]));
    assert_eq!(all.ended, [late.clone(), early.clone()]);
    assert_eq!(ids(&all.doubtful), ids(&[open, told.clone()]));
    assert_eq!(all.changed.len(), 2, "a plan of that name is no user");
    assert!(all.changed[0].number > all.changed[1].number);
    // At most so many of each, and the newest.
    let few = history(&*ledger, TENANT, "u_1", 1).await;
    assert_eq!((ids(&few.made), ids(&few.ended)), (ids(&[early]), ids(&[late])));
    let nothing = history(&*ledger, OTHER, "u_2", 10).await;
    assert!(nothing.made.is_empty() && nothing.ended.is_empty() && nothing.changed.is_empty());
}

pub async fn a_history_begins_and_ends_where_it_is_told_to(room: impl Room) {
    let ledger = room.open().await;
    let holds: Vec<Hold> = (0..6).map(|n| finished(&hold("u_1", n), 100 + n / 2)).collect();
    ledger.commit(holds.iter().map(change).collect()).await.unwrap();
    let query = |from: Millis, edge: Edge| HistoryQuery {
        user: user("u_1"),
        from,
        now: at(1000),
        made: edge,
        ended: edge,
        doubtful: edge,
        changed: edge,
        limit: 10,
    };
    let ended = async |from, edge| ids(&ledger.history(TENANT, query(from, edge)).await.unwrap().ended);
    let (all, none) = (u128::MAX, 0);
    assert_eq!(
        ended(at(0), Edge { at: at(101), id: none }).await,
        ids(&[holds[1].clone(), holds[0].clone()])
    );
    assert_eq!(
        ended(at(101), Edge { at: at(101), id: all }).await,
        ids(&[holds[3].clone(), holds[2].clone()])
    );
    assert_eq!(ended(at(101), Edge { at: at(101), id: holds[3].id.0 }).await, ids(&[holds[2].clone()]));
    let made = async |from, edge| ids(&ledger.history(TENANT, query(from, edge)).await.unwrap().made);
    assert_eq!(made(at(2), Edge { at: at(3), id: none }).await, ids(&[holds[2].clone()]));
    assert_eq!(made(at(3), Edge { at: at(3), id: all }).await, ids(&[holds[3].clone()]));
    assert_eq!(made(at(0), Edge { at: at(1), id: holds[1].id.0 }).await, ids(&[holds[0].clone()]));
}

pub async fn ends_come_in_order_page_by_page_however_long_the_calls_were(room: impl Room) {
    let ledger = room.open().await;
    let lengths = [0, 1, 900, 119_999, 120_000, 120_001, 45_000, 10_800_000, 3000, 3000];
    let made = |n: i64| {
        let hold = Hold { request: Some(mark(&format!("r{n}"))), ..hold("u_1", n * 7000) };
        match n % 23 {
            // Booked usage: an id that tells no time.
            22 => Hold { id: HoldId(u128::from_be_bytes([n as u8; 16])), request: None, ..hold },
            21 => hold,
            _ => finished(&hold, n * 7000 + lengths[(n % 10) as usize]),
        }
    };
    let end = |hold: Hold| if hold.is_finished() { hold } else { finished(&hold, 1_000_000) };
    let holds: Vec<Hold> = (0..230).map(made).collect();
    ledger.commit(holds.iter().map(change).collect()).await.unwrap();
    history(&*ledger, TENANT, "u_2", 1).await;
    let holds: Vec<Hold> = holds.into_iter().map(end).collect();
    ledger.commit(holds.iter().map(change).collect()).await.unwrap();
    let edge = |hold: &Hold| Edge { at: hold.finished_at().unwrap(), id: hold.id.0 };
    for (limit, from) in [(1, 0), (7, 0), (40, 300_000), (500, 0)] {
        let mut expected = holds.clone();
        expected.retain(|hold| hold.finished_at() >= Some(at(from)));
        expected.sort_by_key(|hold| std::cmp::Reverse(edge(hold)));
        let mut found: Vec<Hold> = Vec::new();
        let mut ended = Edge { at: Millis::MAX, id: u128::MAX };
        loop {
            let query = HistoryQuery {
                user: user("u_1"),
                from: at(from),
                now: at(20_000_000),
                made: ended,
                ended,
                doubtful: ended,
                changed: ended,
                limit,
            };
            let page = ledger.history(TENANT, query).await.unwrap().ended;
            found.extend(page.iter().cloned());
            match page.last() {
                Some(last) => ended = edge(last),
                None => break,
            }
        }
        assert_eq!(ids(&found), ids(&expected), "{limit} a page from {from}");
    }
    // Request ids of what ended since then, however long ago it began.
    let since = at(1_000_000);
    let requests = ledger.account(key(Scope::User, "u_1"), since).await.unwrap().requests;
    let mut requests: Vec<HoldId> = requests.into_iter().map(|(_, id, _)| id).collect();
    let mut expected = holds.clone();
    expected.retain(|hold| hold.request.is_some() && hold.finished_at() >= Some(since));
    let mut expected = ids(&expected);
    requests.sort_unstable();
    expected.sort_unstable();
    assert_eq!(requests, expected);
}

pub async fn the_audit_comes_newest_first_in_pages(room: impl Room) {
    let ledger = room.open().await;
    for n in 0..20 {
        let note = Note { action: "hold.resolve", target: format!("t_{}", n % 2), before: None, after: None };
        let mut author = written();
        author.at = at(n);
        author.by = format!("key_{}", n % 3);
        ledger.note(TENANT, note, author).await.unwrap();
    }
    ledger
        .note(OTHER, Note { action: "x", target: "t_0".into(), before: None, after: None }, written())
        .await
        .unwrap();
    let page = async |query: AuditQuery| -> Vec<i64> {
        let rows = ledger.audit(TENANT, AuditQuery { limit: 100, ..query }).await.unwrap();
        rows.iter().map(|row| row.written.at.0 - START.0).collect()
    };
    let none = AuditQuery::default;
    assert_eq!(page(none()).await, (0..20).rev().collect::<Vec<_>>());
    assert_eq!(page(AuditQuery { target: Some("t_1".into()), to: Some(at(6)), ..none() }).await, [5, 3, 1]);
    assert_eq!(
        page(AuditQuery { by: Some("key_2".into()), from: Some(at(10)), ..none() }).await,
        [17, 14, 11]
    );
    let both = AuditQuery { by: Some("key_0".into()), target: Some("t_0".into()), ..none() };
    assert_eq!(page(both).await, [18, 12, 6, 0]);
    assert_eq!(page(AuditQuery { from: Some(at(7)), to: Some(at(10)), ..none() }).await, [9, 8, 7]);
    let first = ledger.audit(TENANT, AuditQuery { limit: 7, ..none() }).await.unwrap();
    let before = first.last().map(|row| row.number);
    assert_eq!(first.len(), 7);
    assert_eq!(page(AuditQuery { before, ..none() }).await, (0..13).rev().collect::<Vec<_>>());
}
