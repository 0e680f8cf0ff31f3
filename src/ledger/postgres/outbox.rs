//! What webhooks are told.

use futures_util::FutureExt;
use sqlx::postgres::PgConnection;

use super::PostgresLedger;
use crate::domain::charge::TenantRef;
use crate::domain::slot::Fence;
use crate::domain::time::Millis;
use crate::ledger::sql::batch::Batch;
use crate::ledger::sql::{Failure, changes, webhooks};
use crate::ledger::{
    Answer, Change, DeliveriesQuery, Delivery, DoubtKey, Keeping, Message, Telling, ToldDoubts, Tried,
    Webhooks, Write,
};

impl Webhooks for PostgresLedger {
    fn commit_telling(&self, changes: Vec<Change>, fence: Option<Fence>, telling: Telling) -> Answer<'_, ()> {
        async move { self.put(Batch { telling, ..Batch::of(&changes)? }, fence).await }.boxed()
    }

    fn write_telling(&self, tenant: TenantRef, write: Write, messages: Vec<Message>) -> Answer<'_, ()> {
        administer!(self, write.changed(tenant), |c| webhooks::write_and_tell(c, tenant, &write, &messages))
    }

    fn tell(&self, messages: Vec<Message>) -> Answer<'_, ()> {
        write!(self, |c| webhooks::add(c, &messages))
    }

    fn tell_doubts(&self, tenant: TenantRef, told: ToldDoubts) -> Answer<'_, ()> {
        write!(self, |c| webhooks::tell_doubts(c, tenant, &told))
    }

    fn doubts_told(&self, tenant: TenantRef) -> Answer<'_, Option<DoubtKey>> {
        read!(self, |c| webhooks::doubts_told(c, tenant))
    }

    fn due(&self, now: Millis, each: u32, limit: u32) -> Answer<'_, Vec<Delivery>> {
        read!(self, |c| webhooks::due(c, now, each, limit))
    }

    fn begin_tries(
        &self,
        deliveries: Vec<Delivery>,
        now: Millis,
        until: Millis,
    ) -> Answer<'_, Vec<Delivery>> {
        write!(self, |c| webhooks::begin_tries(c, deliveries.clone(), now, until))
    }

    fn end_try(&self, delivery: Delivery, tried: Tried) -> Answer<'_, ()> {
        write!(self, |c| webhooks::end_try(c, &delivery, &tried))
    }

    fn deliveries(&self, tenant: TenantRef, query: DeliveriesQuery) -> Answer<'_, Vec<Delivery>> {
        read!(self, |c| webhooks::page(c, tenant, &query))
    }

    fn send_again(
        &self,
        tenant: TenantRef,
        webhook: String,
        id: String,
        now: Millis,
    ) -> Answer<'_, Option<Delivery>> {
        write!(self, |c| webhooks::send_again(c, tenant, &webhook, &id, now))
    }

    fn forget_webhook(&self, tenant: TenantRef, webhook: String) -> Answer<'_, ()> {
        write!(self, |c| webhooks::forget(c, tenant, &webhook))
    }

    fn prune_deliveries(&self, keeping: Keeping) -> Answer<'_, u64> {
        write!(self, |c| webhooks::prune(c, keeping))
    }
}
