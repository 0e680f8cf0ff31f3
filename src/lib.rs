//! Apportion: per-user plans in front of every model call.
//!
//! A product's backend asks before each call: may this user make it now? The
//! answer reserves an estimate; when the call is over it is settled with what
//! was really used.
//!
//! # The house
//!
//! The source is a house of floors. A file names only lower floors, and a test
//! reads the sources to see to it.
//!
//! | floor | module | what lives there |
//! |---|---|---|
//! | 0 | [`domain`] | the rules, pure: no I/O, no clock, no async, integers only |
//! | 1 | [`engine`] | takes all charges of a call or none, atomically, in memory |
//! | 1 | [`ledger`] | the durable truth: holds, usage, plans, users, keys |
//! | 1 | [`outbound`] | calls to the addresses that tenants name |
//! | 1 | [`traces`] | traces of calls, for a collector of OpenTelemetry |
//! | 2 | [`service`] | the use cases; the only place where engine and ledger meet |
//! | 3 | [`http`] | routes, tokens, problems, headers: HTTP in, HTTP out |
//! | 4 | [`cli`], [`config`], [`telemetry`], [`startup`] | subcommands, settings, logs, and the one place that picks back ends |
//!
//! One request goes one way down and one way up: route, caller, command,
//! service, charges, one engine call, ledger, decision, reply.
//! `docs/architecture.md` follows one through the house.

pub mod domain;

pub mod engine;
pub mod ledger;
pub mod outbound;
pub mod traces;

pub mod service;

pub mod http;

pub mod cli;
pub mod config;
pub mod startup;
pub mod telemetry;
