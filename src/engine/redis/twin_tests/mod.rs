//! The scripts against the rules: random lives of a tenant's accounts, step by
//! step in both, compared after every one.
//!
//! `APPORTION_TWIN_STEPS` makes it longer, `APPORTION_TWIN_SEED` repeats a run.

mod costs;
mod ends;
mod limits;
mod lines;
mod server;

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::sync::Arc;

use futures_util::FutureExt;
use smallvec::SmallVec;

use super::answers::{self, Answer, Found};
use super::bytes::Writer;
use super::calls::{self, Call, Head};
use super::keys::{Keys, Owner};
use super::record::Record;
use super::scripts;
use super::state::{self, Packed};
use crate::domain::account::Account;
use crate::domain::charge::{
    AccountKey, CellId, Charge, Demand, Earlier, FigureStep, Figures, MeterCode, Span, SpanStep, TenantRef,
};
use crate::domain::grant::Grant;
use crate::domain::hold::{
    Amounts, Caps, FinishedBy, Granted, Hold, ReleaseReason, Reported, RequestMark, Settlement, Stage,
};
use crate::domain::ids::{HoldId, Name, RequestId, UserId};
use crate::domain::plan::{Enforce, PerCall, Scope};
use crate::domain::quantity::{MAX_AMOUNT, MAX_BUCKET, Ppm};
use crate::domain::step::{self, Ask, Verdict};
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::engine::finishing;
use crate::engine::{
    Engine, Extend, Extended, Finish, Finished, How, Loaded, MemoryEngine, Step, Take, Taken,
};
use limits::{Limit, METERS, days};
use server::{Dice, Server};

const T0: i64 = 1_770_000_000_000;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const TENANT: TenantRef = TenantRef(1);

fn draft(id: u128, user: &str, request: Option<String>) -> Hold {
    Hold {
        id: HoldId(id),
        tenant: TENANT,
        user: UserId::parse(user).expect("valid"),
        org: None,
        pool: Some(Name::parse("p").expect("valid")),
        request: request
            .map(|id| RequestMark { id: RequestId::parse(&id).expect("valid"), fingerprint: [1; 16] }),
        plan: Name::parse("free").expect("valid"),
        plan_version: 1,
        admits_user: true,
        bulk: false,
        models_version: 1,
        model: None,
        feature: None,
        created_at: Millis(0),
        expires_at: Millis(0),
        lease_seconds: 10,
        lives_until: Millis(0),
        day: 0,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1_000 },
        cache_read_weight: Ppm::ONE,
        granted: Granted { input_tokens: 3, max_output_tokens: 0, is_final: false },
        reserved: Amounts::default(),
        amounts: vec![],
        receipts: vec![],
        progress: 0,
        extends: vec![],
        stage: Stage::Held,
    }
}

struct Lives {
    dice: Dice,
    memory: MemoryEngine,
    redis: redis::Connection,
    keys: Keys,
    limits: Vec<Limit>,
    holds: Vec<(Arc<Hold>, SmallVec<[AccountKey; 2]>)>,
    seq: u64,
    now: Millis,
    next_hold: u128,
    big: bool,
}

impl Lives {
    fn new(mut redis: redis::Connection, seed: u64) -> Self {
        let mut dice = Dice(seed);
        let big = dice.one_in(4);
        let limits = (1..=12).map(|cell| Limit::random(&mut dice, (cell % 3) as u8, cell, big)).collect();
        let keys = Keys::new(Owner { installation: 0, tenant: TENANT }, 1);
        let mut meta = Writer::default();
        meta.amount(1).amount(0).amount(0).number(0.0).u8(0);
        redis::cmd("FLUSHALL").exec(&mut redis).expect("up");
        redis::cmd("SET").arg(keys.meta()).arg(meta.0).exec(&mut redis).expect("up");
        let memory = MemoryEngine::new(1000);
        Self { dice, memory, redis, keys, limits, holds: vec![], seq: 0, now: Millis(T0), next_hold: 1, big }
    }

