//! How many users of a plan are active at the same time.

use std::sync::Arc;

use apportion::domain::charge::TenantRef;
use apportion::ledger::{ActiveUsers, Ledger, Tally};

use super::Room;
use super::samples::*;

async fn tell(ledger: &dyn Ledger, active: Vec<ActiveUsers>) {
    ledger.add_tally(Arc::new(Tally { active, ..Tally::default() })).await.unwrap();
}

fn active(tenant: TenantRef, slot: i64, plan: &str, digests: &[u64]) -> ActiveUsers {
    ActiveUsers { tenant, slot, plan: name(plan), digests: digests.to_vec() }
}

pub async fn the_peak_of_active_users_is_the_busiest_slots(room: impl Room) {
    let ledger = room.open().await;
    assert_eq!(ledger.active_peaks(TENANT, 0..1000).await.unwrap(), []);
    let told = vec![
        active(TENANT, 10, "free", &[1, 2, 3]),
        active(TENANT, 10, "pro", &[9]),
        active(TENANT, 11, "free", &[1, 4]),
        active(TENANT, 99, "free", &[1, 2, 3, 4, 5]),
        active(OTHER, 10, "free", &[1, 2, 3, 4]),
    ];
    tell(&*ledger, told).await;
    assert_eq!(ledger.active_peaks(TENANT, 10..12).await.unwrap(), [(name("free"), 3), (name("pro"), 1)]);
    assert_eq!(ledger.active_peaks(TENANT, 11..12).await.unwrap(), [(name("free"), 2)]);
    assert_eq!(ledger.active_peaks(TENANT, 10..100).await.unwrap()[0], (name("free"), 5));
}

pub async fn a_user_whom_several_nodes_see_counts_once(room: impl Room) {
    let (one, other) = (room.open().await, room.open().await);
    for (ledger, digests) in [(&one, [1, 2, 3]), (&other, [3, 4, 5]), (&one, [5, 4, 3])] {
        tell(&**ledger, vec![active(TENANT, 7, "free", &digests), active(TENANT, 7, "free", &[1])]).await;
    }
    let both = [&one, &other].map(|ledger| {
        let all = (0..40).map(|at| active(TENANT, 8, "free", &[at, 1000])).collect();
        tell(&**ledger, all)
    });
    futures_util::future::join_all(both).await;
    assert_eq!(other.active_peaks(TENANT, 7..8).await.unwrap(), [(name("free"), 5)]);
    assert_eq!(one.active_peaks(TENANT, 8..9).await.unwrap(), [(name("free"), 41)]);
}

pub async fn who_was_active_long_ago_is_forgotten(room: impl Room) {
    let ledger = room.open().await;
    tell(&*ledger, vec![active(TENANT, 1, "free", &[1, 2])]).await;
    tell(&*ledger, vec![active(TENANT, 2000, "free", &[1])]).await;
    assert_eq!(ledger.active_peaks(TENANT, 0..3000).await.unwrap(), [(name("free"), 2)]);
    tell(&*ledger, vec![active(TENANT, 3000, "free", &[1])]).await;
    assert_eq!(ledger.active_peaks(TENANT, 0..4000).await.unwrap(), [(name("free"), 1)]);
}
