//! All tests that look at the service from outside, in one binary.
//!
//! `harness` starts the real service and speaks to it; `api` holds what callers may rely on;
//! `cli` is the command line; `console` is what people look at; `contract` is what every back end must do;
//! `model` compares it with a second, slow implementation; `faults` kills it and crowds it;
//! `engine_redis` is the way to Redis, on each of its topologies;
//! `upstream` puts the service in front of a model vendor;
//! `traces` looks at what a collector of traces is sent, and at the log;
//! `doctor` is what it says of installations that are ill;
//! `docs` runs what the pages tell people to paste; `source` reads the sources.
#![allow(clippy::unwrap_used)]

mod api;
mod cli;
mod console;
mod contract;
mod docs;
mod doctor;
mod engine_redis;
pub mod faults;
mod harness;
mod model;
mod source;
mod traces;
#[allow(dead_code, reason = "benches/upstream prints more than the tests look at")]
mod upstream;