    fn key(scope: Scope, owner: &str) -> AccountKey {
        AccountKey { tenant: TENANT, scope, owner: owner.into() }
    }

    fn head(&self) -> Head {
        Head { epoch: 1, known: self.seq, now: self.now, longest: 1_000_000, shows: true }
    }

    fn run(&mut self, script: &str, call: Call) -> Answer {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(call.keys.len());
        call.keys.iter().for_each(|key| {
            command.arg(key);
        });
        call.args.iter().for_each(|arg| {
            command.arg(&arg[..]);
        });
        let value: redis::Value = command.query(&mut self.redis).expect("the script runs");
        let answer = answers::read(value).expect("readable");
        if let Answer::Done(found) | Answer::Refused(found) = &answer {
            self.seq = found.seq;
        }
        answer
    }

    /// Loads empty accounts into both.
    fn load(&mut self, accounts: &[AccountKey]) {
        let nothing = Take { accounts: accounts.into(), ..self.nothing() };
        if let Some(Ok(Step::Missing(missing))) = self.memory.take(&nothing, self.now).now_or_never() {
            let blank = missing.keys.iter().map(|_| Loaded::default()).collect();
            let _ = self.memory.load(&missing, blank).now_or_never();
        }
        for key in accounts {
            let stored = calls::Stored {
                key: key.clone(),
                state: state::pack(&Account::default()),
                open: vec![],
                requests: vec![],
            };
            let call = calls::load(&self.keys, 1, &[stored], &[]);
            let mut command = redis::cmd("EVAL");
            command.arg(scripts::LOAD).arg(call.keys.len()).arg(&call.keys);
            call.args.iter().for_each(|arg| {
                command.arg(&arg[..]);
            });
            let done: i64 = command.query(&mut self.redis).expect("loads");
            assert_eq!(done, 0);
        }
    }

    fn nothing(&self) -> Take {
        Take {
            accounts: SmallVec::new(),
            ask: Ask { charges: SmallVec::new(), output_max: 0, output_min: 0, taking: Taking::Enforced },
            credits: Demand::NONE,
            draft: draft(0, "nobody", None),
            lease_ms: 1,
            max_hold_ms: 1,
            dry_run: true,
            quiet: false,
            place: None,
        }
    }

    fn accounts(&mut self) -> SmallVec<[AccountKey; 2]> {
        let user = self.dice.pick(&["a", "b"]);
        [Self::key(Scope::User, user), Self::key(Scope::Tenant, ""), Self::key(Scope::Pool, "p")]
            .into_iter()
            .collect()
    }

    fn demand(&mut self, meter: MeterCode) -> Demand {
        let big = self.big;
        match meter {
            MeterCode::SLOTS | MeterCode::REQUESTS => Demand::fixed(1),
            MeterCode::INPUT => Demand::fixed(if big {
                self.dice.pick(&[0, MAX_AMOUNT, 77_777_777_777])
            } else {
                self.dice.below(30)
            }),
            MeterCode::OUTPUT => Demand { fixed: 0, per_output: 1, unit: 1 },
            MeterCode::TOTAL => Demand { fixed: self.dice.below(20).into(), per_output: 1, unit: 1 },
            MeterCode::CREDITS => {
                let (input, price): (u64, u64) = match big {
                    true => (
                        self.dice.pick(&[1_000_000_000, MAX_AMOUNT]),
                        self.dice.pick(&[1_000_000_000_000, 999_999_999_999, 1]),
                    ),
                    false => (self.dice.below(1000), self.dice.pick(&[0, 333_333, 3_000_000])),
                };
                let slope = if big {
                    self.dice.pick(&[1_000_000_000_000, 333_333_333_333, 3])
                } else {
                    self.dice.pick(&[0, 1, 333_333, 15_000_000])
                };
                Demand { fixed: u128::from(input) * u128::from(price), per_output: slope, unit: 1_000_000 }
            }
            _ => Demand::fixed(self.dice.below(5)),
        }
    }

