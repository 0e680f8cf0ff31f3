//! The outbox of a ledger in memory: writes are kept, what is told is not.

use super::fake_ledger::FakeLedger;
use crate::domain::charge::TenantRef;
use crate::domain::slot::Fence;
use crate::domain::time::Millis;
use crate::ledger::{
    Answer, Change, DeliveriesQuery, Delivery, DoubtKey, Keeping, Ledger, Message, Telling, ToldDoubts,
    Tried, Webhooks, Write,
};

impl Webhooks for FakeLedger {
    fn commit_telling(&self, _: Vec<Change>, _: Option<Fence>, _: Telling) -> Answer<'_, ()> {
        unreachable!("no test takes anything")
    }
    fn write_telling(&self, tenant: TenantRef, write: Write, _: Vec<Message>) -> Answer<'_, ()> {
        match write {
            Write::User(user, written) => self.put_user(tenant, *user, written),
            Write::Org(org, written) => self.put_org(tenant, *org, written),
            Write::Record(record) => self.put_record(Some(tenant), record),
            Write::Condition(condition, noted) => self.put_condition(tenant, condition, noted),
            Write::Note(..) => unreachable!("no test has an outage"),
        }
    }
    fn tell(&self, _: Vec<Message>) -> Answer<'_, ()> {
        unreachable!("no test sends")
    }
    fn tell_doubts(&self, _: TenantRef, _: ToldDoubts) -> Answer<'_, ()> {
        unreachable!("no test sends")
    }
    fn doubts_told(&self, _: TenantRef) -> Answer<'_, Option<DoubtKey>> {
        unreachable!("no test sends")
    }
    fn due(&self, _: Millis, _: u32, _: u32) -> Answer<'_, Vec<Delivery>> {
        unreachable!("no test sends")
    }
    fn begin_tries(&self, _: Vec<Delivery>, _: Millis, _: Millis) -> Answer<'_, Vec<Delivery>> {
        unreachable!("no test sends")
    }
    fn end_try(&self, _: Delivery, _: Tried) -> Answer<'_, ()> {
        unreachable!("no test sends")
    }
    fn deliveries(&self, _: TenantRef, _: DeliveriesQuery) -> Answer<'_, Vec<Delivery>> {
        unreachable!("no test sends")
    }
    fn send_again(&self, _: TenantRef, _: String, _: String, _: Millis) -> Answer<'_, Option<Delivery>> {
        unreachable!("no test sends")
    }
    fn forget_webhook(&self, _: TenantRef, _: String) -> Answer<'_, ()> {
        unreachable!("no test sends")
    }
    fn prune_deliveries(&self, _: Keeping) -> Answer<'_, u64> {
        unreachable!("no test sends")
    }
}
