//! What the scripts cost Redis: `--ignored --nocapture`, with nothing else at work.

use super::*;

/// What Redis works for a check and a settle: run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_a_check_costs_redis() {
    let Some(server) = Server::start() else { return };
    let rounds = number("APPORTION_TWIN_STEPS").unwrap_or(20_000);
    for limits in [1, 5, 8, 20] {
        let mut lives = Lives::new(server.connect(), 1);
        lives.big = false;
        let [taken, settled] = lives.cost(limits, rounds, server.0.id());
        println!("{limits:2} limits + 2 of the pool: take {taken:5.1} us, settle {settled:5.1} us");
    }
}

fn worked_us(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("its figures");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1000.0
}

impl Lives {
    fn cost(&mut self, limits: u64, rounds: u64, pid: u32) -> [f64; 2] {
        let load = |redis: &mut redis::Connection, code: &str| -> String {
            redis::cmd("SCRIPT").arg("LOAD").arg(code).query(redis).expect("a script")
        };
        let [take_sha, finish_sha] = [scripts::TAKE, scripts::FINISH].map(|code| load(&mut self.redis, code));
        let mut cost = [0.0; 2];
        let mut seen = 0;
        for round in 0..rounds / 100 {
            let takes: Vec<Take> = (0..100u64)
                .map(|i| {
                    let id = round * 100 + i;
                    self.sample(u128::from(id + 1) << 64, &format!("u{}", id % 1000), limits)
                })
                .collect();
            if round < 10 {
                takes.iter().for_each(|take| self.load(&take.accounts));
            }
            let head = Head { shows: false, ..self.head() };
            let calls: Vec<Call> = takes.iter().map(|take| calls::take(&self.keys, head, take)).collect();
            cost[0] += self.cost_of(&take_sha, &calls, pid);
            let settled = self.settlement(self.now);
            let finishes: Vec<Call> = takes
                .iter()
                .map(|take| {
                    let record = self.read_record(take.draft.id).expect("taken");
                    let hold = Arc::new(record.hold);
                    let finish = Finish {
                        hold: hold.id,
                        found: None,
                        accounts: take.accounts.clone(),
                        show: take
                            .ask
                            .charges
                            .iter()
                            .map(|charge| Charge { asked: false, ..charge.clone() })
                            .collect(),
                        how: How::Settle(Box::new(settled.clone())),
                        ended_by_rule: None,
                    };
                    let (after, ending) = finishing::end(&finish, &hold, self.now).ok().expect("ends");
                    let from = calls::From { before: &hold, version: record.version, operation: [1; 16] };
                    calls::finish(&self.keys, head, &take.accounts, &from, &after, &ending, &finish.show)
                })
                .collect();
            cost[1] += self.cost_of(&finish_sha, &finishes, pid);
            self.now = self.now.plus_ms(100);
            seen += 200;
            // As whoever records them would.
            redis::cmd("XTRIM")
                .arg(self.keys.stream())
                .arg(&["MINID", "~"])
                .arg(seen)
                .exec(&mut self.redis)
                .expect("up");
        }
        cost.map(|us| us / rounds as f64)
    }

    fn sample(&self, id: u128, user: &str, limits: u64) -> Take {
        let charge = |account: u8, n: u64| {
            let meter = METERS[(n % 5) as usize];
            let figures = match n % 4 {
                0 | 1 => Figures::Bucket { capacity: 1_000_000, refill: 100_000, since: Millis(T0) },
                2 => Figures::Window { limit: MAX_AMOUNT / 2, since: Millis(T0), span: days(0, Millis(T0)) },
                _ => Figures::Slots { limit: 1000 },
            };
            let demand = Demand { fixed: 10, per_output: u64::from(meter == MeterCode::OUTPUT), unit: 1 };
            Charge {
                account,
                cell: CellId(n + 1 + (u64::from(account) << 40)),
                meter: if n % 4 == 3 { MeterCode::SLOTS } else { meter },
                figures,
                demand,
                enforce: Enforce::Hard,
                asked: true,
                earlier: None,
                grants: None,
                to_come: None,
                switches: true,
                keep: 0,
            }
        };
        Take {
            accounts: [Self::key(Scope::User, user), Self::key(Scope::Pool, "p")].into_iter().collect(),
            ask: Ask {
                charges: (0..limits).map(|n| charge(0, n)).chain([charge(1, 0), charge(1, 1)]).collect(),
                output_max: 500,
                output_min: 0,
                taking: Taking::Enforced,
            },
            credits: Demand { fixed: 3_000_000, per_output: 15_000_000, unit: 1_000_000 },
            draft: draft(id, user, None),
            lease_ms: 60_000,
            max_hold_ms: HOUR,
            dry_run: false,
            quiet: false,
            place: None,
        }
    }