    fn charges(&mut self, asks: bool) -> SmallVec<[Charge; 8]> {
        let mut charges = SmallVec::new();
        for limit in self.limits.clone() {
            if self.dice.one_in(4) {
                continue;
            }
            let demand = self.demand(limit.meter);
            let asked = asks && !self.dice.one_in(4);
            charges.push(limit.charge(&mut self.dice, demand, asked, self.now));
        }
        charges
    }

    fn take(&mut self) {
        let accounts = self.accounts();
        self.load(&accounts);
        let charges = self.charges(true);
        let most = if self.big {
            self.dice.pick(&[0, 1_000_000_000, MAX_AMOUNT, 12_345])
        } else {
            self.dice.below(60)
        };
        let least = if self.dice.one_in(2) { most } else { self.dice.below(most + 1) };
        let taking = match self.dice.below(6) {
            0 => Taking::Shadowed,
            1 => Taking::Happened(self.now.plus_ms(-(self.dice.below(40) as i64) * HOUR / 2)),
            _ => Taking::Enforced,
        };
        let id = self.next_hold;
        self.next_hold += 1;
        let user = accounts[0].owner.to_string();
        let request = self.dice.one_in(3).then(|| format!("r{}", self.dice.below(1000)));
        let mut hold = draft(id, &user, request);
        if let Taking::Happened(at) = taking {
            hold.stage = Stage::Settled(Box::new(self.settlement(at)));
        }
        let lease_ms = 1 + self.dice.below(3 * HOUR as u64) as i64;
        let credits = self.demand(MeterCode::CREDITS);
        let take = Take {
            accounts: accounts.clone(),
            ask: Ask { charges, output_max: most, output_min: least, taking },
            credits,
            draft: hold,
            lease_ms,
            max_hold_ms: 2 * HOUR,
            dry_run: self.dice.one_in(10),
            quiet: self.dice.one_in(10),
            place: None,
        };
        // Waits promised to others are the node's own business.
        self.memory.pin(&accounts).0.iter().for_each(|entry| entry.state.lock().promises = None);
        let expected = match self.memory.take(&take, self.now).now_or_never() {
            Some(Ok(Step::Done(taken))) => taken,
            _ => panic!("memory decides"),
        };
        let head = self.head();
        let call = calls::take(&self.keys, head, &take);
        let answer = self.run(scripts::TAKE, call);
        let scopes = crate::engine::scopes(&take.accounts);
        let verdict = |found: &Found| {
            step::take(&found.accounts.iter().collect::<Vec<_>>(), &scopes, &take.ask, found.now)
        };
        match (expected, answer) {
            (Taken::Known(expected), Answer::Known(found)) => assert_eq!(expected, found),
            (Taken::Refused { shortfalls, standings, .. }, Answer::Refused(found)) => {
                let Verdict::Refused { shortfalls: told, standings: shown } = verdict(&found) else {
                    panic!("refused")
                };
                assert_eq!((shortfalls, standings), (told, shown));
            }
            (Taken::Fits { shortfalls, .. }, Answer::Done(found)) => {
                let Verdict::Fits { shortfalls: told, .. } = verdict(&found) else { panic!("fits") };
                assert_eq!(shortfalls, told);
            }
            (Taken::Hold { hold, standings, shortfalls, .. }, Answer::Done(found)) => {
                let Verdict::Fits { shortfalls: told, standings: shown, projections, .. } = verdict(&found)
                else {
                    panic!("fits")
                };
                let record = Record::read(&found.record).expect("a record");
                assert_eq!(*hold, record.hold);
                assert_eq!((shortfalls, standings), (told, shown));
                for (index, projection) in projections.into_iter().enumerate() {
                    let mut account = found.accounts[index].clone();
                    account.accept(projection);
                    let packed = Packed::read(&found.after[index]).expect("readable");
                    assert_eq!(packed.cells, account.cells());
                }
                if !hold.is_finished() {
                    self.holds.push((hold, accounts.clone()));
                }
            }
            (_, answer) => panic!("another answer: {answer:?}"),
        }
        self.compare(&accounts);
    }

