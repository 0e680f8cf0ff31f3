//! Tenants, their settings and catalogs, at hand and on record; what other
//! processes write is followed from here.

#[cfg(test)]
pub(super) mod bench;
pub(super) mod cache;
pub mod catalog;
pub mod catalog_writes;
pub mod clock;
#[cfg(test)]
pub(super) mod fake_ledger;
#[cfg(test)]
mod fake_outbox;
pub(super) mod following;
pub(super) mod ingress;
pub(super) mod installation;
pub(super) mod purging;
pub mod reason;
pub mod registry;
pub mod settings;
pub mod tenants;
pub(super) mod writer;