    fn cost_of(&mut self, sha: &str, calls: &[Call], pid: u32) -> f64 {
        let mut pipeline = redis::pipe();
        for call in calls {
            let command = pipeline.cmd("EVALSHA").arg(sha).arg(call.keys.len()).arg(&call.keys);
            call.args.iter().for_each(|arg| {
                command.arg(&arg[..]);
            });
        }
        let before = worked_us(pid);
        let answers: Vec<redis::Value> = pipeline.query(&mut self.redis).expect("answers");
        let worked = worked_us(pid) - before;
        for answer in answers {
            match answers::read(answer) {
                Ok(Answer::Done(found)) => self.seq = found.seq,
                other => panic!("{other:?}"),
            }
        }
        worked
    }
}

#[test]
#[ignore = "a measurement"]
fn where_a_check_costs_redis() {
    let Some(server) = Server::start() else { return };
    let mut lives = Lives::new(server.connect(), 1);
    lives.big = false;
    let pid = server.0.id();
    lives.cost(8, 1000, pid);
    let cuts = [
        ("#!lua\n", "nothing at all"),
        ("local epoch, known", "begin"),
        ("local found = call", "head"),
        ("-- Only test tenants", "mget+meta"),
        ("-- The cells' arithmetic", "accounts read"),
        ("-- Putting a step in place", "cells' closures"),
        ("-- Takes all charges of a check", "all closures"),
        ("for i = 1, n do project(accounts[i], i) end", "charges read"),
        ("-- The most output, at least", "projected"),
        ("local final, values, members", "asked"),
        ("local lives_until", "taken"),
        ("for i = 1, n do\n  if finished == NONE", "record packed"),
        ("call('SET', KEYS[2], record", "accounts written"),
        ("if digest ~= '' then remember(digest, hold, finished", "record set"),
        ("return answer(DONE, shows", "left"),
        ("", "all"),
    ];
    for (cut, name) in cuts {
        let text = match cut {
            "" => scripts::TAKE.to_owned(),
            cut => {
                let at = scripts::TAKE.rfind(cut).expect(cut);
                let at = if cut == "#!lua\n" { at + 6 } else { at };
                format!("{} do return {{99}} end", &scripts::TAKE[..at])
            }
        };
        let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut lives.redis).expect("loads");
        let mut worked = 0.0;
        for round in 0..20u64 {
            let mut pipeline = redis::pipe();
            for i in 0..100u64 {
                let id = (round * 100 + i + 1) << 3 | u64::from(cut.len() as u8) << 40;
                let take = lives.sample(id.into(), &format!("u{i}"), 8);
                let call = calls::take(&lives.keys, Head { shows: false, ..lives.head() }, &take);
                let command = pipeline.cmd("EVALSHA").arg(&sha).arg(call.keys.len()).arg(&call.keys);
                call.args.iter().for_each(|arg| {
                    command.arg(&arg[..]);
                });
            }
            let before = worked_us(pid);
            let _: Vec<redis::Value> = pipeline.query(&mut lives.redis).expect("answers");
            worked += worked_us(pid) - before;
        }
        println!("{:6.1} us {name}", worked / 2000.0);
    }
}