    fn settlement(&mut self, at: Millis) -> Settlement {
        let any = |lives: &mut Self| {
            if lives.big {
                lives.dice.pick(&[0, 1, MAX_AMOUNT, 50_000_000_000])
            } else {
                lives.dice.below(80)
            }
        };
        Settlement {
            at,
            late: false,
            by: FinishedBy::Caller,
            reported: Reported::default(),
            counted: Amounts {
                requests: 1,
                input_tokens: any(self),
                output_tokens: any(self),
                total_tokens: any(self),
                credits: any(self),
            },
            amounts: vec![],
        }
    }

    fn touch(&mut self) {
        let accounts = self.accounts();
        self.load(&accounts);
        let key = &accounts[0];
        let mut charges = self.charges(false);
        charges.retain(|charge| charge.account == 0);
        let memory = self.memory.touch(key, &charges, self.now).now_or_never();
        assert!(matches!(memory, Some(Ok(Step::Done(_)))));
        let call = calls::touch(&self.keys, self.head(), key, &charges);
        assert!(matches!(self.run(scripts::TOUCH, call), Answer::Done(_)));
        self.compare(&accounts);
    }

    fn operation(&mut self) -> [u8; 16] {
        self.dice.roll();
        [self.dice.roll().to_le_bytes(); 2].concat().try_into().expect("16 bytes")
    }

    fn read_record(&mut self, id: HoldId) -> Option<Record> {
        let bytes: Option<Vec<u8>> =
            redis::cmd("GET").arg(self.keys.hold(id)).query(&mut self.redis).expect("up");
        bytes.map(|bytes| Record::read(&bytes).expect("a record"))
    }

    /// What both have of the accounts now.
    fn compare(&mut self, accounts: &[AccountKey]) {
        for key in accounts {
            let raw: Vec<u8> =
                redis::cmd("GET").arg(self.keys.account(key)).query(&mut self.redis).expect("up");
            let found = Packed::read(&raw).unwrap_or_else(|_| panic!("{key:?} is unreadable: {raw:?}"));
            let open: redis::Value = redis::cmd("ZRANGE")
                .arg(self.keys.open(key))
                .arg(&["0", "-1", "WITHSCORES"])
                .query(&mut self.redis)
                .expect("up");
            let open: BTreeSet<_> = answers::opens(Some(open))
                .expect("readable")
                .into_iter()
                .filter(|(end, ..)| *end > found.advanced_to)
                .collect();
            let pins = self.memory.pin(std::slice::from_ref(key));
            let state = pins.0[0].state.lock();
            let account = &state.account;
            assert_eq!(found.cells, account.cells(), "{key:?}");
            assert_eq!(
                (found.advanced_to, &found.spent),
                (account.advanced_to(), account.spent()),
                "{key:?}"
            );
            assert_eq!(
                open,
                account.open().filter(|(end, ..)| *end > found.advanced_to).collect(),
                "{key:?}"
            );
        }
    }

    fn live(&mut self, steps: u64) {
        for _ in 0..steps {
            let pause = match self.dice.below(8) {
                0 => -(self.dice.below(5000) as i64),
                1 => self.dice.below(30 * HOUR as u64) as i64,
                2 => self.dice.below(3 * HOUR as u64) as i64,
                3 => 0,
                _ => self.dice.below(5000) as i64,
            };
            self.now = self.now.plus_ms(pause);
            match self.dice.below(10) {
                0..=4 => self.take(),
                5..=7 => self.finish(),
                8 => self.extend(),
                _ => self.touch(),
            }
            // Nobody records anything here.
            if let Some(changes) = self.memory.changes().now_or_never() {
                drop(changes);
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn scripts_decide_as_the_rules_do() {
    let Some(server) = Server::start() else {
        eprintln!("skipped: no redis-server");
        return;
    };
    let seed = number("APPORTION_TWIN_SEED").unwrap_or_else(|| std::process::id().into());
    let steps = number("APPORTION_TWIN_STEPS").unwrap_or(3000);
    for life in 0..steps.div_ceil(150) {
        println!("APPORTION_TWIN_SEED={}", seed + life);
        Lives::new(server.connect(), seed + life).live(steps.min(150));
    }
}
