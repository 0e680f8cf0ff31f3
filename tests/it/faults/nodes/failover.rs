//! Another Redis takes over that does not know everything.

use super::truth::check;
use super::{Load, Loss, Pair};
use crate::harness::postgres::Postgres;
use crate::harness::redis::Watched;

const SOME: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_behind_when_it_took_over_is_noticed_and_built_anew() {
    let (Some(servers), Some(postgres)) = (Watched::start(1), Postgres::shared()) else { return };
    let pair = Pair::on(&servers.url(), postgres).await;
    let load = Load::start(&pair);
    load.answers(SOME).await;
    servers.cut_replica_off();
    load.answers(SOME).await;
    servers.primary.kill();
    servers.wait_until_promoted();
    load.answers(SOME).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 1);
    check(&pair, &told, &[&servers.replica], "failover to a replica that lags", Loss::NotOnRecord).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_replaced_and_what_it_knew_alone_is_not_missed_on_record() {
    let (Some(servers), Some(postgres)) = (Watched::start(1), Postgres::shared()) else { return };
    let pair = Pair::durable(&servers.url(), postgres, "ledger").await;
    let load = Load::start(&pair);
    load.answers(SOME).await;
    servers.primary.freeze();
    servers.wait_until_promoted();
    load.answers(SOME).await;
    // It wakes up and believes for a moment that it is the primary still.
    servers.primary.thaw();
    load.answers(SOME).await;
    let told = load.stop().await;
    let fault = "failover from a frozen primary, answers by ledger";
    check(&pair, &told, &[&servers.replica], fault, Loss::Nothing).await;
}
