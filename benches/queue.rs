//! A pool with a line before it.

use apportion::domain::charge::{AccountKey, TenantRef};
use apportion::domain::line::{NO_TICKET, Place, Turn, Waiter};
use apportion::domain::plan::Scope;
use apportion::domain::time::Millis;
use apportion::engine::{Engine, LineStep, Take, Taken};
use tokio::runtime::Runtime;

use crate::sheet;
use crate::subjects::{Embedded, take_of, user};

const NODE: u64 = 7;
const USER_LIMITS: usize = 6;
const POOL_LIMITS: usize = 2;

pub struct Queue<E> {
    engine: Embedded<E>,
    pool: AccountKey,
    take: Take,
    waiters: u64,
}

impl<E: Engine> Queue<E> {
    pub fn new(engine: E, runtime: Option<Runtime>, waiters: u64) -> Self {
        let (sheet, now) = (sheet::sheet(USER_LIMITS), sheet::now());
        let key = |scope, owner: &str| AccountKey { tenant: TenantRef(1), scope, owner: owner.into() };
        let pool = key(Scope::Pool, "default");
        let mut ask = sheet::ask(&sheet, now);
        let of_pool: Vec<_> = ask.charges.iter().take(POOL_LIMITS).cloned().collect();
        ask.charges.extend(of_pool.into_iter().map(|mut charge| {
            charge.account = 1;
            charge
        }));
        let draft = sheet::draft(&sheet, TenantRef(1), user(0), now);
        let mut take = take_of(key(Scope::User, draft.user.as_str()), ask, draft);
        take.accounts.push(pool.clone());
        take.dry_run = true;
        take.place = Some(Place { turn: turn(now, NO_TICKET), class: 0, bulk: false, stands: false });
        let queue = Self { engine: Embedded::new(engine, runtime, USER_LIMITS, 1), pool, take, waiters };
        let deadline = now.plus_ms(3_600_000);
        for ticket in 0..waiters {
            let place =
                Place { turn: turn(now.plus_ms(-1_000), ticket), class: 0, bulk: false, stands: true };
            let waiter = Waiter { place, deadline, input: sheet::INPUT_TOKENS, output: sheet::OUTPUT_TOKENS };
            queue.step(&LineStep::Enter { waiter, most: waiters as usize });
        }
        queue
    }

    fn step(&self, step: &LineStep) {
        self.engine.wait(self.engine.engine.stand(&self.pool, step)).expect("it is up");
    }

    /// A sign of life of the node where all wait.
    pub fn keep(&self) {
        self.step(&LineStep::Keep { node: NODE });
    }

    /// A check that takes nothing.
    pub fn check(&self) {
        let taken = self.engine.apply(|| self.engine.engine.take(&self.take, sheet::now()));
        let is_refused = matches!(taken, Taken::Refused { .. });
        assert_eq!(is_refused, self.waiters > 0, "whoever comes goes behind those who wait");
    }
}

fn turn(rank: Millis, ticket: u64) -> Turn {
    Turn { rank, ticket, node: NODE }
}
