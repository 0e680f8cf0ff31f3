//! Pages of holds in doubt.

use apportion::domain::hold::{Hold, Stage};
use apportion::domain::ids::{HoldId, Label};
use apportion::ledger::{DoubtFilter, DoubtKey, DoubtQuery, Ledger};

use super::Room;
use super::samples::*;

async fn commit(ledger: &dyn Ledger, holds: &[Hold]) {
    ledger.commit(holds.iter().map(change).collect()).await.unwrap();
}

/// A hold in doubt since `START + since`.
fn doubtful(user_id: &str, number: i64, since: i64) -> Hold {
    Hold { stage: Stage::InDoubt { since: at(since) }, ..hold(user_id, number) }
}

fn ids<'h>(holds: impl IntoIterator<Item = &'h Hold>) -> Vec<HoldId> {
    holds.into_iter().map(|hold| hold.id).collect()
}

/// All holds in doubt at `START + now`, read in pages of `limit`.
async fn all(ledger: &dyn Ledger, filter: &DoubtFilter, now: i64, limit: u32) -> Vec<HoldId> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let query = DoubtQuery { now: at(now), filter: filter.clone(), after, limit };
        let page = ledger.doubts(TENANT, query).await.unwrap();
        assert!(page.holds.len() <= limit as usize);
        found.extend(ids(&page.holds));
        let Some(next) = page.next else { return found };
        assert!(after.is_none_or(|after| after < next), "{after:?} {next:?}");
        after = Some(next);
    }
}

pub async fn doubts_come_in_pages_oldest_first(room: impl Room) {
    let ledger = room.open().await;
    // Seven of one moment, and others around them, in no order.
    let mut holds: Vec<Hold> = (10..17).map(|number| doubtful("u_1", number, 50)).collect();
    holds.extend([doubtful("u_2", 3, 60), doubtful("u_3", 4, 40), doubtful("u_2", 5, 70)]);
    let lease_over = Hold { expires_at: at(65), ..hold("u_4", 6) };
    holds.push(lease_over.clone());
    commit(&*ledger, &holds).await;
    commit(&*ledger, &[hold("u_5", 1), finished(&doubtful("u_5", 2, 45), 46)]).await;
    commit(&*ledger, &[Hold { tenant: OTHER, ..doubtful("u_1", 90, 45) }]).await;

    holds.sort_by_key(DoubtKey::of);
    let none = DoubtFilter::default();
    for limit in [1, 2, 3, 7, 11, 12, 500] {
        assert_eq!(all(&*ledger, &none, 1000, limit).await, ids(&holds), "pages of {limit}");
    }
    assert_eq!(all(&*ledger, &none, 65, 4).await, ids(&holds[..10]), "the border belongs to it");
    assert_eq!(all(&*ledger, &none, 64, 4).await, ids(&holds[..9]));
    assert_eq!(all(&*ledger, &none, 39, 4).await, []);
    // A page that ends with the last one says so.
    let query = DoubtQuery { now: at(1000), filter: none.clone(), after: None, limit: 11 };
    assert_eq!(ledger.doubts(TENANT, query.clone()).await.unwrap().next, None);
    // All that came into doubt until then is left out.
    let later = DoubtQuery { after: Some(DoubtKey::end_of(at(60))), ..query };
    assert_eq!(ids(&ledger.doubts(TENANT, later).await.unwrap().holds), ids(&holds[9..]));
}

pub async fn unfinished_holds_are_counted_by_whether_they_are_in_doubt(room: impl Room) {
    let ledger = room.open().await;
    commit(&*ledger, &[doubtful("u_1", 1, 40), doubtful("u_1", 2, 50), hold("u_2", 3)]).await;
    commit(&*ledger, &[Hold { expires_at: at(65), ..hold("u_4", 4) }, finished(&hold("u_5", 5), 46)]).await;
    commit(&*ledger, &[Hold { tenant: OTHER, ..doubtful("u_1", 90, 45) }]).await;
    // What came last may be missing for a moment.
    let until = async |now: i64, counts: [u64; 2]| {
        while ledger.unfinished(vec![(TENANT, at(now))]).await.unwrap() != counts {
            tokio::task::yield_now().await;
        }
    };
    until(60, [2, 2]).await;
    until(65, [1, 3]).await;
    until(39, [4, 0]).await;
    // Of several tenants, each by its own time.
    let both = |other| ledger.unfinished(vec![(TENANT, at(60)), (OTHER, at(other))]);
    assert_eq!((both(44).await.unwrap(), both(45).await.unwrap()), ([3, 2], [2, 3]));
    assert_eq!(ledger.unfinished(Vec::new()).await.unwrap(), [0, 0]);
}

