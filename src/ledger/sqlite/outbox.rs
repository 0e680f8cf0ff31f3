//! What webhooks are told.

use futures_util::FutureExt;

use super::SqliteLedger;
use crate::domain::charge::TenantRef;
use crate::domain::slot::Fence;
use crate::domain::time::Millis;
use crate::ledger::sql::batch::Batch;
use crate::ledger::sql::webhooks;
use crate::ledger::{
    Answer, Change, DeliveriesQuery, Delivery, DoubtKey, Keeping, Message, Telling, ToldDoubts, Tried,
    Webhooks, Write,
};

impl Webhooks for SqliteLedger {
    fn commit_telling(&self, changes: Vec<Change>, fence: Option<Fence>, telling: Telling) -> Answer<'_, ()> {
        async move { self.journal.commit(Batch { telling, ..Batch::of(&changes)? }, fence).await }.boxed()
    }

    fn write_telling(&self, tenant: TenantRef, write: Write, messages: Vec<Message>) -> Answer<'_, ()> {
        self.administer(write.changed(tenant), move |c| {
            async move { webhooks::write_and_tell(c, tenant, &write, &messages).await }.boxed()
        })
        .boxed()
    }

    fn tell(&self, messages: Vec<Message>) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { webhooks::add(c, &messages).await }.boxed()).boxed()
    }

    fn tell_doubts(&self, tenant: TenantRef, told: ToldDoubts) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { webhooks::tell_doubts(c, tenant, &told).await }.boxed())
            .boxed()
    }

    fn doubts_told(&self, tenant: TenantRef) -> Answer<'_, Option<DoubtKey>> {
        self.read(move |c| webhooks::doubts_told(c, tenant).boxed()).boxed()
    }

    fn due(&self, now: Millis, each: u32, limit: u32) -> Answer<'_, Vec<Delivery>> {
        self.read(move |c| webhooks::due(c, now, each, limit).boxed()).boxed()
    }

    fn begin_tries(
        &self,
        deliveries: Vec<Delivery>,
        now: Millis,
        until: Millis,
    ) -> Answer<'_, Vec<Delivery>> {
        self.write_beside(move |c| webhooks::begin_tries(c, deliveries, now, until).boxed()).boxed()
    }

    fn end_try(&self, delivery: Delivery, tried: Tried) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { webhooks::end_try(c, &delivery, &tried).await }.boxed())
            .boxed()
    }

    fn deliveries(&self, tenant: TenantRef, query: DeliveriesQuery) -> Answer<'_, Vec<Delivery>> {
        self.read(move |c| async move { webhooks::page(c, tenant, &query).await }.boxed()).boxed()
    }

    fn send_again(
        &self,
        tenant: TenantRef,
        webhook: String,
        id: String,
        now: Millis,
    ) -> Answer<'_, Option<Delivery>> {
        self.write_beside(move |c| {
            async move { webhooks::send_again(c, tenant, &webhook, &id, now).await }.boxed()
        })
        .boxed()
    }

    fn forget_webhook(&self, tenant: TenantRef, webhook: String) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { webhooks::forget(c, tenant, &webhook).await }.boxed()).boxed()
    }

    fn prune_deliveries(&self, keeping: Keeping) -> Answer<'_, u64> {
        self.write_beside(move |c| webhooks::prune(c, keeping).boxed()).boxed()
    }
}
