//! What callers may rely on, endpoint by endpoint; cases from the field keep their figures.

mod batches;
mod buckets;
mod capacity;
mod days;
mod doubt;
mod endings;
mod idempotency;
mod identity;
mod input;
mod lists;
mod numbers;
mod plans;
mod pools;
mod probes;
mod reads;
mod records;
mod refusals;
mod retries;
mod shadow;
mod shared;
mod shipped;
mod slots;
mod stream;
mod usage;
mod vectors;
mod who;