pub async fn pages_of_doubts_stay_right_while_holds_come_and_end(room: impl Room) {
    let ledger = room.open().await;
    let holds: Vec<Hold> = (0..40).map(|number| doubtful("u_1", number, 100 + number / 3)).collect();
    commit(&*ledger, &holds).await;
    let mut seen = Vec::new();
    let mut after = None;
    let mut round = 0;
    loop {
        let query = DoubtQuery { now: at(1000), filter: DoubtFilter::default(), after, limit: 3 };
        let page = ledger.doubts(TENANT, query).await.unwrap();
        // What is ended is gone from the next page on, in whatever part of the store it is.
        for hold in &page.holds {
            assert!(hold.id != holds[30].id || round == 0, "it ended before its page");
        }
        seen.extend(ids(&page.holds));
        let mut steps: Vec<Hold> = page.holds.iter().map(|hold| finished(hold, 900)).collect();
        if round == 0 {
            steps.push(finished(&holds[30], 900));
            // Older by its id, later in doubt: behind all others.
            steps.push(doubtful("u_2", -50, 800));
        }
        commit(&*ledger, &steps).await;
        round += 1;
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    let mut expected = ids(holds.iter().filter(|hold| hold.id != holds[30].id));
    expected.push(doubtful("u_2", -50, 800).id);
    assert_eq!(seen, expected);
    assert_eq!(all(&*ledger, &DoubtFilter::default(), 1000, 10).await, []);
}

pub async fn doubts_are_filtered_by_user_model_feature_and_time(room: impl Room) {
    let ledger = room.open().await;
    let of = |user_id: &str, number: i64, model: Option<&str>, feature: Option<&str>| Hold {
        model: model.map(name),
        feature: feature.map(|feature| Label::parse(feature).unwrap()),
        ..doubtful(user_id, number, 5000 - number)
    };
    let holds = [
        of("u_1", 10, Some("opus"), Some("chat")),
        of("u_1", 20, Some("sonnet"), Some("chat")),
        of("u_2", 30, Some("opus"), None),
        of("u_2", 40, None, Some("chat")),
        of("U_1", 50, Some("opus"), Some("search")),
    ];
    commit(&*ledger, &holds).await;
    let filter = |change: fn(&mut DoubtFilter)| {
        let mut filter = DoubtFilter::default();
        change(&mut filter);
        filter
    };
    // The latest are in doubt the longest.
    let cases: [(DoubtFilter, &[usize]); 8] = [
        (filter(|f| f.user = Some(user("u_1"))), &[1, 0]),
        (filter(|f| f.model = Some(name("opus"))), &[4, 2, 0]),
        (filter(|f| f.feature = Some(Label::parse("chat").unwrap())), &[3, 1, 0]),
        (filter(|f| (f.user, f.model) = (Some(user("u_2")), Some(name("opus")))), &[2]),
        (filter(|f| f.from = Some(at(30))), &[4, 3, 2]),
        (filter(|f| f.to = Some(at(30))), &[1, 0]),
        (filter(|f| (f.from, f.to) = (Some(at(20)), Some(at(40)))), &[2, 1]),
        (filter(|f| f.user = Some(user("nobody"))), &[]),
    ];
    for (filter, expected) in cases {
        for limit in [1, 2, 10] {
            let expected: Vec<HoldId> = expected.iter().map(|index| holds[*index].id).collect();
            assert_eq!(all(&*ledger, &filter, 10_000, limit).await, expected, "{filter:?} by {limit}");
        }
    }
}

pub async fn a_page_of_doubts_looks_at_a_bounded_number_and_the_next_goes_on(room: impl Room) {
    let ledger = room.open().await;
    let others: Vec<Hold> = (0..12_000).map(|number| doubtful("u_1", number, 10 + number)).collect();
    for some in others.chunks(3000) {
        commit(&*ledger, some).await;
    }
    let wanted = Hold { model: Some(name("rare")), ..doubtful("u_2", 20_000, 20_000) };
    commit(&*ledger, std::slice::from_ref(&wanted)).await;
    let filter = DoubtFilter { model: Some(name("rare")), ..DoubtFilter::default() };
    let query = DoubtQuery { now: at(30_000), filter: filter.clone(), after: None, limit: 5 };
    let first = ledger.doubts(TENANT, query).await.unwrap();
    assert!(first.holds.is_empty() && first.next.is_some(), "{:?}", first.next);
    assert_eq!(all(&*ledger, &filter, 30_000, 5).await, [wanted.id]);
}
