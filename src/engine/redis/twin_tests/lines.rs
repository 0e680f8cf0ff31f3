//! A pool's line, in both.

use super::*;
use crate::domain::line::{Line, Load, NO_TICKET, Place, Turn, Waiter};
use crate::engine::LineStep;
use crate::engine::redis::line;

/// Nobody's sign of life is missed here: Redis goes by real time.
const REAL: Millis = Millis(0);

/// A script that lets nobody be missed, however slow this machine is.
fn patient(script: &str) -> String {
    let (known, ever) = (", 5000, 5000, ", ", 5000, 1000000000000, ");
    assert!(script.contains(known));
    script.replace(known, ever)
}

impl Lives {
    fn place(&mut self) -> Place {
        let rank = Millis(T0 + self.dice.below(20_000) as i64);
        let turn = Turn { rank, ticket: 1 + self.dice.below(6), node: 100 + self.dice.below(3) };
        Place { turn, class: self.dice.below(5) as u8, bulk: self.dice.one_in(3), stands: true }
    }

    fn step_line(&mut self, pool: &AccountKey, model: &mut Line, known: &mut Vec<Turn>) {
        let step = match self.dice.below(5) {
            0..=2 => {
                let place = self.place();
                known.push(place.turn);
                let deadline = Millis(T0 + self.dice.below(40_000) as i64);
                let [input, output] = [self.dice.below(1000), self.dice.below(1000)];
                LineStep::Enter { waiter: Waiter { place, deadline, input, output }, most: 12 }
            }
            3 if !known.is_empty() => LineStep::Leave(known[self.dice.below(known.len() as u64) as usize]),
            _ => LineStep::Keep { node: 100 + self.dice.below(3) },
        };
        let call = line::call(self.keys.line(pool), &step);
        let mut command = redis::cmd("EVAL");
        command.arg(patient(scripts::LINE)).arg(1).arg(&call.keys[0]);
        call.args.iter().for_each(|arg| {
            command.arg(&arg[..]);
        });
        let told: [i64; 2] = command.query(&mut self.redis).expect("the script runs");
        let expected = match step {
            LineStep::Enter { waiter, most } => [i64::from(model.enter(waiter, most, REAL)), 0],
            LineStep::Leave(turn) => {
                model.leave(turn);
                [1, 0]
            }
            LineStep::Keep { node } => {
                model.keep(node, REAL);
                [1, model.of_node(node) as i64]
            }
        };
        assert_eq!(told, expected);
        let bytes: Option<Vec<u8>> = redis::cmd("GET").arg(&call.keys[0]).query(&mut self.redis).expect("up");
        let Some(bytes) = bytes else {
            assert!(model.is_empty());
            model.nodes.clear();
            return;
        };
        let (lanes, nodes, waiters) = line::read(&bytes).expect("readable");
        assert_eq!(waiters, model.waiters);
        let load = |bulk| {
            let own = waiters.iter().filter(|waiter| waiter.place.bulk == bulk);
            own.fold(Load::default(), |load, waiter| {
                load.with(&Load { calls: 1, input: waiter.input, output: waiter.output })
            })
        };
        assert_eq!(lanes, [load(false), load(true)]);
        for waiter in &waiters {
            assert!(nodes.contains(&waiter.place.turn.node));
        }
    }

    /// A check that fits, but for those who go first.
    fn take_behind(&mut self, model: &mut Line) {
        let accounts = self.accounts();
        self.load(&accounts);
        let mut place = self.place();
        if self.dice.one_in(2) {
            (place.turn.ticket, place.stands) = (NO_TICKET, false);
        }
        self.now = Millis(T0 + self.dice.below(40_000) as i64);
        let charge = Charge {
            account: 2,
            cell: CellId(77),
            meter: MeterCode::REQUESTS,
            figures: Figures::Slots { limit: 1_000_000 },
            demand: Demand::fixed(1),
            enforce: Enforce::Hard,
            asked: true,
            earlier: None,
            grants: None,
            to_come: None,
            switches: true,
            keep: 0,
        };
        let id = self.next_hold;
        self.next_hold += 1;
        let user = accounts[0].owner.to_string();
        let take = Take {
            accounts,
            ask: Ask {
                charges: [charge].into_iter().collect(),
                output_max: 0,
                output_min: 0,
                taking: Taking::Enforced,
            },
            draft: draft(id, &user, None),
            lease_ms: 1,
            max_hold_ms: 1,
            place: Some(place),
            dry_run: false,
            ..self.nothing()
        };
        let call = calls::take(&self.keys, self.head(), &take);
        match self.run(&patient(scripts::TAKE), call) {
            Answer::Done(found) => {
                assert!(!model.ahead(&place, found.now, REAL).blocked, "{place:?} {model:?}");
                if place.waits() {
                    model.leave(place.turn);
                }
            }
            Answer::Refused(found) => {
                let ahead = line::ahead(&found.record, &place).expect("readable");
                assert_eq!(ahead, model.ahead(&place, found.now, REAL));
                assert!(ahead.blocked);
            }
            answer => panic!("another answer: {answer:?}"),
        }
    }
}

#[test]
fn lines_are_the_same_in_both() {
    let Some(server) = Server::start() else {
        eprintln!("skipped: no redis-server");
        return;
    };
    let seed = number("APPORTION_TWIN_SEED").unwrap_or_else(|| std::process::id().into());
    for life in 0..10 {
        println!("APPORTION_TWIN_SEED={}", seed + life);
        let mut lives = Lives::new(server.connect(), seed + life);
        let pool = Lives::key(Scope::Pool, "p");
        let (mut model, mut known) = (Line::default(), Vec::new());
        for _ in 0..200 {
            if lives.dice.one_in(3) {
                lives.take_behind(&mut model);
            } else {
                lives.step_line(&pool, &mut model, &mut known);
            }
        }
    }
}
